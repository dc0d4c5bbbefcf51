"""What the fake lock server keeps: leases, requests in the queue, sessions and events."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import validation
from ..errors import Invalid
from .replies import Refusal

Json = dict[str, Any]

_EVENTS_MAX = 10_000
_EPOCH_2025_MS = 1_735_689_600_000
_TOKENS_PER_MS = 1_000
_TAKEOVER = {"takeover", "takeover_of"}


@dataclass(frozen=True)
class Wish:
    """One lock of a request."""

    lock: str
    mode: str
    size: int | None
    min_token: int

    @classmethod
    def of(cls, lock: object, body: Mapping[str, Any]) -> Wish:
        """Reads the members of a request; raises ``Invalid``."""
        mode = body.get("mode") or "exclusive"
        size = validation.mode_of(mode, body.get("size"))
        least = validation.token("min_token", body.get("min_token")) or 0
        ceiling = _min_token_ceiling()
        if least > ceiling:
            raise Invalid(
                f"min_token {least} is out of range: no guard can have seen more than {ceiling}"
            )
        return cls(validation.lock_name(lock), mode, size, least)

    @property
    def kind(self) -> str:
        """Kind of the lock, of which it has one at a time."""
        return "a lock with leases" if self.size is None else f"a semaphore of size {self.size}"


@dataclass(frozen=True)
class Asked:
    """A checked request for locks: what it has beside them."""

    lease_id: str
    owner: str
    ttl_ms: int
    wait_ms: int
    metadata: Any = None
    session_id: str | None = None
    incarnation: str | None = None
    takeover: bool = False
    takeover_of: str | None = None

    @classmethod
    def of(cls, body: Mapping[str, Any], is_several: bool = False) -> Asked:
        """Reads a request for one lock, or for several; raises ``Invalid``."""
        of_one = {"mode", "size", "min_token", *_TAKEOVER}
        shared = {*cls.__dataclass_fields__} - _TAKEOVER
        unknown = sorted(set(body) - shared - ({"locks"} if is_several else of_one))
        if unknown:
            raise Invalid(f"unknown field {unknown[0]}")
        _check_takeover(body)
        incarnation = body.get("incarnation")
        return cls(
            validation.identifier("lease_id", body.get("lease_id")) or str(uuid.uuid4()),
            validation.text("owner", body.get("owner") or "anonymous"),
            ttl_ms(body.get("ttl_ms", 15_000)),
            whole("wait_ms", body.get("wait_ms", 0), 0, 300_000),
            validation.metadata(body.get("metadata")),
            validation.identifier("session_id", body.get("session_id")),
            None if incarnation is None else validation.text("incarnation", incarnation),
            bool(body.get("takeover")),
            validation.identifier("takeover_of", body.get("takeover_of")),
        )


def _check_takeover(body: Mapping[str, Any]) -> None:
    by_self, of = bool(body.get("takeover")), body.get("takeover_of")
    if not by_self and of is None:
        return
    mode = body.get("mode") or "exclusive"
    if by_self and of is not None:
        raise Invalid("takeover and takeover_of exclude each other")
    if by_self and body.get("incarnation") is None:
        raise Invalid("takeover needs incarnation: a text that every restart of the owner changes")
    if of is not None and of == body.get("lease_id"):
        raise Invalid("takeover_of is the lease_id of this request; the grant needs a new one")
    if body.get("owner") is None:
        raise Invalid("a takeover needs owner: it never crosses owners")
    if mode != "exclusive":
        raise Invalid(f"a takeover takes the whole lock: it is exclusive, and mode {mode} is not")


def _min_token_ceiling() -> int:
    """Highest token that a guard can have seen: an hour above what a counter starts from."""
    return int(time.time() * 1000 - _EPOCH_2025_MS + 3_600_000) * _TOKENS_PER_MS


def ttl_ms(value: object) -> int:
    """Checks a time to live, by the default limits of the real server; raises ``Invalid``."""
    return whole("ttl_ms", value, 100, 3_600_000)


def whole(name: str, value: object, least: int, most: int) -> int:
    """Checks a whole number within bounds; raises ``Invalid``."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise validation.refuse(name, value, f"must be from {least} to {most}")
    return value


@dataclass
class GrantedLease:
    """A live lease. Moments are in milliseconds of the server's clock."""

    wish: Wish
    asked: Asked
    token: int
    granted_at: int
    waited_ms: int
    expires_at: int
    renewals: int = 0

    def info(self, now: int) -> Json:
        """The holder in a refusal."""
        return {
            "owner": self.asked.owner,
            "token": self.token,
            "held_ms": now - self.granted_at,
            "expires_in_ms": max(0, self.expires_at - now),
        }

    def shown(self, now: int) -> Json:
        """The holder of a lock that is shown."""
        asked = self.asked
        more = {
            "session_id": asked.session_id,
            "incarnation": asked.incarnation,
            "metadata": asked.metadata,
            "mode": None if self.wish.mode == "exclusive" else self.wish.mode,
        }
        return {
            "lease_id": asked.lease_id,
            **self.info(now),
            "ttl_ms": asked.ttl_ms,
            "renewals": self.renewals,
            **{name: value for name, value in more.items() if value is not None},
        }


@dataclass
class QueuedRequest:
    """A request in the queue; a retry with its lease id waits at the same entry."""

    wishes: list[Wish]
    asked: Asked
    arrived_at: int
    attached: int = 0
    leases: list[GrantedLease] | None = None
    refusal: Refusal | None = None

    @property
    def is_settled(self) -> bool:
        """``True`` once it is granted or refused."""
        return self.leases is not None or self.refusal is not None


@dataclass
class LockRecord:
    """A lock that was used: its holders, oldest first, and its last ended leases."""

    holders: list[GrantedLease] = field(default_factory=list)
    history: deque[Json] = field(default_factory=lambda: deque(maxlen=8))
    taken_over: set[tuple[str, str]] = field(default_factory=set)

    def admits(self, wish: Wish) -> bool:
        """``True`` if this lease may be held beside those that are."""
        if wish.size is not None:
            return len(self.holders) < wish.size
        is_shared = wish.mode == "shared"
        return all(is_shared and holder.wish.mode == "shared" for holder in self.holders)


@dataclass
class SessionRecord:
    """A session; ``ended`` is the reason once it has ended."""

    session_id: str
    owner: str
    ttl_ms: int
    began_at: int
    expires_at: int
    heartbeats: int = 0
    ended: str | None = None


class EventLog:
    """The newest events, each with a number that rises."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, int, Json]] = deque(maxlen=_EVENTS_MAX)
        self.last = 0

    def publish(self, at: int, event: Json) -> None:
        """Adds an event."""
        self.last += 1
        self._events.append((self.last, at, event))

    def after(self, number: int, now: int) -> list[tuple[int, Json]]:
        """The events behind a number, oldest first."""
        return [
            (at, {**event, "ms_ago": now - moment})
            for at, moment, event in self._events
            if at > number
        ]

    def of(self, lock: str, now: int, most: int, kind: str | None = None) -> list[Json]:
        """The newest events of a lock, newest first."""
        found = [event for _, event in self.after(0, now) if event.get("lock") == lock]
        found = [event for event in found if kind is None or event["kind"] == kind]
        return found[::-1][:most]
