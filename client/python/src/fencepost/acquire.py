"""The attempts of one acquire, under one lease id until it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Callable, TypeVar

from . import clock, locks
from .attempts import SentChange, jitter
from .core import Core, best_effort
from .errors import LeaseLost, Unavailable, contended
from .locks import Grant
from .plan import LockOptions, Plan, may_have_granted
from .queue_position import QueuedCallback, report_positions
from .timing import TTL_MS_MAX, Window
from .transport import CALL_TIMEOUT_MS, Failure, Refused, Unusable, retrieved, within

T = TypeVar("T")

#: Longest wait of one request, in ms.
WAIT_MS_MAX = 300_000
#: Age of a waiting request at which the next one is sent: before the first one times out, because
#: the server then removes the queue entry.
_NEXT_AFTER_S = 280.0
#: Time for the next request to arrive, after which the first one is dropped.
_OVERLAP_S = 10.0
#: Pause before the next request is sent again, after one that failed.
_PAUSE_S = 3.0


class Claim:
    """A lease id that may have been granted.

    Leaving the block without ``settle`` releases the grants in the background, so that an acquire
    that failed or was cancelled does not hold the locks until they expire. If a release arrives
    before its acquire, the server records the id as ended.
    """

    def __init__(self, core: Core, names: Sequence[str], ttl_ms: int = TTL_MS_MAX) -> None:
        self._core = core
        self._names = names
        # Life of a grant that is not renewed; a lease of a session lasts as long as that.
        self._ttl_ms = ttl_ms
        self.lease_id = str(uuid.uuid4())
        self._maybe_granted = False

    def __enter__(self) -> Claim:
        return self

    def begin_attempt(self) -> bool:
        """Records that a request is about to be sent; returns whether a grant was possible."""
        before, self._maybe_granted = self._maybe_granted, True
        return before

    def record_failure(self, before: bool, failure: Failure) -> None:
        """Records the failure of a request; ``before`` is the result of ``begin_attempt``."""
        self._maybe_granted = before or may_have_granted(failure)

    def settle(self) -> None:
        """Records that the caller has the grant."""
        self._maybe_granted = False

    async def renew_id(self) -> None:
        """Replaces the lease id after it has ended on one of the locks.

        If the reply that granted several locks was lost, the leases on the others may be live, and
        would block the next request, which has another id: they are released first.
        """
        if self._maybe_granted and len(self._names) > 1:
            for name in self._names:
                try:
                    await locks.release(self._core.locks, name, self.lease_id)
                except LeaseLost:
                    pass
        self.lease_id = str(uuid.uuid4())
        self._maybe_granted = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._maybe_granted:
            for name in self._names:
                release = locks.release(self._core.locks, name, self.lease_id)
                release = within(self._ttl_ms / 1000, release)
                self._core.release(best_effort(f"an undelivered grant of {name}", release))

    @contextlib.contextmanager
    def reporting(self, wait_ms: int, on_queued: QueuedCallback | None) -> Iterator[None]:
        """Reports the positions in the queues while the block waits."""
        if on_queued is None or wait_ms == 0:
            yield
            return
        reports = report_positions(self._core, self._names, lambda: self.lease_id, on_queued)
        task = self._core.spawn(reports)
        try:
            yield
        finally:
            task.cancel()

    def shown(self) -> str:
        """Names of the locks for messages: at most three, and the number of the others."""
        more = len(self._names) - 3
        return ", ".join(self._names[:3]) + (f" and {more} more" if more > 0 else "")


async def _until_granted(claim: Claim, plan: Plan, attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeats ``attempt`` as the plan says; raises the error for the caller."""
    sent = SentChange()
    while True:
        try:
            granted = await attempt()
            claim.settle()
            return granted
        except Failure as failure:
            step = plan.after(failure, clock.now_ms(), jitter())
            if step.action == "fail":
                what = f"acquire {claim.shown()}"
                if isinstance(failure, Refused) and failure.is_held:
                    # A server that replies so says that this lease id does not hold the lock.
                    problem, after = failure.problem, failure.retry_after
                    raise contended(what, problem, after, plan.waited_s()) from None
                raise sent.error(what, failure) from None
            if step.action == "retry":
                sent.record(failure)
        await asyncio.sleep(step.pause_ms / 1000)
        if step.action == "restart":
            sent = SentChange()
            await claim.renew_id()


