"""The synchronous client: ``with Client() as client``. Threads may share it and its leases."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Callable, Literal, TypeVar, overload

from . import election, locks, objects, validation
from .aio import begin_session
from .background import Background
from .base import (
    TTL_S,
    ClientBase,
    LeasesView,
    LeaseView,
    Options,
    RequestBase,
    SessionOptions,
    SessionView,
    several,
)
from .decorated import check_sync
from .election import Leader
from .errors import Contended, FencepostError, LeaseLost
from .event_reader import Events
from .events import EventStream
from .lease import Fence, HeldLease, WarningCallback, leave
from .limits import Limits
from .objects import Applied, Object
from .plan import PATIENCE_S
from .queue_position import QueuedCallback
from .session import HeldSession
from .shown import LockPage, LockState, Revocation
from .trust import LossEvent
from .validation import Seconds

log = logging.getLogger("fencepost")

F = TypeVar("F", bound=Callable[..., Any])


class Lease(LeaseView):
    """A live lease, renewed by the client's thread until it is released.

    As a context manager it releases at the end of the block. No exception can be injected into a
    thread safely, so a body that runs long calls ``check``, waits on ``lost`` or sets ``on_lost``;
    if the lease was lost by the end of the block, that raises ``LeaseLost``, unless the body raised
    its own error. In a forked child it is lost, and neither renewed nor released.
    """

    def __init__(
        self, background: Background, fence: Fence, session: Session | None = None
    ) -> None:
        super().__init__(fence, session)
        self._background = background
        self.lost: threading.Event = LossEvent(self._trust)
        """Set when the lease is lost. ``check`` reads the clock; this follows within a second."""

    def release(self) -> None:
        """Releases the lock; retries for up to 5 s, and no longer than the lease lasts.

        A lease that is live when this is called and expires before a reply arrives is no error; nor
        is a retry that finds the next holder. Raises ``LeaseLost`` if the lease had ended before:
        unfenced effects of the work may overlap with another holder's. ``Invalid`` if it was
        released before.
        """
        self._trust.check_process()
        self._background.run(lambda _: self._fence.release())

    def get(self, key: str) -> Object | None:
        """Reads an object under this lease; ``None`` if there is none. Raises the guard's mark."""
        self.check()
        return self._background.run(lambda core: objects.get(core, key, self._fence))

    def put(
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
        self.check()
        return self._background.run(
            lambda _: objects.put(
                self._fence,
                key,
                value,
                if_match=if_match,
                if_absent=if_absent,
                content_type=content_type,
                op_id=op_id,
            )
        )

    def delete(self, key: str, *, if_match: str | None = None, op_id: str | None = None) -> Applied:
        """Deletes an object under this lease; errors as ``put``."""
        self.check()
        return self._background.run(
            lambda _: objects.delete(self._fence, key, if_match=if_match, op_id=op_id)
        )

    def __enter__(self) -> Lease:
        self.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _leave(self._background, [self], error)


def _leave(background: Background, leases: Iterable[Lease], error: BaseException | None) -> None:
    """Releases at the end of a block; the body's error is never masked."""
    lost: LeaseLost | None = None
    for lease in leases:
        loss = lease._trust.loss()
        lost = lost or loss
        if loss is not None and loss.reason == "forked":
            continue
        release = functools.partial(leave, lease._fence, error is not None)
        try:
            late = background.run(lambda _, release=release: release())  # type: ignore[misc]
            lost = lost or late
        except FencepostError as failure:
            log.warning("%s was not released; it expires by itself: %s", lease.lock, failure)
    if lost is not None and error is None:
        raise lost from None


class LockRequest(RequestBase[Lease]):
    """A request for a lock; see ``Client.lock``."""

    def __init__(self, client: Client, options: Options) -> None:
        super().__init__(options)
        self._client = client
        self._entering = threading.Lock()

    def after_fork(self) -> None:
        # Another thread of the parent may have been entering.
        self._entering = threading.Lock()
        super().after_fork()

    @overload
    def acquire(self, blocking: Literal[True] = True) -> Lease: ...

    @overload
    def acquire(self, blocking: bool) -> Lease | None: ...

    def acquire(self, blocking: bool = True) -> Lease | None:
        """Acquires the lock; each call is another grant.

        With ``blocking=False`` it tries once, and returns ``None`` if the lock is held. If the
        caller is interrupted, a grant that it may have caused is released in the background. Raises
        ``Contended``, ``TakeoverRefused``, ``Unavailable``, ``OutcomeUnknown``, ``Invalid``.
        """
        background, options = self._client._background, self._options
        wish, warn, queued = options.wish(blocking), options.weak_on_warning(), options.on_queued
        try:
            held = background.run(
                lambda core: HeldLease.obtain(core, wish, warn, queued), HeldLease.abandon
            )
        except Contended:
            if blocking:
                raise
            return None
        lease = Lease(background, held)
        lease._options = options
        if options.on_lost is not None:
            lease.on_lost(options.on_lost)
        return lease

    def locked(self) -> bool:
        """``True`` if a lease of any client held the lock when the server replied."""
        return self._client.show(self._options.lock.name).state == "held"

    def __enter__(self) -> Lease:
        with self._entering:
            if self._lease is None:
                self._lease = self.acquire()
            elif not self._options.is_reentrant:
                raise self._held_twice()
            else:
                self._lease.check()
            self._depth += 1
            return self._lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._entering:
            lease = self._leave()
            if lease is not None:
                lease.__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """Decorates a function: each call holds the lock, by a request of its own.

        Raises ``TypeError`` for ``async def`` and generators, whose body runs after the call.
        """
        check_sync(function)

        @functools.wraps(function)
        def holding(*args: Any, **kwargs: Any) -> Any:
            with LockRequest(self._client, self._options):
                return function(*args, **kwargs)

        return holding  # type: ignore[return-value]


class Leases(LeasesView[Lease]):
    """Several leases of a session; as a context manager it releases all of them."""

    def __init__(
        self, background: Background, leases: Iterable[Lease], session: Session | None = None
    ) -> None:
        super().__init__(leases)
        self._background = background
        self._session = session

    def release(self) -> None:
        """Releases every lock. Raises ``LeaseLost`` if one had ended before."""
        if self._session is not None:
            self._session.end()
            return
        first: FencepostError | None = None
        for lease in self._leases:
            try:
                lease.release()
            except FencepostError as error:
                first = first or error
        if first is not None:
            raise first

    def __enter__(self) -> Leases:
        self.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is None:
            return _leave(self._background, self._leases, error)
        # The end of the session releases all in one step.
        lost = next(filter(None, (lease._trust.loss() for lease in self._leases)), None)
        self._session.__exit__(kind, error or lost, trace)
        if lost is not None and error is None:
            raise lost


class Session(SessionView):
    """A session: one heartbeat keeps all its leases alive, and its end releases all.

    As a context manager it ends with the block.
    """

    def __init__(self, background: Background, held: HeldSession) -> None:
        super().__init__(held)
        self._background = background
        self.lost: threading.Event = LossEvent(self._trust)
        """Set when the session is lost, and with it every lease."""

    def lock(
        self,
        name: str,
        *,
        wait: Seconds | None = 0,
        mode: str = "exclusive",
        size: int | None = None,
        metadata: Any = None,
        on_queued: QueuedCallback | None = None,
    ) -> Lease:
        """Acquires a lock that lives as long as the session, or until its release.

        ``wait`` and ``on_queued`` are those of ``Client.lock``.
        """
        options = several([name], wait, mode, size, metadata)[0]
        self.check()
        held = self._background.run(
            lambda _: self._held.lock(options, on_queued), lambda lease: lease.drop()
        )
        return Lease(self._background, held, self)

    def lock_all(
        self,
        names: Iterable[str],
        *,
        wait: Seconds | None = 0,
        mode: str = "exclusive",
        size: int | None = None,
        metadata: Any = None,
        on_queued: QueuedCallback | None = None,
    ) -> Leases:
        """Acquires all of these locks in one step, or none: 1 to 64, each once.

        ``on_queued`` is called for each of them.
        """
        options = several(names, wait, mode, size, metadata)
        self.check()
        held = self._background.run(
            lambda _: self._held.lock_all(options, on_queued),
            lambda leases: [one.drop() for one in leases],
        )
        return Leases(self._background, [Lease(self._background, one, self) for one in held])

    def end(self) -> int:
        """Ends the session; returns the number of leases that ended with it.

        Raises ``LeaseLost`` if it had ended before.
        """
        self._trust.check_process()
        return self._background.run(lambda _: self._held.end())

    def __enter__(self) -> Session:
        self.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lost = self._trust.loss()
        try:
            if not self._held.is_ended:
                self.end()
        except LeaseLost as late:
            lost = lost or late
        except FencepostError as failure:
            log.warning("the session expires by itself: %s", failure)
        if lost is not None and error is None:
            raise lost from None


class Election:
    """An election; see ``Client.election``."""

    def __init__(self, client: Client, options: Options) -> None:
        self._background = client._background
        self._options = options

    def campaign(
        self, wait: Seconds | None = None, *, on_queued: QueuedCallback | None = None
    ) -> Lease:
        """Waits until this client is the leader, for ever unless ``wait`` bounds it.

        The lease is the office: ``token`` numbers the term, ``release`` resigns. A candidate
        queues anew every minute, so the position that ``on_queued`` gets may rise.
        """
        wait_ms = None if wait is None else validation.wait_ms(wait)
        options = self._options
        held = self._background.run(
            lambda core: election.campaign(
                core, options.lock, wait_ms, options.on_warning, on_queued
            ),
            HeldLease.abandon,
        )
        return Lease(self._background, held)

    def leader(self) -> Leader | None:
        """The leader when the server replied; ``None`` if the office is vacant."""
        return self._background.run(lambda core: election.leader(core, self._options.lock.name))

    def observe(self) -> Iterator[Leader | None]:
        """Yields the leader or ``None``: the present state, then each change."""
        name = self._options.lock.name

        async def begin(core: Any) -> Any:
            return election.observe(core, name)

        changes = self._background.run(begin)
        try:
            while True:
                yield self._background.run(lambda _: changes.__anext__())
        finally:
            self._background.run(lambda _: changes.aclose())


class Client(ClientBase[LockRequest]):
    """A client for any number of threads; ``with`` closes it.

    One thread of its own renews all leases. After a fork it works in the child with new
    connections, and the parent's leases are lost there.
    """

    def _begin(self) -> None:
        self._background = Background(self.settings)

    def _request(self, options: Options) -> LockRequest:
        return LockRequest(self, options)

    def session(
        self,
        *,
        ttl: Seconds = TTL_S,
        patience: Seconds = PATIENCE_S,
        metadata: Any = None,
        on_warning: WarningCallback | None = None,
    ) -> Session:
        """Begins a session: ``with client.session() as session``."""
        options = SessionOptions(ttl, patience, metadata, Limits(), on_warning)
        held = self._background.run(lambda core: begin_session(core, options), HeldSession.abandon)
        session = Session(self._background, held)
        session._options = options
        return session

    def lock_all(
        self,
        names: Iterable[str],
        *,
        ttl: Seconds = TTL_S,
        wait: Seconds | None = 0,
        mode: str = "exclusive",
        size: int | None = None,
        metadata: Any = None,
        on_queued: QueuedCallback | None = None,
    ) -> Leases:
        """Acquires all of these locks in one step, or none, by a session of their own.

        ``with client.lock_all([…]) as leases``: the end of the block releases all.
        ``on_queued`` is called for each of the locks.
        """
        checked = several(names, wait, mode, size, metadata)
        session = self.session(ttl=ttl)
        try:
            held = self._background.run(lambda _: session._held.lock_all(checked, on_queued))
        except BaseException:
            session._held.core.soon(session._held.abandon)
            raise
        leases = [Lease(self._background, one, session) for one in held]
        return Leases(self._background, leases, session)

    def election(self, name: str, *, ttl: Seconds = TTL_S, metadata: Any = None) -> Election:
        """The election of this name: its leader is the holder of the lock."""
        return Election(self, self.lock(name, ttl=ttl, metadata=metadata)._options)

    def events(
        self, prefix: str = "", *, lock: str | None = None, after: str | None = None
    ) -> Events:
        """Opens the stream of events of a prefix, or of one lock, from now or behind an id."""
        stream = self._background.run(lambda core: EventStream.open(core, prefix, lock, after))
        return Events(self._background, stream)

    def get(self, key: str) -> Object | None:
        """Reads an object without a lease, where the guard's rules allow that."""
        return self._background.run(lambda core: objects.get(core, key, None))

    def show(self, lock: str) -> LockState:
        """State, holder, queue and history of a lock."""
        name = validation.lock_name(lock)
        return self._background.run(lambda core: locks.show(core.locks, name))

    def locks(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> LockPage:
        """A page of held locks, at most 1000; the next one is ``after`` its ``next_after``."""
        return self._background.run(lambda core: locks.page(core.locks, prefix, after, limit))

    def revoke(self, lock: str, reason: str, *, lease_id: str | None = None) -> Revocation:
        """Ends every live lease of a lock, or one, for operators. Sent once."""
        name, why = validation.lock_name(lock), validation.text("reason", reason)
        lease_id = validation.identifier("lease_id", lease_id)
        return self._background.run(lambda core: locks.revoke(core.locks, name, why, lease_id))

    def drained(self, timeout: float = 5.0) -> bool:
        """Waits until the releases in the background have ended; ``False`` if time ran out."""
        return self._background.run(lambda core: core.drained(timeout))

    def close(self, timeout: float = 5.0) -> bool:
        """Releases what is still held, and ends the thread; ``False`` if time ran out."""
        return self._background.close(timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
