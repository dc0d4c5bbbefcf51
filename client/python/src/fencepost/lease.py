"""A held lease in the engine: renewed in the background, watched by the local clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Callable

from . import attempts, clock, locks
from .acquire import obtain
from .core import Core, best_effort, shielded
from .errors import FencepostError, Invalid, LeaseLost, LostReason, end_reason, ended
from .limits import End
from .locks import Grant
from .plan import LockOptions
from .queue_position import QueuedCallback
from .timing import Window
from .transport import Failure, Refused
from .trust import Trust, WorkEnd

log = logging.getLogger("fencepost")

#: Callback of a warning: the reason of the coming loss as a text, and the seconds until it.
WarningCallback = Callable[[str, float], None]


class Fence:
    """What may be written under: a grant, and the trust in it. A lease, or one of a session."""

    #: One of a session ends with that.
    ends_alone = True

    def __init__(self, core: Core, grant: Grant, trust: Trust) -> None:
        self.core = core
        self.grant = grant
        self.trust = trust
        self.is_released = False

    def check(self) -> None:
        """Raises ``LeaseLost`` if the lease cannot be trusted now, ``Invalid`` once released."""
        loss = self.trust.loss() if self.is_released else None
        if loss is not None:
            raise loss
        if self.is_released:
            raise Invalid(f"the lease on {self.grant.lock} was released; acquire the lock again")
        self.trust.check()

    def begin_release(self) -> WorkEnd:
        """Marks the lease as released; raises as ``check`` does where there is nothing to send."""
        if self.is_released:
            self.check()
        self.trust.check_process()
        work_end = WorkEnd(self.trust)
        self.is_released = True
        return work_end

    async def send_release(self, work_end: WorkEnd) -> None:
        """Sends the release; a late reply to it is no error if the work ended in time."""
        name = self.grant.lock
        release = locks.release(self.core.locks, name, self.grant.lease_id)
        try:
            await self.trust.until_expired(release)
        except LeaseLost as error:
            if not work_end.excuses(error):
                raise
            log.warning("%s ended before its release had a reply, but its work had ended", name)

    async def release(self) -> None:
        """Releases the lock; continues in the background if the caller is cancelled."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Releases the lock in the background, unless it is released; for its holder it is lost."""
        raise NotImplementedError


class HeldLease(Fence):
    """A lease with its renewal."""

    def __init__(
        self,
        core: Core,
        grant: Grant,
        window: Window,
        options: LockOptions,
        on_warning: WarningCallback | None,
    ) -> None:
        super().__init__(core, grant, Trust(grant.lock, window, options.limits))
        self._ttl_ms = options.ttl_ms
        renewal = extend_until_lost(
            "renewal",
            self.trust,
            self._renew,
            is_lease_lost,
            lambda refusal: ended(end_reason(refusal.problem)),
        )
        self._renewal = core.spawn(renewal)
        self._watch = core.spawn(watch(self.trust, on_warning))
        self.trust.on_loss(lambda _: core.soon(self._renewal.cancel))
        core.held.add(self)

    @classmethod
    async def obtain(
        cls,
        core: Core,
        options: LockOptions,
        on_warning: WarningCallback | None = None,
        on_queued: QueuedCallback | None = None,
    ) -> HeldLease:
        """Acquires a lock, and begins to renew it."""
        if options.takeover and not core.settings.is_owner_given:
            raise Invalid(
                f"the lock {options.name} cannot be taken over as {core.settings.owner}: a takeover"
                " needs an owner that stays the same after a restart; set owner (FENCE_OWNER)"
            )
        grant, window = await obtain(core, options, on_queued=on_queued)
        return cls(core, grant, window, options, on_warning)

    def _stop(self) -> None:
        self._renewal.cancel()
        self._watch.cancel()
        self.core.held.discard(self)

    async def release(self) -> None:
        work_end = self.begin_release()
        self._stop()
        self.trust.end(ended("released"))
        await shielded(self.core.release(self.send_release(work_end)))

    def abandon(self) -> None:
        reason = self.trust.lost()
        self._stop()
        if self.is_released or (reason is not None and reason.word in ("ended", "forked")):
            return
        self.is_released = True
        self.trust.lose(ended("released"))
        release = locks.release(self.core.locks, self.grant.lock, self.grant.lease_id)
        release = self.trust.until_expired(release)
        self.core.release(best_effort(f"a dropped lease on {self.grant.lock}", release))

    async def _renew(self) -> None:
        sent_at_ms = clock.now_ms()
        timeout_ms = self.trust.window.reply_timeout_ms(sent_at_ms)
        grant = await locks.renew(self.core.locks, self.grant.lock, self.grant.lease_id, timeout_ms)
        if grant.token != self.grant.token:
            # A store that lost its memory granted a late repeat of the acquire as a new lease:
            # another client may have held the lock in between.
            return self.trust.lose(ended("superseded"))
        self.trust.extend(Window.of(sent_at_ms, grant.ttl_ms, self._ttl_ms))


