"""Elections: the leader is the holder of a lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from . import clock, locks, timing
from .attempts import jitter
from .core import Core
from .errors import (
    Contended,
    FencepostError,
    LeaseLost,
    OutcomeUnknown,
    Unavailable,
    after_wait,
)
from .events import ENDS, EventStream
from .lease import HeldLease, WarningCallback
from .plan import LockOptions
from .queue_position import QueuedCallback

#: Time of one round of a campaign, in ms: a candidate whose server vanished without closing the
#: connection notices only at its end.
_ROUND_MS = 60_000
#: Period of the queries without an event: the server does not promise one for every expiry.
_REFRESH_S = 60.0


@dataclass(frozen=True)
class Leader:
    """Leader of an election, as an observer sees it; may be out of office by now.

    ``token`` numbers the term: it is higher than that of every earlier one.
    """

    owner: str
    token: int
    lease_id: str
    held_ms: int
    metadata: Any = None


async def campaign(
    core: Core,
    options: LockOptions,
    wait_ms: int | None,
    on_warning: WarningCallback | None,
    on_queued: QueuedCallback | None = None,
) -> HeldLease:
    """Waits until this client is the leader, for ever unless ``wait_ms`` bounds it.

    Candidates are elected in the order of the queue; each queues anew every minute. Cancel-safe.
    """
    begin_ms = clock.now_ms()
    until_ms = None if wait_ms is None else begin_ms + wait_ms
    failures = 0
    while True:
        left_ms = _ROUND_MS if until_ms is None else max(0, until_ms - clock.now_ms())
        patience_ms = 0 if until_ms is None else options.patience_ms
        attempt = options.waiting(min(left_ms, _ROUND_MS), patience_ms)
        try:
            return await HeldLease.obtain(core, attempt, on_warning, on_queued)
        except FencepostError as error:
            is_passing = isinstance(error, (Contended, Unavailable, OutcomeUnknown, LeaseLost))
            if not is_passing or (until_ms is not None and clock.now_ms() >= until_ms):
                if isinstance(error, Contended) and wait_ms:
                    raise after_wait(error, (clock.now_ms() - begin_ms) / 1000) from None
                raise
            failures = 1 if isinstance(error, Contended) else failures + 1
        await asyncio.sleep(timing.pause_ms(failures, jitter()) / 1000)


async def leader(core: Core, name: str) -> Leader | None:
    """The leader when the server replied; ``None`` if the office is vacant."""
    core.check()
    shown = await locks.show(core.locks, name)
    holder = shown.holder
    if shown.state != "held" or holder is None:
        return None
    return Leader(holder.owner, holder.token, holder.lease_id, holder.held_ms, holder.metadata)


async def observe(core: Core, name: str) -> AsyncIterator[Leader | None]:
    """Yields the leader, or ``None`` for a vacant office: the present state, then each change.

    Terms that were over before the observer asked are left out. While the server is unreachable
    nothing is yielded.
    """
    # Opened before the first query, so that no change is missed in between.
    async with await EventStream.open(core, None, name, None) as stream:
        events = stream.__aiter__()
        known: int | None = -1
        pending: asyncio.Future[Any] | None = None
        try:
            while True:
                try:
                    now = await leader(core, name)
                except (Unavailable, OutcomeUnknown):
                    await asyncio.sleep(0.5)
                    continue
                token = None if now is None else now.token
                if token != known:
                    known = token
                    yield now
                is_news = False
                while not is_news:
                    pending = pending or asyncio.ensure_future(events.__anext__())
                    done, _ = await asyncio.wait({pending}, timeout=_REFRESH_S)
                    if not done:
                        break
                    event, pending = pending.result(), None
                    is_news = event.kind in ENDS or event.kind in ("granted", "gap", "resumed")
        finally:
            if pending is not None:
                pending.cancel()
                await asyncio.wait({pending})
