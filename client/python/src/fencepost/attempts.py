"""Repeated requests: what a failure says about the outcome, and attempts that overlap."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Coroutine
from typing import Any, Callable, TypeVar

from . import clock, timing
from .errors import REPLAYED, FencepostError, InternalError, OutcomeUnknown, is_known
from .transport import Failure, NoReply, NotSent, Refused, Unusable, retrieved

T = TypeVar("T")

#: Most attempts in flight at a time; the next one cancels the oldest.
_UNDER_WAY_MAX = 4


def jitter() -> int:
    """A random number, for the jitter of pauses."""
    return random.getrandbits(32)


def is_outcome_unknown(failure: Failure) -> bool:
    """``True`` if the attempt may have taken effect."""
    if isinstance(failure, Refused):
        problem = failure.problem
        is_plain_504 = problem.status == 504 and not is_known(problem.code)
        return problem.code == "outcome-unknown" or is_plain_504
    return isinstance(failure, NoReply)


def is_passing(failure: Failure) -> bool:
    """``True`` if a retry can succeed."""
    if isinstance(failure, Refused):
        return failure.problem.retryable or failure.problem.status in (408, 429, 502, 503, 504)
    return isinstance(failure, (NotSent, NoReply))


class SentChange:
    """Attempts of one change so far.

    An attempt that may have taken effect is never reported as undone because a retry failed.
    """

    def __init__(self) -> None:
        self._unknown_cause: str | None = None
        self.has_arrived = False

    @property
    def is_unknown(self) -> bool:
        """``True`` if an attempt may have taken effect."""
        return self._unknown_cause is not None

    def record(self, failure: Failure) -> None:
        """Records an attempt that failed."""
        self.has_arrived = self.has_arrived or not isinstance(failure, NotSent)
        if self._unknown_cause is None and is_outcome_unknown(failure):
            self._unknown_cause = str(failure)

    def error(self, what: str, last: Failure) -> FencepostError:
        """Error for the caller if the last attempt failed.

        An unknown outcome of an earlier attempt stays unknown, unless the server recognised the
        retry and replied with the outcome of the first.
        """
        error = last.error(what, changes=True)
        if self._unknown_cause is None:
            return error
        if is_passing(last):
            return self._unknown(what, error)
        if not (isinstance(last, Refused) and last.problem.raw.get(REPLAYED) is True):
            error.stated_outcome = "unknown"
        return error

    def refused_here(self, what: str, error: FencepostError) -> FencepostError:
        """Error for the caller if the client itself refuses the next attempt."""
        return error if self._unknown_cause is None else self._unknown(what, error)

    def _unknown(self, what: str, last: FencepostError) -> OutcomeUnknown:
        why = self._unknown_cause
        return OutcomeUnknown(
            f"{what}: no reply, so the outcome is unknown: {why}; the retry failed: {last}"
        )


async def until_settled(
    what: str,
    patience_ms: int,
    send: Callable[[], Awaitable[T]],
    shows_done: Callable[[Failure], bool],
) -> T | None:
    """Sends a change, and retries it for so long while failures say nothing about its outcome.

    Returns ``None`` if a server received an earlier attempt of this call, and the refusal of a
    later one ``shows_done``.
    """
    until_ms = clock.now_ms() + patience_ms
    sent = SentChange()
    attempt = 0
    while True:
        attempt += 1
        try:
            return await send()
        except Failure as failure:
            if sent.has_arrived and shows_done(failure):
                return None
            pause_ms = timing.pause_ms(attempt, jitter())
            if not is_passing(failure) or clock.now_ms() + pause_ms >= until_ms:
                raise sent.error(what, failure) from None
            sent.record(failure)
        await asyncio.sleep(pause_ms / 1000)


async def until_success(
    start: Callable[[], Coroutine[Any, Any, None]],
    patience_ms: Callable[[], int],
    is_final: Callable[[Failure], bool],
    report: Callable[[int, Failure | None], None],
) -> None:
    """Starts attempts until one succeeds or fails with a failure that is final for all of them.

    The next attempt starts ``patience_ms`` after the previous one if that has no reply yet, and
    after a pause if it failed; a late reply of an earlier one still counts.
    """
    under_way: list[asyncio.Task[None]] = []
    attempt = 0
    try:
        while True:
            attempt += 1
            if len(under_way) == _UNDER_WAY_MAX:
                under_way[0].add_done_callback(retrieved)
                under_way.pop(0).cancel()
            under_way.append(asyncio.ensure_future(start()))
            pause_ms = timing.pause_ms(attempt, jitter())
            for time_ms, is_reply_due in ((patience_ms(), True), (pause_ms, False)):
                task = await _first_of(under_way, time_ms)
                if task is None:
                    if is_reply_due:
                        report(attempt, None)
                    continue
                failure = task.exception()
                if failure is None:
                    return
                if not isinstance(failure, Failure):
                    # Whatever a reply made of it: the next one may be read.
                    failure = Unusable(InternalError(f"an unreadable reply: {failure!r}"))
                elif is_final(failure):
                    raise failure
                report(attempt, failure)
    finally:
        for task in under_way:
            task.cancel()
            task.add_done_callback(retrieved)


async def _first_of(under_way: list[asyncio.Task[None]], time_ms: int) -> Any:
    """Removes and returns the first attempt that has ended; ``None`` after this time."""
    if not under_way:
        await asyncio.sleep(time_ms / 1000)
        return None
    await asyncio.wait(under_way, timeout=time_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
    for at, task in enumerate(under_way):
        if task.done():
            return under_way.pop(at)
    return None