def is_lease_lost(failure: Failure) -> bool:
    """``True`` if the server replied that the lease has ended."""
    return isinstance(failure, Refused) and failure.problem.code == "lease-lost"


async def extend_until_lost(
    what: str,
    trust: Trust,
    extend: Callable[[], Coroutine[Any, Any, None]],
    is_final: Callable[[Failure], bool],
    loss: Callable[[Refused], LostReason],
) -> None:
    """Extends at a third of the time to live, until a refusal that ``is_final``: the ``loss``."""
    while True:
        await clock.sleep_until(trust.window.renew_at_ms)
        try:
            await attempts.until_success(
                extend,
                lambda: trust.window.renewal_patience_ms(clock.now_ms()),
                is_final,
                lambda attempt, why: _report(what, trust, attempt, why),
            )
        except Refused as refusal:
            return trust.lose(loss(refusal))


def _report(what: str, trust: Trust, attempt: int, why: Failure | None) -> None:
    """Logs a failed renewal: the first at warning level, its retries at debug level."""
    level = logging.WARNING if attempt == 1 else logging.DEBUG
    left_ms = trust.window.remaining_ms(clock.now_ms())
    reason = why or "no reply yet"
    log.log(level, "a %s of %s failed, %d ms left: %s", what, trust.what, left_ms, reason)


async def watch(trust: Trust, on_warning: WarningCallback | None = None) -> None:
    """Notices the loss by the clock, and gives warnings, until the lease is lost."""
    warned: set[End] = set()
    while trust.lost() is None:
        now = clock.reading()
        end_ms = trust.next_end(now)[0]
        warning = trust.warn_at(now, warned) if on_warning is not None else None
        if warning is not None and on_warning is not None and warning[0] <= now.at_ms:
            warned = {end for end in warned if end[0] > now.at_ms} | {warning[1]}
            moment_ms, reason = warning[1]
            try:
                on_warning(str(reason), (moment_ms - now.at_ms) / 1000)
            except Exception:
                log.exception("the warning callback of %s failed", trust.what)
            continue
        wake_ms = min(end_ms, warning[0]) if warning is not None else end_ms
        # A renewal or a report may move the end meanwhile: it is read again.
        await clock.sleep_until(min(wake_ms, now.at_ms + clock.SLICE_MS))


class Loss:
    """Cancels the task that runs the body of a block when one of these leases is lost.

    The cancellation becomes ``LeaseLost`` at the end of the block. One that came from elsewhere
    stays a cancellation.
    """

    def __init__(self, trusts: Sequence[Trust]) -> None:
        self._trusts = trusts
        task = asyncio.current_task()
        if task is None:
            raise Invalid("a lease is entered in a task of an event loop")
        self._task = task
        self._before = _cancelling(task)
        self._is_cancelled = False
        self._is_over = False
        loop = asyncio.get_running_loop()

        def cancel_soon(_: LostReason) -> None:
            # In the loop's next turn: a task that notices the loss gets the error of its check.
            loop.call_soon_threadsafe(self._cancel)

        self._undo = [trust.on_loss(cancel_soon) for trust in trusts]

    def _cancel(self) -> None:
        if not self._is_over and not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()

    def end(self, error: BaseException | None) -> LeaseLost | None:
        """Ends the block; returns the loss that replaces its outcome, if there is one."""
        self._is_over = True
        for undo in self._undo:
            undo()
        is_own = self._is_cancelled and _uncancel(self._task) <= self._before
        if error is not None and not (is_own and isinstance(error, asyncio.CancelledError)):
            return None
        return next(filter(None, (trust.loss() for trust in self._trusts)), None)


def _cancelling(task: Any) -> int:
    """Number of cancellations that the task has yet to finish; 0 before Python 3.11."""
    return int(task.cancelling()) if hasattr(task, "cancelling") else 0


def _uncancel(task: Any) -> int:
    return int(task.uncancel()) if hasattr(task, "uncancel") else 0


async def leave(fence: Fence, is_failed: bool) -> LeaseLost | None:
    """Releases at the end of a block; returns the loss if the lease had ended by then.

    Any other failure is logged: the lease expires by itself. If the body ``is_failed``, its error
    is not masked.
    """
    name = fence.grant.lock
    try:
        if not fence.is_released:
            await fence.release()
    except LeaseLost as error:
        if not is_failed:
            return error
        log.debug("the body failed, and %s", error)
    except FencepostError as error:
        log.warning("%s was not released; it expires by itself: %s", name, error)
    return None
