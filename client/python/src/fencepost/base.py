"""What the synchronous and the asynchronous classes share: options, and views without I/O."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Generic, TypeVar

from . import forks, settings, token, validation
from .errors import Invalid, LeaseLost, LostReason
from .lease import Fence, WarningCallback
from .limits import Limits
from .plan import PATIENCE_S, LockOptions
from .queue_position import QueuedCallback
from .secret import Secret, hidden_url
from .session import HeldSession
from .trust import Trust
from .validation import Seconds

R = TypeVar("R")
T = TypeVar("T")

#: Callback of a loss, with the error that a check raises from then on.
LostCallback = Callable[[LeaseLost], None]

#: Default time to live of a lease, in seconds.
TTL_S = 15.0


class _OnLost:
    """A callback of a loss, which is called once."""

    def __init__(self, trust: Trust, callback: LostCallback) -> None:
        self._trust = trust
        self._callback: LostCallback | None = callback

    def __call__(self, reason: LostReason) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(self._trust.error(reason))


def _weakly(keeper: T, call: Callable[..., None]) -> Callable[..., None]:
    """Calls with this object and more for as long as something else keeps it.

    The engine has callbacks only so: one that refers to its lease would keep that.
    """
    weak = weakref.ref(keeper)

    def call_kept(*args: Any) -> None:
        kept = weak()
        if kept is not None:
            call(kept, *args)

    return call_kept


def _abandon(held: Any, callbacks: Iterable[_OnLost]) -> None:
    try:
        if not held.trust.is_over:
            for callback in callbacks:
                held.trust.on_loss(callback)
    finally:
        held.abandon()


class Trusted:
    """What is trusted until a deadline: a lease, or a session."""

    #: Of its request: it keeps the callback of warnings.
    _options: object = None

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._on_lost: list[_OnLost] = []

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses copies and pickles: the end of the copy would be that of the original."""
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: it ends with its object; pass"
            " that itself, or the fencing_token of a lease"
        )

    def _drop(self, held: Any) -> None:
        """Ends what nothing refers to; to the callbacks that have gone with it that is a loss."""
        held.core.soon(_abandon, held, self._on_lost)

    @property
    def remaining(self) -> float:
        """Seconds for which it is trusted from now on if no renewal succeeds; 0 once lost."""
        return self._trust.remaining_ms() / 1000

    @property
    def is_live(self) -> bool:
        """``True`` if it can be trusted now. Reads the clock; sends nothing."""
        try:
            self.check()
        except Exception:
            return False
        return True

    def check(self) -> None:
        """Checks that it can be trusted now. Reads the clock, so it is right even in a process
        that has just resumed; sends nothing.

        Raises ``LeaseLost`` if it cannot, and ``Invalid`` after its release.
        """
        self._trust.check()

    def progress(self) -> None:
        """Reports that the work makes progress, which restarts ``progress_within``.

        Raises ``LeaseLost`` if it is lost: a late report does not restore it.
        """
        self._trust.progress()

    def on_lost(self, callback: LostCallback) -> None:
        """Calls back once with the ``LeaseLost`` when it is lost, in the thread that notices.

        The callback must neither block nor raise. It is not called after a release, nor by a fork:
        in the child only ``check`` and ``lost`` say that the lease is the parent's.
        """
        call = _OnLost(self._trust, callback)
        self._on_lost.append(call)
        self._trust.on_loss(_weakly(call, _OnLost.__call__))


class LeaseView(Trusted):
    """A lease without its I/O."""

    def __init__(self, fence: Fence, session: object = None) -> None:
        super().__init__(fence.trust)
        self._fence = fence
        # A session that is dropped ends, and with it this lease.
        self._bound_to = session

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.lock} token={self.token}>"

    @property
    def lock(self) -> str:
        """The name of the lock."""
        return self._fence.grant.lock

    @property
    def token(self) -> int:
        """The fencing token: higher than that of every earlier grant of this lock."""
        return self._fence.grant.token

    @property
    def lease_id(self) -> str:
        """The id of this grant, a UUID."""
        return self._fence.grant.lease_id

    @property
    def fencing_token(self) -> str:
        """The value of the ``Fencing-Token`` header, for other HTTP clients."""
        return self._fence.grant.fencing_token

    @property
    def fencing_credential(self) -> str:
        """The same token as a password, for the guard's Redis port."""
        return self._fence.grant.fencing_credential

    def check(self) -> None:
        self._fence.check()

    def __del__(self) -> None:
        fence = getattr(self, "_fence", None)
        # One of a session ends with that.
        if fence is not None and not fence.is_released and fence.ends_alone:
            self._drop(fence)


