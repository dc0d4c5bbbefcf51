"""The rules of the fake lock server, in memory, under one mutex."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Callable

from .. import clock
from .records import Asked, EventLog, GrantedLease, Json, LockRecord, QueuedRequest, Wish
from .replies import Refusal
from .sessions import Sessions

#: Period in which a waiting request looks at expiries and at its connection, in seconds.
_PERIOD_S = 0.02


class Disconnected(Exception):
    """The client of a waiting request has left."""


class LockTable:
    """All locks. Each lease ends once, and each grant has a higher token than the ones before."""

    def __init__(self) -> None:
        #: Guards everything here; notified at each change.
        self.changed = threading.Condition()
        self.events = EventLog()
        self.sessions = Sessions(self)
        self._records: dict[str, LockRecord] = {}
        self._queue: list[QueuedRequest] = []
        self._ended: dict[tuple[str, str], Json] = {}
        self._last_token = 0

    def acquire(
        self, wishes: Sequence[Wish], asked: Asked, has_left: Callable[[], bool]
    ) -> list[GrantedLease]:
        """Grants all of these locks in one step, waits, or raises ``Refusal``."""
        until = clock.now_ms() + asked.wait_ms
        with self.changed:
            self.settle()
            held = self._retried(wishes, asked)
            if held is not None:
                return held
            request = self._joined(wishes, asked)
            request.attached += 1
            try:
                self._wait(request, until, has_left)
            finally:
                request.attached -= 1
                if not request.is_settled and request.attached == 0:
                    self._leave(request)
            if request.refusal is not None:
                raise request.refusal
            leases = request.leases or []
            if request.attached == 0 and has_left():
                for lease in leases:
                    self.end(lease, "released")
                raise Disconnected
            return leases

    def _retried(self, wishes: Sequence[Wish], asked: Asked) -> list[GrantedLease] | None:
        """The leases of an earlier request with this id; raises ``Refusal`` for its other ends."""
        found = []
        missing = []
        for wish in wishes:
            self._check_ended(wish.lock, asked.lease_id)
            lease = self._live(wish.lock, asked.lease_id)
            if lease is None:
                missing.append(wish.lock)
                continue
            self._check_owner(wish.lock, asked, lease.asked)
            found.append(lease)
        if found and missing:
            raise self._lost(missing[0], {"reason": "superseded"})
        return found or None

    @staticmethod
    def _check_owner(lock: str, asked: Asked, known: Asked) -> None:
        if known.owner != asked.owner:
            detail = f"this lease_id on lock {lock} belongs to a request of {known.owner}"
            raise Refusal("lease-id-conflict", detail)

    def _joined(self, wishes: Sequence[Wish], asked: Asked) -> QueuedRequest:
        """The request in the queue that has this lease id, or a new one, granted if it can be."""
        names = [wish.lock for wish in wishes]
        for queued in self._queue:
            if queued.asked.lease_id != asked.lease_id:
                continue
            for wish in queued.wishes:
                if wish.lock in names:
                    self._check_owner(wish.lock, asked, queued.asked)
            if queued.wishes == list(wishes):
                return queued
        self.sessions.check(asked)
        for wish in wishes:
            self._check_kind(wish)
        request = QueuedRequest(list(wishes), asked, clock.now_ms())
        is_first = self._has_taken_over(wishes[0], asked)
        self._queue.insert(0 if is_first else len(self._queue), request)
        self.settle()
        return request

    def _wait(self, request: QueuedRequest, until: int, has_left: Callable[[], bool]) -> None:
        is_first = request.attached == 1
        while not request.is_settled:
            now = clock.now_ms()
            if has_left():
                raise Disconnected
            if now >= until:
                raise self._held(request, now)
            if is_first:
                self._publish_wait("queued", request)
                is_first = False
            self.changed.wait(min(_PERIOD_S, (until - now) / 1000))
            self.settle()

    def _leave(self, request: QueuedRequest) -> None:
        self._queue.remove(request)
        if request.asked.wait_ms > 0:
            self._publish_wait("left", request)
        self.settle()
        self.changed.notify_all()

    def _publish_wait(self, kind: str, request: QueuedRequest) -> None:
        for wish in request.wishes:
            lease_id, owner = request.asked.lease_id, request.asked.owner
            self.publish({"kind": kind, "lock": wish.lock, "lease_id": lease_id, "owner": owner})

    def _held(self, request: QueuedRequest, now: int) -> Refusal:
        wishes = request.wishes
        wish = next(
            (each for each in wishes if not self._record(each.lock).admits(each)), wishes[0]
        )
        holders = sorted(self._record(wish.lock).holders, key=lambda holder: holder.expires_at)
        waiters = [each for each in self._waiters(wish.lock) if each is not request]
        members: Json = {"queue_length": len(waiters)}
        if len(wishes) > 1:
            members["lock"] = wish.lock
        detail = f"lock {wish.lock} is held"
        if holders:
            holder = members["holder"] = holders[0].info(now)
            detail += f" by {holder['owner']} with token {holder['token']}"
        return Refusal("lock-held", detail, **members)

    def _check_kind(self, wish: Wish) -> None:
        holders = [holder.wish for holder in self._record(wish.lock).holders]
        waiting = [each for request in self._waiters(wish.lock) for each in request.wishes]
        for used in [*holders, *waiting]:
            if used.lock == wish.lock and used.kind != wish.kind:
                detail = f"lock {wish.lock} is in use as {used.kind}"
                raise Refusal("lock-kind-conflict", detail)

    def _has_taken_over(self, wish: Wish, asked: Asked) -> bool:
        """Ends the lease of an earlier incarnation, if the request asks for that."""
        record = self._record(wish.lock)
        if not record.holders or not (asked.takeover or asked.takeover_of):
            return False
        holder = record.holders[0]
        held = holder.asked
        if holder.wish.mode != "exclusive" or asked.takeover_of not in (None, held.lease_id):
            return False
        why = None
        if asked.takeover and (asked.owner, asked.incarnation) in record.taken_over:
            why = "was-taken-over"
        elif held.owner != asked.owner:
            why = "other-owner"
        elif asked.takeover_of is None and held.incarnation is None:
            why = "no-incarnation"
        may_wait = why in ("other-owner", "no-incarnation")
        if may_wait and asked.wait_ms > 0 and asked.takeover:
            return False
        if why is not None:
            detail = f"lock {wish.lock} is held by {held.owner} and was not taken over: {why}"
            info = holder.info(clock.now_ms())
            raise Refusal("takeover-refused", detail, why=why, holder=info)
        is_earlier = asked.takeover and held.incarnation != asked.incarnation
        if not is_earlier and asked.takeover_of != held.lease_id:
            return False
        if held.incarnation is not None:
            record.taken_over.add((held.owner, held.incarnation))
        self.end(holder, "superseded")
        return True

    def settle(self) -> None:
        """Ends what has expired, and grants what can be, in the order of arrival."""
        now = clock.now_ms()
        self.sessions.expire(now)
        for record in list(self._records.values()):
            for lease in list(record.holders):
                if lease.asked.session_id is None and lease.expires_at <= now:
                    self.end(lease, "expired")
        blocked: set[str] = set()
        for request in list(self._queue):
            session_end = self.sessions.refusal(request.asked)
            is_free = all(
                wish.lock not in blocked and self._record(wish.lock).admits(wish)
                for wish in request.wishes
            )
            if session_end is not None:
                request.refusal = session_end
            elif is_free:
                request.leases = [self._grant(wish, request, now) for wish in request.wishes]
            else:
                blocked.update(wish.lock for wish in request.wishes)
                continue
            self._queue.remove(request)
            self.changed.notify_all()

    def _grant(self, wish: Wish, request: QueuedRequest, now: int) -> GrantedLease:
        asked = request.asked
        self._last_token = token = max(self._last_token, wish.min_token) + 1
        expires_at = self.sessions.expiry(asked) or now + asked.ttl_ms
        lease = GrantedLease(wish, asked, token, now, now - request.arrived_at, expires_at)
        self._record(wish.lock).holders.append(lease)
        self.publish(
            {
                "kind": "granted",
                **self._lease_event(lease),
                "ttl_ms": asked.ttl_ms,
                "waited_ms": lease.waited_ms,
            }
        )
        return lease

    def end(self, lease: GrantedLease, reason: str, why: str | None = None) -> None:
        """Ends a live lease; the caller settles afterwards."""
        now = clock.now_ms()
        record = self._record(lease.wish.lock)
        record.holders.remove(lease)
        known = {"why": why} if why is not None else {}
        shown = self._lease_event(lease)
        held_ms = now - lease.granted_at
        record.history.appendleft(
            {**shown, "reason": reason, "at": now, "held_ms": held_ms, **known}
        )
        self._ended[lease.wish.lock, lease.asked.lease_id] = {"reason": reason, **known}
        text = {"text": why} if why is not None else {}
        self.publish({"kind": reason, **shown, "held_ms": held_ms, **text})

    @staticmethod
    def _lease_event(lease: GrantedLease) -> Json:
        asked = lease.asked
        return {
            "lock": lease.wish.lock,
            "lease_id": asked.lease_id,
            "token": lease.token,
            "owner": asked.owner,
        }

    def renew(self, lock: str, lease_id: str, ttl_ms: int | None) -> GrantedLease:
        """Restores the time to live of a live lease; that of a session stays as it is."""
        with self.changed:
            self.settle()
            lease = self.must_live(lock, lease_id)
            if lease.asked.session_id is None:
                lease.expires_at = clock.now_ms() + (ttl_ms or lease.asked.ttl_ms)
                lease.renewals += 1
            elif ttl_ms is not None:
                raise Refusal("session-conflict", f"the lease on {lock} is of a session")
            return lease

    def release(self, lock: str, lease_id: str) -> Json:
        """Ends a live lease; an id that is unknown will not be granted."""
        with self.changed:
            self.settle()
            try:
                lease = self.must_live(lock, lease_id)
            except Refusal:
                self._ended.setdefault((lock, lease_id), {"reason": "released"})
                self._end_waits(lock, lease_id)
                raise
            self.end(lease, "released")
            self.settle()
            return self._ended_reply(lease, "released")

    def _end_waits(self, lock: str, lease_id: str) -> None:
        """Refuses the waiting requests with this lease id: it will not be granted."""
        for request in self._waiters(lock):
            if request.asked.lease_id == lease_id:
                request.refusal = self._lost(lock, self._ended[lock, lease_id])
                self._leave(request)

    def revoke(self, lock: str, why: str, lease_id: str | None = None) -> Json:
        """Ends every live lease of a lock, or this one."""
        with self.changed:
            self.settle()
            if lease_id is not None:
                leases = [self.must_live(lock, lease_id)]
            else:
                leases = list(self._record(lock).holders)
            if not leases:
                raise Refusal("not-found", f"lock {lock} is not held")
            for lease in leases:
                self.end(lease, "revoked", why)
            self.settle()
            first, *others = [self._ended_reply(lease, "revoked") for lease in leases]
            return {**first, "others": others} if others else first

    def expire(self, lock: str) -> None:
        """Ends the live leases of a lock as if they had not been renewed."""
        with self.changed:
            for lease in list(self._record(lock).holders):
                self.end(lease, "expired")
            self.settle()

    @staticmethod
    def _ended_reply(lease: GrantedLease, reason: str) -> Json:
        lock, lease_id = lease.wish.lock, lease.asked.lease_id
        return {"lock": lock, "lease_id": lease_id, "token": lease.token, "reason": reason}

    def must_live(self, lock: str, lease_id: str) -> GrantedLease:
        """The live lease with this id; raises ``Refusal`` if there is none."""
        lease = self._live(lock, lease_id)
        if lease is not None:
            return lease
        self._check_ended(lock, lease_id)
        reason = "superseded" if self._record(lock).holders else "expired"
        raise self._lost(lock, {"reason": reason})

    def _check_ended(self, lock: str, lease_id: str) -> None:
        if (lock, lease_id) in self._ended:
            raise self._lost(lock, self._ended[lock, lease_id])

    @staticmethod
    def _lost(lock: str, end: Json) -> Refusal:
        return Refusal("lease-lost", f"the lease on lock {lock} has ended: {end['reason']}", **end)

    def _live(self, lock: str, lease_id: str) -> GrantedLease | None:
        for holder in self._record(lock).holders:
            if holder.asked.lease_id == lease_id:
                return holder
        return None

    def leases_of(self, session_id: str) -> list[GrantedLease]:
        """The live leases of a session."""
        records = self._records.values()
        holders = [holder for record in records for holder in record.holders]
        return [holder for holder in holders if holder.asked.session_id == session_id]

    def publish(self, event: Json) -> None:
        """Adds an event, and wakes what waits."""
        self.events.publish(clock.now_ms(), event)
        self.changed.notify_all()

    def _record(self, lock: str) -> LockRecord:
        return self._records.setdefault(lock, LockRecord())

    def _waiters(self, lock: str) -> list[QueuedRequest]:
        return [each for each in self._queue if any(wish.lock == lock for wish in each.wishes)]

    def show(self, lock: str) -> Json:
        """State, holders, queue and history of a lock."""
        with self.changed:
            self.settle()
            now = clock.now_ms()
            record, waiters = self._record(lock), self._waiters(lock)
            held = [holder.shown(now) for holder in record.holders]
            more: Json = {"holder": held[0]} if held else {}
            if len(held) > 1:
                more["also_held"] = held[1:]
            if held and record.holders[0].wish.size is not None:
                more["size"] = record.holders[0].wish.size
            ended = [{**end, "ended_ms_ago": now - end["at"]} for end in record.history]
            return {
                "lock": lock,
                "state": "held" if held else "free",
                **more,
                "lease_count": len(held),
                "queue_length": len(waiters),
                "queue": [
                    {
                        "lease_id": waiter.asked.lease_id,
                        "owner": waiter.asked.owner,
                        "waiting_ms": now - waiter.arrived_at,
                        "mode": waiter.wishes[0].mode,
                    }
                    for waiter in waiters
                ],
                "history": ended,
                "events": self.events.of(lock, now, 50),
                "refusals": self.events.of(lock, now, 16, "refused"),
            }

    def page(self, prefix: str, after: str, limit: int) -> Json:
        """Held locks in the order of their names."""
        with self.changed:
            self.settle()
            now = clock.now_ms()
            held = {name: record for name, record in self._records.items() if record.holders}
            names = sorted(name for name in held if name.startswith(prefix) and name > after)
            lines = []
            for name in names[:limit]:
                first = min(held[name].holders, key=lambda holder: holder.expires_at)
                count = len(self._waiters(name))
                lines.append({"lock": name, **first.info(now), "queue_length": count})
            more = {"next_after": names[limit - 1]} if len(names) > limit else {}
            return {"locks": lines, **more}
