"""The trust in a lease or a session: until when it may be used, or why it may not."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, Callable, TypeVar

from . import clock, forks
from .clock import Reading
from .errors import DEADLINE, FORKED, FencepostError, LeaseLost, LostReason
from .limits import End, Hold, Limits
from .timing import Window
from .transport import retrieved

log = logging.getLogger("fencepost")

T = TypeVar("T")

LossCallback = Callable[[LostReason], None]


class Trust:
    """Trust in one lease or session, shared with its renewal. Safe to use from every thread.

    A loss is final: no renewal undoes it, because the work that it protected was cancelled.
    """

    def __init__(self, what: str, window: Window, limits: Limits) -> None:
        self.what = what
        self._window = window
        self._hold = Hold.begin(limits, clock.reading())
        self._lost: LostReason | None = None
        # A signal's handler may ask about the lease while the thread that it interrupts does.
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._callbacks: list[LossCallback] = []
        self._is_over = False
        forks.register(self)

    def after_fork(self) -> None:
        """Loses the lease in a forked child; its callbacks are the parent's, and are not called."""
        self._lock = threading.RLock()
        self._callbacks = []
        self._lost = FORKED

    @property
    def window(self) -> Window:
        """Window of the last successful renewal."""
        return self._window

    def lost(self, now: Reading | None = None) -> LostReason | None:
        """Reason why the lease cannot be trusted now; ``None`` if it can. Reads the clock."""
        # Before the mutex: a fork by a C library renews nothing.
        if os.getpid() != self._pid:
            return FORKED
        now = clock.reading() if now is None else now
        with self._lock:
            end_ms, reason = self._hold.next_end(self._window, now)
            is_news = self._lost is None and end_ms <= now.at_ms
            if is_news:
                self._lost = reason
            lost = self._lost
        if is_news:
            self._notify(reason)
        return lost

    def next_end(self, now: Reading | None = None) -> End:
        """The loss that comes next if nothing is renewed or reported."""
        return self._hold.next_end(self._window, clock.reading() if now is None else now)

    def warn_at(self, now: Reading, warned: set[End]) -> tuple[int, End] | None:
        """Moment of the next warning, and the end that it is about."""
        return self._hold.warn_at(self._window, now, warned)

    def remaining_ms(self) -> int:
        """Time for which the lease is trusted from now on; 0 once it is lost."""
        now = clock.reading()
        if self.lost(now) is not None:
            return 0
        return max(0, self.next_end(now)[0] - now.at_ms)

    def check(self) -> None:
        """Raises ``LeaseLost`` if the lease cannot be trusted now."""
        reason = self.lost()
        if reason is not None:
            raise self.error(reason)

    def check_process(self) -> None:
        """Raises ``LeaseLost`` in a forked child: the lease is its parent's."""
        reason = self.lost()
        if reason is not None and reason.word == "forked":
            raise self.error(reason)

    def loss(self) -> LeaseLost | None:
        """The error if the lease is lost; ``None`` if it is live, or its holder ended it."""
        reason = self.lost()
        return None if reason is None or self._is_over else self.error(reason)

    @property
    def is_over(self) -> bool:
        """``True`` once it has ended as it should: that is no loss."""
        return self._is_over

    def error(self, reason: LostReason) -> LeaseLost:
        """The error of this loss."""
        return LeaseLost(f"the lease on {self.what} is lost: {reason}", reason=reason)

    def progress(self) -> None:
        """Records progress of the work; raises ``LeaseLost`` if it comes too late."""
        now = clock.reading()
        if self.lost(now) is None:
            with self._lock:
                self._hold = self._hold.progress(now)
        self.check()

    def extend(self, window: Window) -> bool:
        """Replaces the window after a renewal; ``False`` if the lease is lost."""
        if self.lost() is not None:
            return False
        with self._lock:
            # A reply that overtook a later one must not shorten the trust.
            if self._lost is None and window.deadline_ms >= self._window.deadline_ms:
                self._window = window
            return self._lost is None

    def lose(self, reason: LostReason) -> None:
        """Marks the lease as lost. The first reason stays."""
        with self._lock:
            is_news = self._lost is None
            if is_news:
                self._lost = reason
        if is_news:
            self._notify(reason)

    def end(self, reason: LostReason) -> None:
        """Marks the lease as lost and notifies no callback: its holder ended it."""
        with self._lock:
            self._callbacks.clear()
            self._is_over = self._lost is None
            self._lost = self._lost or reason

    async def until_expired(self, release: Coroutine[Any, Any, T]) -> T:
        """Awaits a release; raises ``LeaseLost`` once the lease has expired: nothing is left."""
        task = asyncio.ensure_future(release)
        try:
            # The heartbeat of a session continues while one of its leases is released.
            while (left_ms := self.window.expires_at_ms - clock.now_ms()) > 0:
                await asyncio.wait({task}, timeout=min(left_ms, clock.SLICE_MS) / 1000)
                if task.done():
                    return task.result()
        finally:
            task.cancel()
            task.add_done_callback(retrieved)
        raise self.error(DEADLINE)

    def on_loss(self, callback: LossCallback) -> Callable[[], None]:
        """Calls back once when the lease is lost, in the thread that notices; returns an undo.

        Called at once if it is lost already.
        """
        with self._lock:
            self._callbacks.append(callback)
            reason = self._lost
        if reason is not None and self._forget(callback):
            callback(reason)

        def undo() -> None:
            self._forget(callback)

        return undo

    def _forget(self, callback: LossCallback) -> bool:
        """Removes a callback; ``False`` if it was called, or removed before."""
        with self._lock:
            is_there = callback in self._callbacks
            if is_there:
                self._callbacks.remove(callback)
        return is_there

    def _notify(self, reason: LostReason) -> None:
        log.warning("the lease on %s is lost: %s", self.what, reason)
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(reason)
            except Exception:
                log.exception("a callback for the loss of %s failed", self.what)


class LossEvent(threading.Event):
    """Set when the lease is lost, and in a forked child at once."""

    def __init__(self, trust: Trust) -> None:
        super().__init__()
        self._trust = trust
        trust.on_loss(lambda _: self.set())
        forks.register(self)

    def after_fork(self) -> None:
        """Begins anew, without the mutex that another thread of the parent may have held."""
        super().__init__()
        if self._trust.loss() is not None:
            self.set()


class WorkEnd:
    """End of the work under a lease or a session, as the client observed it."""

    def __init__(self, trust: Trust, is_live: bool = True) -> None:
        is_live = is_live and trust.lost() is None
        self._deadline_ms = trust.window.deadline_ms if is_live else None

    def excuses(self, error: FencepostError) -> bool:
        """``True`` if the lease ended by its time or by this release, and its work before that.

        A first refusal that arrives before the deadline has another cause (a takeover, a stepped
        clock, a server that lost its memory), and the work may have overlapped with another
        holder's.
        """
        if not isinstance(error, LeaseLost) or self._deadline_ms is None:
            return False
        may_be_done = error.outcome == "unknown"
        if error.code == "session-unknown":
            is_by_time_or_release = may_be_done
        elif error.ended_by == "session-ended":
            reason = (error.problem or {}).get("reason")
            is_by_time_or_release = error.code == "lease-lost" or reason in ("expired", "blocked")
        elif error.ended_by == "superseded":
            # The server has forgotten a release, because others have held the lock since.
            is_by_time_or_release = may_be_done
        else:
            # By the clock, if the release was stopped when the lease had expired.
            is_by_time_or_release = error.reason == "deadline" or error.ended_by == "expired"
        return is_by_time_or_release and (may_be_done or self._deadline_ms <= clock.now_ms())