async def obtain(
    core: Core,
    options: LockOptions,
    session_id: str | None = None,
    on_queued: QueuedCallback | None = None,
) -> tuple[Grant, Window]:
    """Acquires a lock; returns the grant and the window in which it is trusted.

    Cancel-safe: a grant that was not returned is released in the background.
    """
    core.check()
    plan = Plan(clock.now_ms(), options.wait_ms, options.patience_ms)
    ttl_ms = options.ttl_ms if session_id is None else TTL_MS_MAX
    with Claim(core, [options.name], ttl_ms) as claim:
        unconfirmed: list[Grant] = []

        async def attempt() -> tuple[Grant, Window]:
            if unconfirmed and unconfirmed[0].lease_id == claim.lease_id:
                return await _confirm(core, options, unconfirmed[0])
            unconfirmed.clear()
            request = _request(core, options, claim.lease_id, session_id)
            # The time to live in the reply is what remained when the server handled it.
            sent_at_ms = clock.now_ms()
            grant = await _in_turns(
                claim,
                plan,
                lambda wait_ms, timeout_ms: locks.acquire(
                    core.locks, options.name, {**request, "wait_ms": wait_ms}, timeout_ms
                ),
            )
            window = Window.of(sent_at_ms, grant.ttl_ms, options.ttl_ms)
            # The trust in a lease of a session is the trust in its session.
            if session_id is None and window.is_worn(clock.now_ms()):
                unconfirmed.append(grant)
                return await _confirm(core, options, grant)
            return grant, window

        with claim.reporting(options.wait_ms, on_queued):
            return await _until_granted(claim, plan, attempt)


async def obtain_all(
    core: Core,
    request: Mapping[str, Any],
    wait_ms: int,
    patience_ms: int,
    on_queued: QueuedCallback | None = None,
) -> list[Grant]:
    """Acquires all locks of ``request`` or none. Cancel-safe as ``obtain``."""
    core.check()
    plan = Plan(clock.now_ms(), wait_ms, patience_ms)
    with Claim(core, [wish["lock"] for wish in request["locks"]]) as claim:

        async def attempt() -> list[Grant]:
            body = {**request, "lease_id": claim.lease_id}
            return await _in_turns(
                claim,
                plan,
                lambda wait_ms, timeout_ms: locks.acquire_all(
                    core.locks, {**body, "wait_ms": wait_ms}, timeout_ms
                ),
            )

        with claim.reporting(wait_ms, on_queued):
            return await _until_granted(claim, plan, attempt)


def _request(
    core: Core, options: LockOptions, lease_id: str, session_id: str | None
) -> dict[str, Any]:
    return {
        "ttl_ms": options.ttl_ms,
        "owner": core.settings.owner,
        "lease_id": lease_id,
        "metadata": options.metadata,
        "min_token": options.min_token,
        "session_id": session_id,
        # Always sent, so that a later incarnation of this owner can take the lock over.
        "incarnation": core.settings.incarnation,
        "takeover": options.takeover or None,
        "takeover_of": options.takeover_of,
        "mode": None if options.mode == "exclusive" else options.mode,
        "size": options.size,
    }


async def _confirm(core: Core, options: LockOptions, grant: Grant) -> tuple[Grant, Window]:
    """Renews a grant before it is used, because less than half of its window is left: the acquire
    waited in the queue, and the client does not know how much of that preceded the grant."""
    sent_at_ms = clock.now_ms()
    timeout_ms = min(CALL_TIMEOUT_MS, options.ttl_ms * 2)
    renewed = await locks.renew(core.locks, options.name, grant.lease_id, timeout_ms)
    window = Window.of(sent_at_ms, renewed.ttl_ms, options.ttl_ms)
    if not window.is_live(clock.now_ms()):
        message = (
            f"replies take too long for a time to live of {options.ttl_ms} ms: the lease was"
            " granted and renewed, and each time 0.8 of that had passed before the reply arrived;"
            " retry, or ask for a longer time to live"
        )
        raise Unusable(Unavailable(message))
    return renewed, window


async def _in_turns(claim: Claim, plan: Plan, send: Callable[[int, int], Awaitable[T]]) -> T:
    """Sends requests with one lease id in turns until one has its result.

    The server lets a request with the lease id of a waiting one wait at the same queue entry, and
    replies to both. A next request that fails ends nothing: the one before it has the entry.
    """
    tasks: list[asyncio.Task[T]] = []

    def begin() -> asyncio.Task[T]:
        async def one() -> T:
            before = claim.begin_attempt()
            wait_ms = min(plan.wait_ms(), WAIT_MS_MAX)
            try:
                return await send(wait_ms, plan.timeout_ms(wait_ms))
            except Failure as failure:
                claim.record_failure(before, failure)
                raise

        tasks.append(asyncio.ensure_future(one()))
        return tasks[-1]

    try:
        current = begin()
        while plan.wait_ms() > WAIT_MS_MAX:
            if await _ended({current}, _NEXT_AFTER_S):
                return current.result()
            while True:
                following = begin()
                ended = await _ended({current, following}, _OVERLAP_S)
                if current in ended:
                    return current.result()
                if not ended:
                    break
                if following.exception() is None:
                    return following.result()
                if await _ended({current}, _PAUSE_S):
                    return current.result()
            current.cancel()
            current = following
        return await current
    finally:
        for task in tasks:
            task.cancel()
            task.add_done_callback(retrieved)


async def _ended(tasks: set[asyncio.Task[T]], timeout_s: float) -> set[asyncio.Task[T]]:
    done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    return done
