"""What a request for a lock asks for, and the retry rules of an acquire. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from . import timing, validation
from .attempts import is_passing
from .clock import now_ms
from .errors import Invalid, Unavailable
from .limits import Limits
from .transport import Failure, NotSent, Refused, Unusable
from .validation import Seconds

#: Time that a request may take beyond its wait, in ms.
_WAIT_MARGIN_MS = 5_000
#: Restarts with a fresh lease id without a pause: each follows a grant that was rolled back.
_RESTARTS_AT_ONCE = 5
PATIENCE_S = 5.0


@dataclass(frozen=True)
class LockOptions:
    """Checked options of a request for one lock. Times are in milliseconds."""

    name: str
    ttl_ms: int
    wait_ms: int
    patience_ms: int
    mode: str = "exclusive"
    size: int | None = None
    metadata: Any = None
    min_token: int | None = None
    takeover: bool = False
    takeover_of: str | None = None
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def checked(
        cls,
        name: str,
        *,
        ttl: Seconds,
        wait: Seconds | None,
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
    ) -> LockOptions:
        """Checks the caller's values; raises ``Invalid``."""
        limits = Limits(
            validation.limit_ms("progress_within", progress_within),
            validation.limit_ms("max_hold", max_hold),
            validation.limit_ms("warn_before", warn_before),
        )
        limits.check()
        if (takeover or takeover_of is not None) and mode != "exclusive":
            raise Invalid(f"the lock {name} cannot be taken over in mode {mode}, but exclusively")
        return cls(
            name=validation.lock_name(name),
            ttl_ms=validation.ttl_ms(ttl),
            wait_ms=validation.wait_ms(wait),
            patience_ms=validation.milliseconds("patience", patience, 0, 604_800_000),
            mode=mode,
            size=validation.mode_of(mode, size),
            metadata=validation.metadata(metadata),
            min_token=validation.token("min_token", min_token),
            takeover=takeover,
            takeover_of=validation.identifier("takeover_of", takeover_of),
            limits=limits,
        )

    def waiting(self, wait_ms: int, patience_ms: int) -> LockOptions:
        """The same request with another wait and patience."""
        return replace(self, wait_ms=wait_ms, patience_ms=patience_ms)


@dataclass(frozen=True)
class AcquireStep:
    """Reaction to an attempt without a grant: ``retry`` with the same lease id, ``restart`` with a
    fresh one because the old id has ended, or ``fail``. The pause comes first."""

    action: str
    pause_ms: int = 0


_FAIL = AcquireStep("fail")


class Plan:
    """Time and attempts of one call."""

    def __init__(self, begin_ms: int, wait_ms: int, patience_ms: int) -> None:
        self._begin_ms = begin_ms
        self._wait_until_ms = begin_ms + wait_ms
        self._unknown_until_ms = self._wait_until_ms + patience_ms
        self._attempts = 0
        self._restarts = 0

    def wait_ms(self, now: int | None = None) -> int:
        """Time left of the wait in the queue."""
        return max(0, self._wait_until_ms - (now_ms() if now is None else now))

    def waited_s(self) -> float:
        """Seconds of the wait so far; 0 if none was asked for."""
        return (min(now_ms(), self._wait_until_ms) - self._begin_ms) / 1000

    def timeout_ms(self, wait_ms: int) -> int:
        """Time-out of a request that waits for so long."""
        return wait_ms + _WAIT_MARGIN_MS

    def after(self, failure: Failure, now: int, random: int) -> AcquireStep:
        """Decides the next step after a failure; ``random`` is the jitter of the pause."""
        # A reply that arrives too late has taken its time already: the pause does not grow.
        is_late = isinstance(failure, Unusable) and isinstance(failure.cause, Unavailable)
        self._attempts = 1 if is_late else self._attempts + 1
        limit_ms, pause_min_ms = self._unknown_until_ms, 0
        is_retried = is_late or is_passing(failure)
        if isinstance(failure, Refused):
            if failure.problem.code == "lease-lost":
                return self._restart(now, random)
            if failure.is_held:
                # The server's limit may be shorter than the wait: the client waits for the rest.
                limit_ms = self._wait_until_ms
            else:
                pause_min_ms = int((failure.retry_after or 0) * 1000)
        pause_ms = max(timing.pause_ms(self._attempts, random), pause_min_ms)
        return AcquireStep("retry", pause_ms) if is_retried and now + pause_ms < limit_ms else _FAIL

    def _restart(self, now: int, random: int) -> AcquireStep:
        self._restarts += 1
        later = self._restarts - _RESTARTS_AT_ONCE
        pause_ms = timing.pause_ms(later, random) if later > 0 else 0
        is_in_time = now + pause_ms < self._unknown_until_ms
        return AcquireStep("restart", pause_ms) if is_in_time else _FAIL


def may_have_granted(failure: Failure) -> bool:
    """``True`` unless this failure shows that its attempt caused no grant."""
    if isinstance(failure, Refused):
        return failure.problem.code in ("outcome-unknown", "internal", "unknown")
    return not isinstance(failure, NotSent)
