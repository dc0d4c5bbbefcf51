"""Position of a waiting acquire in the queues of its locks, for people to see."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable

from . import locks
from .core import Core
from .errors import FencepostError
from .shown import LeaseHolder

log = logging.getLogger("fencepost")

#: Seconds until the first query, and between the others.
_FIRST_S = 0.2
_PERIOD_S = 1.0


@dataclass(frozen=True)
class QueuePosition:
    """Position of a waiting request: 1 is granted next, 0 is not among the first 100.

    ``length`` counts the waiters; ``holder`` is ``None`` if the lock was free at that moment. A
    request for several locks has a position in the queue of each.
    """

    lock: str
    position: int
    length: int
    holder: LeaseHolder | None


#: Callback of a position, once a second and if it has changed, for each lock of the request.
QueuedCallback = Callable[[QueuePosition], None]


async def report_positions(
    core: Core, names: Sequence[str], lease_id: Callable[[], str], report: QueuedCallback
) -> None:
    """Reports the positions of the request with this lease id until it is cancelled."""
    known: dict[str, tuple[int, int]] = {}
    pause_s = _FIRST_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = _PERIOD_S
        for lock in names:
            try:
                shown = await locks.show(core.locks, lock)
            except FencepostError as error:
                # A query that fails says nothing about the acquire.
                log.debug("the position in the queue of %s is unknown: %s", lock, error)
                continue
            waiters = [waiter.lease_id for waiter in shown.queue]
            position = waiters.index(lease_id()) + 1 if lease_id() in waiters else 0
            if known.get(lock) == (position, shown.queue_length):
                continue
            known[lock] = (position, shown.queue_length)
            try:
                report(QueuePosition(lock, position, shown.queue_length, shown.holder))
            except Exception:
                log.exception("the callback of the queue position of %s failed", lock)
