"""The sessions of the fake lock server."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Protocol

from .. import clock, validation
from . import records
from .records import Asked, GrantedLease, Json, SessionRecord
from .replies import Refusal


class Leases(Protocol):
    """What sessions need of the locks."""

    def leases_of(self, session_id: str) -> list[GrantedLease]: ...

    def end(self, lease: GrantedLease, reason: str, why: str | None = None) -> None: ...

    def publish(self, event: Json) -> None: ...


class Sessions:
    """All sessions, also ended ones; the caller has the mutex of the locks."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._all: dict[str, SessionRecord] = {}

    def begin(self, body: Mapping[str, Any]) -> Json:
        """Begins a session; a retry of its owner gets the same one."""
        session_id = validation.identifier("session_id", body.get("session_id"))
        owner = validation.text("owner", body.get("owner"))
        ttl_ms = records.ttl_ms(body.get("ttl_ms", 15_000))
        found = self._all.get(session_id or "")
        if found is None:
            now = clock.now_ms()
            session_id = session_id or str(uuid.uuid4())
            found = SessionRecord(session_id, owner, ttl_ms, now, now + ttl_ms)
            self._all[session_id] = found
            self._leases.publish({"kind": "session-begun", "session_id": session_id})
        elif found.owner != owner:
            raise self._refused("session-conflict", found, "is another owner's", owner=found.owner)
        self._check_live(found)
        return self._shown(found)

    def heartbeat(self, session_id: str) -> Json:
        """Restores the time to live of a session and its leases."""
        session = self._live(session_id)
        session.expires_at = clock.now_ms() + session.ttl_ms
        session.heartbeats += 1
        for lease in self._leases.leases_of(session_id):
            lease.expires_at = session.expires_at
        return self._shown(session)

    def show(self, session_id: str) -> Json:
        """A live session."""
        return self._shown(self._live(session_id))

    def end(self, session_id: str, reason: str = "ended") -> Json:
        """Ends a session with its leases."""
        session = self._live(session_id)
        session.ended = reason
        leases = self._leases.leases_of(session_id)
        for lease in leases:
            self._leases.end(lease, "session-ended")
        self._leases.publish({"kind": "session-closed", "session_id": session_id})
        return {"session_id": session_id, "reason": reason, "lease_count": len(leases)}

    def expire(self, now: int) -> None:
        """Ends the sessions that had no heartbeat in time."""
        for session in list(self._all.values()):
            if session.ended is None and session.expires_at <= now:
                self.end(session.session_id, "expired")

    def check(self, asked: Asked) -> None:
        """Raises ``Refusal`` if the session of a request cannot have another lease."""
        if asked.session_id is None:
            return
        session = self._live(asked.session_id)
        if session.owner != asked.owner:
            owner = session.owner
            raise self._refused("session-conflict", session, "is another owner's", owner=owner)

    def refusal(self, asked: Asked) -> Refusal | None:
        """The refusal of a request whose session has ended."""
        try:
            self.check(asked)
        except Refusal as refusal:
            return refusal
        return None

    def expiry(self, asked: Asked) -> int | None:
        """Moment at which the session of a request ends; ``None`` without one."""
        return None if asked.session_id is None else self._all[asked.session_id].expires_at

    def _live(self, session_id: str) -> SessionRecord:
        session = self._all.get(session_id)
        if session is None:
            detail = f"session {session_id}: it is not known"
            raise Refusal("session-unknown", detail, session_id=session_id)
        self._check_live(session)
        return session

    def _check_live(self, session: SessionRecord) -> None:
        if session.ended is not None:
            text = f"has ended: {session.ended}"
            raise self._refused("session-ended", session, text, reason=session.ended)

    @staticmethod
    def _refused(code: str, session: SessionRecord, text: str, **members: Any) -> Refusal:
        session_id = session.session_id
        return Refusal(code, f"session {session_id}: it {text}", session_id=session_id, **members)

    def _shown(self, session: SessionRecord) -> Json:
        now = clock.now_ms()
        return {
            "session_id": session.session_id,
            "owner": session.owner,
            "ttl_ms": session.ttl_ms,
            "expires_in_ms": max(0, session.expires_at - now),
            "age_ms": now - session.began_at,
            "heartbeats": session.heartbeats,
            "lease_count": len(self._leases.leases_of(session.session_id)),
        }
