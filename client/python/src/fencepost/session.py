"""A session in the engine: one heartbeat keeps any number of leases alive."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from . import attempts, clock, locks, timing
from .acquire import obtain, obtain_all
from .core import Core, best_effort, shielded
from .errors import (
    FencepostError,
    InternalError,
    Invalid,
    LeaseLost,
    LostReason,
    Unavailable,
    end_reason,
    ended,
)
from .lease import Fence, WarningCallback, extend_until_lost, watch
from .limits import Limits
from .locks import Grant
from .plan import LockOptions
from .queue_position import QueuedCallback
from .timing import Window
from .transport import CALL_TIMEOUT_MS, Failure, Refused, Unusable, within
from .trust import Trust, WorkEnd
from .validation import LOCKS_MAX, refuse

_END_PATIENCE_MS = 5_000
_ENDED = ended("session-ended")


def _is_over(failure: Failure) -> bool:
    """``True`` if the server replied that the session has ended or is unknown."""
    return isinstance(failure, Refused) and failure.problem.code in (
        "session-ended",
        "session-unknown",
    )


def _was_ended_here(failure: Failure) -> bool:
    return (
        _is_over(failure)
        and isinstance(failure, Refused)
        and (failure.problem.raw.get("reason") == "ended")
    )


def _checked(reply: dict[str, Any], session_id: str) -> dict[str, Any]:
    if reply.get("session_id") != session_id or not isinstance(reply.get("expires_in_ms"), int):
        message = f"the reply about session {session_id} is about another: {str(reply)[:200]}"
        raise Unusable(InternalError(message))
    return reply


class SessionLease(Fence):
    """Lease that lives as long as its session, unless it is released, revoked or taken over."""

    ends_alone = False

    def __init__(self, session: HeldSession, grant: Grant) -> None:
        super().__init__(session.core, grant, _BondTrust(session.trust, grant.lock))
        self.session = session
        session.add(self)

    async def release(self) -> None:
        work_end = self.begin_release()
        await shielded(self._start_release(work_end))

    def _start_release(self, work_end: WorkEnd) -> asyncio.Task[Any]:
        self.session.remove(self)
        self.trust.end(ended("released"))
        return self.core.release(self.send_release(work_end))

    def abandon(self) -> None:
        """Does nothing: the lease ends with its session."""

    def drop(self) -> None:
        """Releases the lock in the background."""
        if not self.is_released and self.trust.lost() is None:
            task = self._start_release(self.begin_release())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())


class _BondTrust(Trust):
    """Trust in a lease of a session: that in the session, until the lease alone ends."""

    def __init__(self, session: Trust, lock: str) -> None:
        super().__init__(lock, session.window, Limits())
        self._session = session
        self._undo = session.on_loss(self.lose)

    @property
    def window(self) -> Window:
        return self._session.window

    def lost(self, now: clock.Reading | None = None) -> LostReason | None:
        reason = self._session.lost(now)
        return self._lost if reason is None or self._lost is not None else reason

    def next_end(self, now: clock.Reading | None = None) -> tuple[int, LostReason]:
        return self._session.next_end(now)

    def progress(self) -> None:
        self._session.progress()
        self.check()

    def end(self, reason: LostReason) -> None:
        self._undo()
        super().end(reason)


class HeldSession:
    """A session with its heartbeat, and its leases."""

    def __init__(
        self,
        core: Core,
        session_id: str,
        ttl_ms: int,
        window: Window,
        limits: Limits,
        on_warning: WarningCallback | None,
    ) -> None:
        self.core = core
        self.session_id = session_id
        self._ttl_ms = ttl_ms
        self.trust = Trust(f"session {session_id}", window, limits)
        self._leases: dict[tuple[str, str], SessionLease] = {}
        self._waits = 0
        self._epoch = 0
        self._explained = (0, 0)
        self._probe: asyncio.Task[Any] | None = None
        self.is_ended = False
        heartbeat = extend_until_lost(
            "heartbeat", self.trust, self._beat, _is_over, lambda _: _ENDED
        )
        self._heartbeat = core.spawn(heartbeat)
        self._watch = core.spawn(watch(self.trust, on_warning))
        self.trust.on_loss(lambda _: core.soon(self._heartbeat.cancel))
        core.held.add(self)

    @classmethod
    async def begin(
        cls,
        core: Core,
        ttl_ms: int,
        patience_ms: int,
        metadata: Any,
        limits: Limits,
        on_warning: WarningCallback | None,
    ) -> HeldSession:
        """Begins a session; after a lost reply the request is repeated with the same id.

        Cancel-safe: a session that it may have begun is ended in the background.
        """
        core.check()
        until_ms = clock.now_ms() + patience_ms
        session_id = str(uuid.uuid4())
        sent = attempts.SentChange()
        is_settled, attempt = False, 0
        body = {
            "ttl_ms": ttl_ms,
            "owner": core.settings.owner,
            "session_id": session_id,
            "metadata": metadata,
        }
        path, is_begun = "/v1/sessions", False
        try:
            while True:
                attempt += 1
                sent_at_ms = clock.now_ms()
                try:
                    reply = await core.locks.post(path, body, CALL_TIMEOUT_MS)
                    left_ms = int(_checked(reply, session_id)["expires_in_ms"])
                    window = Window.of(sent_at_ms, left_ms, ttl_ms)
                    is_usable = Window.is_live if is_begun else _is_fresh
                    if is_usable(window, clock.now_ms()):
                        is_settled = True
                        return cls(core, session_id, ttl_ms, window, limits, on_warning)
                    # A heartbeat restores the time to live before the session is used.
                    path, body, is_begun = f"/v1/sessions/{session_id}/heartbeat", {}, True
                    failure: Failure = Unusable(
                        Unavailable(f"replies take too long for a time to live of {ttl_ms} ms")
                    )
                except Failure as refused:
                    failure = refused
                    if not attempts.is_passing(failure):
                        is_settled = not sent.is_unknown and isinstance(failure, Refused)
                        raise sent.error("begin a session", failure) from None
                    sent.record(failure)
                pause_ms = timing.pause_ms(attempt, attempts.jitter())
                if isinstance(failure, Refused):
                    pause_ms = max(pause_ms, int((failure.retry_after or 0) * 1000))
                if clock.now_ms() + pause_ms >= until_ms:
                    is_settled = not sent.has_arrived
                    raise sent.error("begin a session", failure) from None
                await asyncio.sleep(pause_ms / 1000)
        finally:
            if not is_settled:
                undelivered = within(ttl_ms / 1000, _end(core, session_id))
                core.release(best_effort(f"an undelivered session {session_id}", undelivered))

    def check(self) -> None:
        """Raises ``LeaseLost`` if the session cannot be trusted now, ``Invalid`` once ended."""
        loss = self.trust.loss() if self.is_ended else None
        if loss is not None:
            raise loss
        if self.is_ended:
            raise Invalid(f"the session {self.session_id} was ended; begin another one")
        self.trust.check()

    async def end(self) -> int:
        """Ends the session and its leases in one step; returns their number."""
        if self.is_ended:
            self.check()
        self.trust.check_process()
        work_end = WorkEnd(self.trust)
        leases = list(self._leases.values())
        count = len(leases)
        self._stop()
        for trust in [self.trust, *(lease.trust for lease in leases)]:
            trust.end(_ENDED)
        return int(await shielded(self.core.release(self._send_end(work_end, count))))

    async def _send_end(self, work_end: WorkEnd, count: int) -> int:
        try:
            reply = await self.trust.until_expired(_end(self.core, self.session_id))
        except LeaseLost as error:
            if not work_end.excuses(error):
                raise
            return count
        return count if reply is None else int(reply.get("lease_count", count))

    def _stop(self) -> None:
        self.is_ended = True
        self._heartbeat.cancel()
        self._watch.cancel()
        self.core.held.discard(self)
        self._leases.clear()

    def abandon(self) -> None:
        """Ends the session in the background, unless it is ended; for its holder it is lost."""
        reason = self.trust.lost()
        if self.is_ended or (reason is not None and reason.word == "forked"):
            return
        self._stop()
        self.trust.lose(_ENDED)
        end = self.trust.until_expired(_end(self.core, self.session_id))
        self.core.release(best_effort(f"a dropped session {self.session_id}", end))

    async def lock(self, options: LockOptions, on_queued: QueuedCallback | None) -> SessionLease:
        """Acquires a lock that lives as long as the session."""
        self.check()
        with self._waiting(1):
            grant, _ = await obtain(self.core, options, self.session_id, on_queued)
            lease = SessionLease(self, grant)
        lease.check()
        return lease

    async def lock_all(
        self, options: Sequence[LockOptions], on_queued: QueuedCallback | None
    ) -> list[SessionLease]:
        """Acquires all of these locks in one step, or none; 1 to 64, each once."""
        names = [wish.name for wish in options]
        if not 1 <= len(names) <= LOCKS_MAX:
            raise refuse("locks", len(names), f"must be 1 to {LOCKS_MAX} locks")
        if len(set(names)) < len(names):
            raise refuse("locks", ", ".join(names), "must each be there once")
        self.check()
        wishes = [{"lock": wish.name, **_kind(wish)} for wish in options]
        request = {
            "locks": wishes,
            "ttl_ms": self._ttl_ms,
            "owner": self.core.settings.owner,
            "metadata": options[0].metadata,
            "session_id": self.session_id,
            "incarnation": self.core.settings.incarnation,
        }
        with self._waiting(len(wishes)):
            grants = await obtain_all(
                self.core, request, options[0].wait_ms, options[0].patience_ms, on_queued
            )
            leases = [SessionLease(self, grant) for grant in grants]
        try:
            for lease in leases:
                lease.check()
        except FencepostError:
            for lease in leases:
                lease.drop()
            raise
        return leases

    @contextlib.contextmanager
    def _waiting(self, count: int) -> Iterator[None]:
        """Counts requests, one a lock, while they are sent.

        Marks the session as lost if their refusal says so: the heartbeat may notice later.
        """
        self._waits, self._epoch = self._waits + count, self._epoch + 1
        try:
            yield
        except LeaseLost as error:
            if error.ended_by == "session-ended":
                self.trust.lose(_ENDED)
            raise
        finally:
            self._waits, self._epoch = self._waits - count, self._epoch + 1

    def add(self, lease: SessionLease) -> None:
        """Records a lease of this session."""
        self._leases[lease.grant.lock, lease.grant.lease_id] = lease
        self._epoch += 1

    def remove(self, lease: SessionLease) -> None:
        """Records that this lease alone has ended."""
        self._leases.pop((lease.grant.lock, lease.grant.lease_id), None)
        self._epoch += 1

    async def _beat(self) -> None:
        epoch, expected = self._epoch, len(self._leases) + self._waits
        sent_at_ms = clock.now_ms()
        timeout_ms = self.trust.window.reply_timeout_ms(sent_at_ms)
        path = f"/v1/sessions/{self.session_id}/heartbeat"
        reply = _checked(await self.core.locks.post(path, {}, timeout_ms), self.session_id)
        self.trust.extend(Window.of(sent_at_ms, int(reply["expires_in_ms"]), self._ttl_ms))
        # The server may count grants that are not released yet. A surplus is explained once every
        # lease was found live, until the client's own leases change. A deficit never is.
        surplus = int(reply.get("lease_count", expected)) - expected
        explained = self._explained[1] if self._explained[0] == epoch else 0
        if surplus != explained and (self._probe is None or self._probe.done()):
            self._probe = self.core.spawn(self._probe_leases(epoch, surplus))

    async def _probe_leases(self, epoch: int, surplus: int) -> None:
        """Finds the lease that has ended. A renewal has no effect on a lease of a session."""
        all_live = True
        for lease in list(self._leases.values()):
            grant = lease.grant
            try:
                await locks.renew(self.core.locks, grant.lock, grant.lease_id, CALL_TIMEOUT_MS)
            except Failure as failure:
                all_live = False
                if not isinstance(failure, Refused) or failure.problem.code != "lease-lost":
                    continue
                reason = end_reason(failure.problem)
                if reason == "session-ended":
                    return self.trust.lose(_ENDED)
                self.remove(lease)
                lease.trust.lose(ended(reason))
        if all_live and epoch == self._epoch and surplus > 0:
            self._explained = (epoch, surplus)


def _is_fresh(window: Window, now_ms: int) -> bool:
    return not window.is_worn(now_ms)


def _kind(options: LockOptions) -> dict[str, Any]:
    kind: dict[str, Any] = {} if options.mode == "exclusive" else {"mode": options.mode}
    if options.size is not None:
        kind["size"] = options.size
    if options.min_token is not None:
        kind["min_token"] = options.min_token
    return kind


async def _end(core: Core, session_id: str) -> dict[str, Any] | None:
    """Ends a session; retries for up to 5 s. ``None`` if an attempt of this call ended it."""

    async def send() -> dict[str, Any]:
        path = f"/v1/sessions/{session_id}"
        return (await core.locks.send("DELETE", path, _END_PATIENCE_MS)).json()

    what = f"end session {session_id}"
    return await attempts.until_settled(what, _END_PATIENCE_MS, send, _was_ended_here)