L = TypeVar("L", bound=LeaseView)


class LeasesView(Sequence[L], Generic[L]):
    """Several leases that were granted in one step, in the order of the request."""

    def __init__(self, leases: Iterable[L]) -> None:
        self._leases = list(leases)

    def __getitem__(self, at: Any) -> Any:
        return self._leases[at]

    def __len__(self) -> int:
        return len(self._leases)

    def on(self, lock: str) -> L:
        """The lease on this lock; raises ``KeyError`` if there is none."""
        for lease in self._leases:
            if lease.lock == lock:
                return lease
        raise KeyError(lock)

    @property
    def fencing_credential(self) -> str:
        """One credential of all these leases, at most 16."""
        return token.join(lease.fencing_token for lease in self._leases)

    def check(self) -> None:
        """Raises ``LeaseLost`` for the first lease that cannot be trusted now."""
        for lease in self._leases:
            lease.check()


class SessionView(Trusted):
    """A session without its I/O."""

    def __init__(self, held: HeldSession) -> None:
        super().__init__(held.trust)
        self._held = held

    @property
    def session_id(self) -> str:
        """The id of the session at the lock server."""
        return self._held.session_id

    def check(self) -> None:
        self._held.check()

    def __del__(self) -> None:
        held = getattr(self, "_held", None)
        if held is not None and not held.is_ended:
            self._drop(held)


class Warned:
    """Options with a callback of warnings."""

    on_warning: WarningCallback | None

    def weak_on_warning(self) -> WarningCallback | None:
        """The callback for the engine: called for as long as a lease keeps these options."""
        if self.on_warning is None:
            return None
        return _weakly(self, lambda kept, *args: kept.on_warning(*args))


class Options(Warned):
    """Options of a request for a lock, and its callbacks."""

    def __init__(
        self,
        lock: LockOptions,
        on_warning: WarningCallback | None = None,
        on_lost: LostCallback | None = None,
        is_reentrant: bool = False,
        on_queued: QueuedCallback | None = None,
    ) -> None:
        self.lock = lock
        self.on_warning = on_warning
        self.on_lost = on_lost
        self.is_reentrant = is_reentrant
        self.on_queued = on_queued

    def wish(self, is_waiting: bool) -> LockOptions:
        """Options of one acquire, without the wait if the caller does not want to wait."""
        if is_waiting:
            return self.lock
        return self.lock.waiting(0, self.lock.patience_ms)


