"""The asynchronous client: ``async with AsyncClient() as client``. One event loop a client."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Iterable
from types import TracebackType
from typing import Any, Callable, Literal, TypeVar, overload

from . import election, forks, locks, objects, validation
from .base import (
    TTL_S,
    ClientBase,
    LeasesView,
    LeaseView,
    Options,
    RequestBase,
    SessionOptions,
    SessionView,
    Trusted,
    several,
)
from .core import Core
from .decorated import check_async
from .election import Leader
from .errors import Contended, FencepostError, Invalid, LeaseLost
from .events import EventStream
from .lease import Fence, HeldLease, Loss, WarningCallback, leave
from .limits import Limits
from .objects import Applied, Object
from .plan import PATIENCE_S
from .queue_position import QueuedCallback
from .session import HeldSession
from .shown import LockPage, LockState, Revocation
from .validation import Seconds

log = logging.getLogger("fencepost")

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


class _Block:
    """A block whose task is cancelled when what it holds is lost."""

    _loss: Loss | None = None

    def _enter(self, *held: Trusted) -> None:
        if self._loss is not None:
            raise Invalid("this lease is entered already; a lease has one block at a time")
        for each in held:
            each.check()
        self._loss = Loss([each._trust for each in held])

    def _exit(self, error: BaseException | None) -> LeaseLost | None:
        loss, self._loss = self._loss, None
        return loss.end(error) if loss is not None else None


class _LossEvent(asyncio.Event):
    """Set when the lease is lost, and in a forked child at once."""

    def __init__(self, fence: Fence) -> None:
        super().__init__()
        self._fence = fence
        fence.trust.on_loss(lambda _: fence.core.soon(self.set))
        forks.register(self)

    def after_fork(self) -> None:
        if self._fence.trust.loss() is not None:
            # The loop of the parent, which may be closed, has those that wait.
            with contextlib.suppress(RuntimeError):
                self.set()


class AsyncLease(LeaseView, _Block):
    """A live lease, renewed by a task of the event loop until it is released.

    As a context manager it releases at the end of the block. If it is lost before, the block's
    task is cancelled and the block raises ``LeaseLost``, unless the body raised its own error. A
    loop that is blocked renews nothing: the lease is then lost, and ``check`` says so at once.
    """

    def __init__(self, fence: Fence, session: AsyncSession | None = None) -> None:
        super().__init__(fence, session)
        self.lost: asyncio.Event = _LossEvent(fence)
        """Set when the lease is lost; ``await lease.lost.wait()``."""

    async def release(self) -> None:
        """Releases the lock; retries for up to 5 s, and no longer than the lease lasts.

        Continues in the background if cancelled. A lease that is live when this is called and
        expires before a reply arrives is no error; nor is a retry that finds the next holder.
        Raises ``LeaseLost`` if the lease had ended before: unfenced effects of the work may
        overlap with another holder's. ``Invalid`` if it was released before.
        """
        await self._fence.release()

    async def get(self, key: str) -> Object | None:
        """Reads an object under this lease; ``None`` if there is none. Raises the guard's mark."""
        return await objects.get(self._fence.core, key, self._fence)

    async def put(
        self,
        key: str,
        value: bytes | str,
        *,
        if_match: str | None = None,
        if_absent: bool = False,
        content_type: str | None = None,
        op_id: str | None = None,
    ) -> Applied:
        """Writes an object under this lease; repeated safely while the outcome is unknown.

        Raises ``Stale`` if a newer holder has reached the data, ``PreconditionFailed`` for
        ``if_match`` or ``if_absent``, ``LeaseLost`` before anything is sent.
        """
        return await objects.put(
            self._fence,
            key,
            value,
            if_match=if_match,
            if_absent=if_absent,
            content_type=content_type,
            op_id=op_id,
        )

    async def delete(
        self, key: str, *, if_match: str | None = None, op_id: str | None = None
    ) -> Applied:
        """Deletes an object under this lease; errors as ``put``."""
        return await objects.delete(self._fence, key, if_match=if_match, op_id=op_id)

    async def __aenter__(self) -> AsyncLease:
        self._enter(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lost = self._exit(error)
        late = await leave(self._fence, error is not None)
        if lost or late:
            raise (lost or late) from None  # type: ignore[misc]


class AsyncLockRequest(RequestBase[AsyncLease]):
    """A request for a lock; see ``AsyncClient.lock``."""

    def __init__(self, client: AsyncClient, options: Options) -> None:
        super().__init__(options)
        self._client = client
        self._entering: asyncio.Lock | None = None

    def after_fork(self) -> None:
        # A task that never runs in the child may have been entering.
        self._entering = None
        super().after_fork()

    @overload
    async def acquire(self, blocking: Literal[True] = True) -> AsyncLease: ...

    @overload
    async def acquire(self, blocking: bool) -> AsyncLease | None: ...

    async def acquire(self, blocking: bool = True) -> AsyncLease | None:
        """Acquires the lock; each call is another grant.

        With ``blocking=False`` it tries once, and returns ``None`` if the lock is held. If the
        caller is cancelled, a grant that it may have caused is released in the background. Raises
        ``Contended``, ``TakeoverRefused``, ``Unavailable``, ``OutcomeUnknown``, ``Invalid``.
        """
        core, options = self._client._core(), self._options
        wish, warn, queued = options.wish(blocking), options.weak_on_warning(), options.on_queued
        try:
            held = await HeldLease.obtain(core, wish, warn, queued)
        except Contended:
            if blocking:
                raise
            return None
        lease = AsyncLease(held)
        lease._options = options
        if options.on_lost is not None:
            lease.on_lost(options.on_lost)
        return lease

    async def locked(self) -> bool:
        """``True`` if a lease of any client held the lock when the server replied."""
        return (await self._client.show(self._options.lock.name)).state == "held"

    async def __aenter__(self) -> AsyncLease:
        if self._entering is None:
            self._entering = asyncio.Lock()
        async with self._entering:
            if self._lease is None:
                self._lease = await self.acquire()
                self._lease._enter(self._lease)
            elif not self._options.is_reentrant:
                raise self._held_twice()
            else:
                self._lease.check()
            self._depth += 1
            return self._lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease = self._leave()
        if lease is not None:
            await lease.__aexit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """Decorates a coroutine function: each call holds the lock, by a request of its own.

        Raises ``TypeError`` for any other function.
        """
        check_async(function)

        @functools.wraps(function)
        async def holding(*args: Any, **kwargs: Any) -> Any:
            async with AsyncLockRequest(self._client, self._options):
                return await function(*args, **kwargs)

        return holding  # type: ignore[return-value]


class AsyncLeases(LeasesView[AsyncLease], _Block):
    """Several leases of a session; its block ends as that of a lease, for the first one lost."""

    _session: AsyncSession | None = None

    async def release(self) -> None:
        """Releases every lock. Raises ``LeaseLost`` if one had ended before."""
        if self._session is not None:
            await self._session.end()
            return
        results = await asyncio.gather(
            *(lease.release() for lease in self._leases), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def __aenter__(self) -> AsyncLeases:
        self._enter(*self._leases)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lost = self._exit(error)
        if self._session is not None:
            # Its end releases all in one step.
            await self._session.__aexit__(kind, error, trace)
        for lease in self._leases if self._session is None else ():
            lost = await leave(lease._fence, error is not None) or lost
        if lost is not None:
            raise lost from None


class AsyncSession(SessionView, _Block):
    """A session: one heartbeat keeps all its leases alive, and its end releases all.

    As a context manager it ends with the block, and its loss cancels the block's task.
    """

    async def lock(
        self,
        name: str,
        *,
        wait: Seconds | None = 0,
        mode: str = "exclusive",
        size: int | None = None,
        metadata: Any = None,
        on_queued: QueuedCallback | None = None,
    ) -> AsyncLease:
        """Acquires a lock that lives as long as the session, or until its release.

        ``wait`` and ``on_queued`` are those of ``Client.lock``.
        """
        options = several([name], wait, mode, size, metadata)[0]
        return AsyncLease(await self._held.lock(options, on_queued), self)

    async def lock_all(
        self,
        names: Iterable[str],
        *,
        wait: Seconds | None = 0,
        mode: str = "exclusive",
        size: int | None = None,
        metadata: Any = None,
        on_queued: QueuedCallback | None = None,
    ) -> AsyncLeases:
        """Acquires all of these locks in one step, or none: 1 to 64, each once.

        ``on_queued`` is called for each of them.
        """
        options = several(names, wait, mode, size, metadata)
        return AsyncLeases(
            AsyncLease(held, self) for held in await self._held.lock_all(options, on_queued)
        )

    async def end(self) -> int:
        """Ends the session; returns the number of leases that ended with it.

        Raises ``LeaseLost`` if it had ended before.
        """
        return await self._held.end()

    async def __aenter__(self) -> AsyncSession:
        self._enter(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lost = self._exit(error)
        try:
            if not self._held.is_ended:
                await self.end()
        except LeaseLost as late:
            lost = lost or (late if error is None else None)
        except FencepostError as failure:
            log.warning("the session expires by itself: %s", failure)
        if lost is not None:
            raise lost from None


class AsyncElection:
    """An election; see ``AsyncClient.election``."""

    def __init__(self, client: AsyncClient, options: Options) -> None:
        self._client = client
        self._options = options

    async def campaign(
        self, wait: Seconds | None = None, *, on_queued: QueuedCallback | None = None
    ) -> AsyncLease:
        """Waits until this client is the leader, for ever unless ``wait`` bounds it.

        The lease is the office: ``token`` numbers the term, ``release`` resigns. If the caller is
        cancelled, the candidate leaves the queue. It queues anew every minute, so the position
        that ``on_queued`` gets may rise.
        """
        wait_ms = None if wait is None else validation.wait_ms(wait)
        held = await election.campaign(
            self._client._core(), self._options.lock, wait_ms, self._options.on_warning, on_queued
        )
        return AsyncLease(held)

    async def leader(self) -> Leader | None:
        """The leader when the server replied; ``None`` if the office is vacant."""
        return await election.leader(self._client._core(), self._options.lock.name)

    def observe(self) -> AsyncIterator[Leader | None]:
        """Yields the leader or ``None``: the present state, then each change."""
        return election.observe(self._client._core(), self._options.lock.name)


class AsyncClient(ClientBase[AsyncLockRequest]):
    """A client for one event loop at a time; ``async with`` closes it.

    After a fork it works in the child with new connections, and the parent's leases are lost there.
    """

    _shared: Core | None = None
    _is_closed = False

    def _core(self) -> Core:
        if self._is_closed:
            raise Invalid("the client is closed; make another one")
        if self._shared is None or self._shared.is_left():
            self._shared = Core(self.settings)
        self._shared.check()
        return self._shared

    def _request(self, options: Options) -> AsyncLockRequest:
        return AsyncLockRequest(self, options)

    async def session(
        self,
        *,
        ttl: Seconds = TTL_S,
        patience: Seconds = PATIENCE_S,
        metadata: Any = None,
        on_warning: WarningCallback | None = None,
    ) -> AsyncSession:
        """Begins a session: ``async with await client.session() as session``."""
        options = SessionOptions(ttl, patience, metadata, Limits(), on_warning)
        session = AsyncSession(await begin_session(self._core(), options))
        session._options = options
        return session

    async def lock_all(
        self,
        names: Iterable[str],
        *,
        ttl: Seconds = TTL_S,
        wait: Seconds | None = 0,
        mode: str = "exclusive",
        size: int | None = None,
        metadata: Any = None,
        on_queued: QueuedCallback | None = None,
    ) -> AsyncLeases:
        """Acquires all of these locks in one step, or none, by a session of their own.

        ``async with await client.lock_all([…]) as leases``: the end of the block releases all.
        ``on_queued`` is called for each of the locks.
        """
        checked = several(names, wait, mode, size, metadata)
        session = await self.session(ttl=ttl)
        try:
            held = await session._held.lock_all(checked, on_queued)
        except BaseException:
            session._held.abandon()
            raise
        leases = AsyncLeases(AsyncLease(one, session) for one in held)
        leases._session = session
        return leases

    def election(self, name: str, *, ttl: Seconds = TTL_S, metadata: Any = None) -> AsyncElection:
        """The election of this name: its leader is the holder of the lock."""
        request = self.lock(name, ttl=ttl, metadata=metadata)
        return AsyncElection(self, request._options)

    async def events(
        self, prefix: str = "", *, lock: str | None = None, after: str | None = None
    ) -> EventStream:
        """Opens the stream of events of a prefix, or of one lock, from now or behind an id.

        ``async with await client.events() as events: async for event in events``.
        """
        return await EventStream.open(self._core(), prefix, lock, after)

    async def get(self, key: str) -> Object | None:
        """Reads an object without a lease, where the guard's rules allow that."""
        return await objects.get(self._core(), key, None)

    async def show(self, lock: str) -> LockState:
        """State, holder, queue and history of a lock."""
        return await locks.show(self._core().locks, validation.lock_name(lock))

    async def locks(
        self, prefix: str = "", *, after: str | None = None, limit: int = 100
    ) -> LockPage:
        """A page of held locks, at most 1000; the next one is ``after`` its ``next_after``."""
        return await locks.page(self._core().locks, prefix, after, limit)

    async def revoke(self, lock: str, reason: str, *, lease_id: str | None = None) -> Revocation:
        """Ends every live lease of a lock, or one, for operators. Sent once."""
        name, why = validation.lock_name(lock), validation.text("reason", reason)
        lease_id = validation.identifier("lease_id", lease_id)
        return await locks.revoke(self._core().locks, name, why, lease_id)

    async def drained(self, timeout: float = 5.0) -> bool:
        """Waits until the releases in the background have ended; ``False`` if time ran out."""
        return await self._shared.drained(timeout) if self._shared else True

    async def close(self, timeout: float = 5.0) -> bool:
        """Releases what is still held, and closes the connections; ``False`` if time ran out."""
        self._is_closed = True
        shared, self._shared = self._shared, None
        return await shared.close(timeout) if shared and not shared.is_left() else True

    async def __aenter__(self) -> AsyncClient:
        self._core()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def begin_session(core: Core, options: SessionOptions) -> HeldSession:
    """Begins a session with checked options."""
    return await HeldSession.begin(
        core,
        options.ttl_ms,
        options.patience_ms,
        options.metadata,
        options.limits,
        options.weak_on_warning(),
    )
