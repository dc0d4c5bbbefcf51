"""The current token for redis-py, at the guard's Redis port; from ``pip install fencepost[redis]``.

A pool outlives a lease. ``LeasePool`` presents the credential of the lease that it was given last,
and a connection from before a hand-over is closed in place of being used again. ``AsyncLeasePool``
is the same for ``redis.asyncio``.
"""

from __future__ import annotations

from typing import Any, Callable, Protocol

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from .errors import Invalid, LeaseLost, Stale, ended

#: First words of the guard's refusals that are final for a token.
_FINAL = ("FENCED", "COLLISION")


class Credential(Protocol):
    """A lease, or several: whatever can be checked and presented."""

    @property
    def fencing_credential(self) -> str: ...

    def check(self) -> None: ...


class FencedError(Stale, redis.ResponseError):
    """The guard's ``FENCED`` or ``COLLISION``: both errors of this package and of redis-py.

    A newer holder has reached the data: stop, and never retry.
    """


class LeaseCredentials(redis.CredentialProvider):
    """Presents the lease that was given last; for any redis-py client, also an asynchronous one.

    A connection is refused if that lease is lost. Threads may share it. Give the client a ``retry``
    with no retries, and ``socket_timeout=None``: both pools of this module have that.
    """

    def __init__(self, lease: Credential | None = None) -> None:
        self._lease = lease

    def hold(self, lease: Credential | None) -> None:
        """Replaces the lease; ``None`` after a release. Connections of earlier ones are stale."""
        self._lease = lease

    @property
    def lease(self) -> Credential | None:
        """The lease that was given last."""
        return self._lease

    def check(self) -> Credential:
        """The lease; raises ``LeaseLost`` if it is lost, and ``Invalid`` if there is none."""
        lease = self._lease
        if lease is None:
            raise Invalid("no lease is held for this pool; acquire one, and hold it")
        lease.check()
        return lease

    def get_credentials(self) -> tuple[str, str]:
        """User and password of a new connection."""
        return "fence", self.check().fencing_credential

    async def get_credentials_async(self) -> tuple[str, str]:
        """User and password of a new connection of ``redis.asyncio``."""
        return self.get_credentials()


class _Stamped(redis.CredentialProvider):
    """Remembers under which lease a connection has authenticated."""

    def __init__(self, credentials: LeaseCredentials, disconnect: Callable[[], Any]) -> None:
        self._credentials = credentials
        self._disconnect = disconnect
        self.lease: Credential | None = None
        #: The only lease under which it may authenticate, while a client of that lease has it.
        self.pinned: Credential | None = None

    def get_credentials(self) -> tuple[str, str]:
        try:
            return self._present()
        except BaseException:
            # The socket is open, and nothing may be sent on it without a credential.
            self._disconnect()
            raise

    async def get_credentials_async(self) -> tuple[str, str]:
        try:
            return self._present()
        except BaseException:
            await self._disconnect()
            raise

    def _present(self) -> tuple[str, str]:
        if self._is_superseded(self._credentials.lease):
            raise _superseded()
        lease = self._credentials.check()
        if self._is_superseded(lease):
            raise _superseded()
        self.lease = lease
        return "fence", lease.fencing_credential

    def _is_superseded(self, lease: Credential | None) -> bool:
        return self.pinned is not None and self.pinned is not lease


def _superseded() -> LeaseLost:
    reason = ended("superseded")
    return LeaseLost("the pool holds another lease by now; stop this work", reason=reason)


class _Leased:
    """A connection that knows its lease."""

    def __init__(self, *args: Any, credential_provider: LeaseCredentials, **kwargs: Any) -> None:
        self._credentials = credential_provider
        self._stamp = _Stamped(credential_provider, self.disconnect)  # type: ignore[attr-defined]
        self._is_refused = False
        kwargs["credential_provider"] = self._stamp
        super().__init__(*args, **kwargs)

    def is_retired(self) -> bool:
        """``True`` for a connection of an earlier lease, or whose token was refused."""
        return self._is_refused or self._stamp.lease is not self._credentials.lease

    def pin(self, lease: Credential | None) -> None:
        """Reconnects under this lease alone from now on; ``None`` for the present one."""
        self._stamp.pinned = lease

    def _mapped(self, error: redis.ResponseError) -> redis.ResponseError:
        """The guard's refusal that is final for the token; another error as it is."""
        if not str(error).startswith(_FINAL):
            return error
        # Closed when it is released: further replies of a pipeline may follow.
        self._is_refused = True
        return FencedError(str(error))