class RequestBase(Generic[L]):
    """A request for a lock, and the lease of the block that it has entered."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lease: L | None = None
        self._depth = 0
        self._of_parent: L | None = None
        forks.register(self)

    def after_fork(self) -> None:
        """Begins anew in a forked child, which may still leave a block of its parent."""
        self._of_parent = self._lease or self._of_parent
        self._lease, self._depth = None, 0

    def _held_twice(self) -> Invalid:
        return Invalid(
            f"the lock {self._options.lock.name} is held by this object already; make another"
            " request, or one with reentrant=True"
        )

    def _leave(self) -> L | None:
        """Counts the end of a block; returns the lease that ends with it."""
        if self._depth == 0:
            return self._of_parent
        self._depth -= 1
        if self._depth > 0:
            return None
        lease, self._lease = self._lease, None
        return lease


class ClientBase(Generic[R]):
    """Settings of a client, and its requests for locks."""

    def __init__(
        self,
        server: str | None = None,
        guard: str | None = None,
        *,
        owner: str | None = None,
        incarnation: str | None = None,
        token: str | None = None,
        auth_file: str | None = None,
        ca_file: str | None = None,
        client_cert: str | None = None,
        client_key: str | None = None,
        insecure_http: bool | None = None,
        config: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Reads the settings; connects to nothing yet.

        An argument decides before its variable (``FENCE_SERVER``, ``FENCE_GUARD``,
        ``FENCE_OWNER``, …), and that before the TOML file of ``config`` or ``FENCE_CONFIG``.
        ``token`` is the bearer token itself, ``environment`` replaces the variables of the
        process. Raises ``Invalid`` for a value that breaks a rule.
        """
        variables = settings.Variables(environment)
        secret = None if token is None else Secret(token)
        server, guard = hidden_url(server), hidden_url(guard)
        # An error report shows the locals of this frame.
        del environment, token
        given = {
            "server": server,
            "guard": guard,
            "owner": owner,
            "incarnation": incarnation,
            "auth_file": auth_file,
            "ca_file": ca_file,
            "client_cert": client_cert,
            "client_key": client_key,
            "insecure_http": insecure_http,
            "config": config,
        }
        self.settings = settings.read(given, variables, secret)
        self._begin()

    def _begin(self) -> None:
        """Prepares what the calls need."""

    @property
    def owner(self) -> str:
        """The owner that is sent with every request."""
        return self.settings.owner

    def _request(self, options: Options) -> R:
        raise NotImplementedError

    def lock(
        self,
        name: str,
        *,
        ttl: Seconds = TTL_S,
        wait: Seconds | None = 0,
        patience: Seconds = PATIENCE_S,
        mode: str = "exclusive",
        size: int | None = None,
        metadata: Any = None,
        min_token: int | None = None,
        takeover: bool = False,
        takeover_of: str | None = None,
        progress_within: Seconds | None = None,
        max_hold: Seconds | None = None,
        warn_before: Seconds | None = None,
        on_warning: WarningCallback | None = None,
        on_lost: LostCallback | None = None,
        on_queued: QueuedCallback | None = None,
        reentrant: bool = False,
    ) -> R:
        """A request for a lock: a context manager, a decorator, or ``acquire()``.

        Times are seconds or timedeltas. Nothing is sent yet; a value that breaks a rule raises
        ``Invalid``.

        - ``ttl``: longest time for which a holder that died blocks others
        - ``wait``: longest wait in the queue, at most 168 hours; 0, the default, tries once, and
          ``None`` waits without end
        - ``patience``: time beyond the wait for which an unreachable server is retried
        - ``mode``: ``exclusive``, ``shared``, or ``permit`` of a semaphore of ``size``
        - ``metadata``: JSON shown with the lock
        - ``min_token``: the token must exceed it
        - ``takeover``, ``takeover_of``: from an earlier incarnation of the owner, or this lease
        - ``progress_within``, ``max_hold``: ends of the lease unless the work reports, or at all
        - ``warn_before``, ``on_warning``: callback with the reason and the seconds left
        - ``on_lost``: callback with the ``LeaseLost``; must not block
        - ``on_queued``: callback with the ``QueuePosition`` while it waits; must not block
        - ``reentrant``: this object may be entered again while it is held
        """
        checked = LockOptions.checked(
            name,
            ttl=ttl,
            wait=wait,
            patience=patience,
            mode=mode,
            size=size,
            metadata=metadata,
            min_token=min_token,
            takeover=takeover,
            takeover_of=takeover_of,
            progress_within=progress_within,
            max_hold=max_hold,
            warn_before=warn_before,
        )
        options = Options(checked, on_warning, on_lost, reentrant, on_queued)
        return self._request(options)


class SessionOptions(Warned):
    """Checked options of a session."""

    def __init__(
        self,
        ttl: Seconds,
        patience: Seconds,
        metadata: Any,
        limits: Limits,
        on_warning: WarningCallback | None,
    ) -> None:
        self.ttl_ms = validation.ttl_ms(ttl)
        self.patience_ms = validation.milliseconds("patience", patience, 0, 604_800_000)
        self.metadata = validation.metadata(metadata)
        self.limits = limits
        self.on_warning = on_warning


def several(
    names: Iterable[str],
    wait: Seconds | None,
    mode: str,
    size: int | None,
    metadata: Any,
    patience: Seconds = PATIENCE_S,
) -> list[LockOptions]:
    """Options of several locks of one kind; raises ``Invalid``."""
    if isinstance(names, str):
        raise validation.refuse("names", names, "must be several names, as a list")
    return [
        LockOptions.checked(
            name,
            ttl=TTL_S,
            wait=wait,
            patience=patience,
            mode=mode,
            size=size,
            metadata=metadata,
        )
        for name in names
    ]
