"""The holder's clock, which must never run slow.

On Linux this is ``CLOCK_BOOTTIME``, which also runs while the machine is suspended. Other systems
have the monotonic clock alone. That of macOS runs in suspend; where it does not, a holder that was
suspended finds out late, and the guard refuses its writes all the same.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)

#: Longest single sleep, in milliseconds: timers of the event loop stop in suspend, so a resume is
#: noticed at most this much late. Checks of a lease read the clock themselves.
SLICE_MS = 1_000


@dataclass(frozen=True)
class Reading:
    """A moment, and the total time for which the machine had been suspended until then, in ms."""

    at_ms: int
    suspended_ms: int


def now_ms() -> int:
    """Milliseconds since the machine started, rounded down."""
    if _BOOTTIME is not None:
        return time.clock_gettime_ns(_BOOTTIME) // 1_000_000
    return time.monotonic_ns() // 1_000_000


def reading() -> Reading:
    """Reads the time and the total time in suspend; the latter is 0 where it is not measured."""
    at_ms = now_ms()
    if _BOOTTIME is None:
        return Reading(at_ms, 0)
    for _ in range(8):
        awake_ms = time.monotonic_ns() // 1_000_000
        after_ms = now_ms()
        # Time that passed between the reads must not count as suspend.
        if after_ms - at_ms <= 1:
            break
        at_ms = after_ms
    return Reading(after_ms, max(0, at_ms - awake_ms))


async def sleep_until(moment_ms: int) -> None:
    """Waits until the clock has reached the moment; time in suspend counts."""
    while True:
        left_ms = moment_ms - now_ms()
        if left_ms <= 0:
            return
        await asyncio.sleep(min(left_ms, SLICE_MS) / 1000)