class _Fenced(_Leased):
    """Maps the guard's refusals."""

    def connect(self) -> Any:
        """Connects under the present lease, if it is not connected."""
        if getattr(self, "_sock", None) is None:
            self._is_refused = False
        return super().connect()  # type: ignore[misc]

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Reads a reply; raises ``FencedError`` for a refusal that is final for the token."""
        try:
            return super().read_response(*args, **kwargs)  # type: ignore[misc]
        except redis.ResponseError as error:
            raise self._mapped(error) from None


class _AsyncFenced(_Leased):
    """Maps the guard's refusals for ``redis.asyncio``."""

    async def connect(self) -> None:
        """Connects under the present lease, if it is not connected."""
        if not self.is_connected:  # type: ignore[attr-defined]
            self._is_refused = False
        await super().connect()  # type: ignore[misc]

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Reads a reply; raises ``FencedError`` for a refusal that is final for the token."""
        try:
            return await super().read_response(*args, **kwargs)  # type: ignore[misc]
        except redis.ResponseError as error:
            raise self._mapped(error) from None


class FencedConnection(_Fenced, redis.Connection):
    """A connection of a ``LeasePool``."""


class FencedSSLConnection(_Fenced, redis.SSLConnection):
    """A connection of a ``LeasePool`` over TLS."""


class AsyncFencedConnection(_AsyncFenced, redis.asyncio.Connection):
    """A connection of an ``AsyncLeasePool``."""


class AsyncFencedSSLConnection(_AsyncFenced, redis.asyncio.SSLConnection):
    """A connection of an ``AsyncLeasePool`` over TLS."""


class LeasePool(redis.ConnectionPool):
    """A connection pool whose connections carry the lease that it holds.

    Give it the newest lease by ``hold``, and take clients by ``of``. Retries are off: a write may
    otherwise be repeated under the next lease. There is no ``socket_timeout``: that of redis-py 8
    is 5 s, also for a command that blocks for longer. Further arguments are those of redis-py's
    pool.
    """

    def __init__(
        self, lease: Credential | None = None, *, tls: bool = False, **kwargs: Any
    ) -> None:
        self.credentials = LeaseCredentials(lease)
        kwargs.setdefault("retry", Retry(NoBackoff(), 0))
        kwargs.setdefault("socket_timeout", None)
        kind = FencedSSLConnection if tls else FencedConnection
        super().__init__(connection_class=kind, credential_provider=self.credentials, **kwargs)

    def hold(self, lease: Credential | None) -> None:
        """Hands the pool over to the next lease; its first command needs no reconnect by hand."""
        self.credentials.hold(lease)

    def of(self, lease: Credential) -> redis.Redis:
        """A client whose commands are sent under this lease alone.

        Once the pool holds another lease, or this one is lost, they raise ``LeaseLost``: late work
        never carries the token of the next lease.
        """
        retry = self.connection_kwargs["retry"]
        return redis.Redis(connection_pool=_OfLease(self, lease), retry=retry)  # type: ignore

    def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        """A connection of the present lease. Raises ``LeaseLost`` if that is lost."""
        self.credentials.check()
        connection: Any = super().get_connection(*args, **kwargs)
        try:
            while connection.is_retired():
                connection.disconnect()
                connection.connect()
        except BaseException:
            self.release(connection)
            raise
        return connection

    def release(self, connection: Any) -> None:
        """Returns a connection; one from before a hand-over is closed."""
        connection.pin(None)
        if connection.is_retired():
            connection.disconnect()
        super().release(connection)


class _OfLease:
    """A view of the pool for one lease."""

    def __init__(self, pool: LeasePool, lease: Credential) -> None:
        self._pool = pool
        self._lease = lease

    def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        self._lease.check()
        connection = self._pool.get_connection(*args, **kwargs)
        # A client may keep it, and reconnect.
        connection.pin(self._lease)
        # Checked behind it: a connection of the next lease goes back unused.
        if self._pool.credentials.lease is not self._lease or connection.is_retired():
            self._pool.release(connection)
            raise _superseded()
        return connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


class AsyncLeasePool(redis.asyncio.ConnectionPool):
    """The ``LeasePool`` of ``redis.asyncio``, for tasks of one event loop."""

    def __init__(
        self, lease: Credential | None = None, *, tls: bool = False, **kwargs: Any
    ) -> None:
        if not hasattr(redis.CredentialProvider, "get_credentials_async"):
            # It would leave a connection open whose credential was refused.
            raise Invalid(f"AsyncLeasePool needs redis-py 5.3 or newer, not {redis.__version__}")
        self.credentials = LeaseCredentials(lease)
        kwargs.setdefault("retry", AsyncRetry(NoBackoff(), 0))
        kwargs.setdefault("socket_timeout", None)
        kind = AsyncFencedSSLConnection if tls else AsyncFencedConnection
        super().__init__(connection_class=kind, credential_provider=self.credentials, **kwargs)

    def hold(self, lease: Credential | None) -> None:
        """Hands the pool over to the next lease; its first command needs no reconnect by hand."""
        self.credentials.hold(lease)

    def of(self, lease: Credential) -> redis.asyncio.Redis:
        """A client whose commands are sent under this lease alone; errors as ``LeasePool.of``."""
        return redis.asyncio.Redis(connection_pool=_AsyncOfLease(self, lease))  # type: ignore

    async def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        """A connection of the present lease. Raises ``LeaseLost`` if that is lost."""
        self.credentials.check()
        connection: Any = await super().get_connection(*args, **kwargs)  # type: ignore
        try:
            while connection.is_retired():
                await connection.disconnect(nowait=True)
                await connection.connect()
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def release(self, connection: Any) -> None:
        """Returns a connection; one from before a hand-over is closed."""
        connection.pin(None)
        try:
            if connection.is_retired():
                await connection.disconnect(nowait=True)
        finally:
            await super().release(connection)


class _AsyncOfLease:
    """A view of the pool for one lease."""

    def __init__(self, pool: AsyncLeasePool, lease: Credential) -> None:
        self._pool = pool
        self._lease = lease

    async def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        self._lease.check()
        connection = await self._pool.get_connection(*args, **kwargs)
        # A client may keep it, and reconnect.
        connection.pin(self._lease)
        # Checked behind it: a connection of the next lease goes back unused.
        if self._pool.credentials.lease is not self._lease or connection.is_retired():
            await self._pool.release(connection)
            raise _superseded()
        return connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)
