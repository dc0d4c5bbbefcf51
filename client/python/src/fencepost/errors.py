"""The errors of every call. The class says what to do next; the text says what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from . import wording

#: Member of a problem, true if the guard's header says that the reply states the outcome of an
#: earlier request with the same idempotency key.
REPLAYED = "idempotency_replayed"


@dataclass(frozen=True)
class Problem:
    """The RFC 9457 body of an error reply."""

    status: int
    code: str
    detail: str
    hint: str
    retryable: bool
    raw: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{wording.detail_of(self.detail)} ({self.code}): {self.advice}"

    @property
    def advice(self) -> str:
        """The hint in the words of this package."""
        return wording.hint_of(self.code, self.hint)


@dataclass(frozen=True)
class LostReason:
    """Reason why a lease can no longer be trusted.

    ``word`` is ``deadline`` (0.8 of its time to live passed without a renewal), ``ended`` (by the
    server's reply; ``ended_by`` is its word), ``no-progress``, ``held-too-long`` (``limit_ms`` is
    the limit of both) or ``forked`` (this process is a child of the holder).
    """

    word: str
    ended_by: str | None = None
    limit_ms: int | None = None

    def __str__(self) -> str:
        if self.word == "deadline":
            return "0.8 of its time to live passed without a renewal"
        if self.word == "ended":
            return f"the lock server has ended it: {self.ended_by}"
        if self.word == "no-progress":
            return f"no progress was reported for {self.limit_ms} ms"
        if self.word == "held-too-long":
            return f"it was held for {self.limit_ms} ms, the longest allowed"
        return "this process was forked from its holder, which keeps it; acquire in the child"


DEADLINE = LostReason("deadline")
FORKED = LostReason("forked")


def ended(by: str) -> LostReason:
    """The loss of a lease that ended at the server, with the server's reason."""
    return LostReason("ended", by)


class FencepostError(Exception):
    """Base of every error of this package.

    - ``code``, ``status``, ``detail``, ``hint``, ``request_id``: of the server's reply, or ``None``
    - ``problem``: its whole body, or ``None``
    - ``retryable``: the same call can help, and cannot harm
    - ``lost``: the lease is lost, so stop the work that it protected
    - ``stale``: a newer holder has reached the data, so stop and never retry
    - ``retry_after``: seconds after which a retry is worthwhile, if the server said so
    - ``outcome``: ``not-applied``, ``applied`` or ``unknown``, of an operation at the guard
    """

    kind: ClassVar[str] = "internal"
    _is_retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        problem: Problem | None = None,
        retry_after: float | None = None,
        outcome: str | None = None,
        reason: LostReason | None = None,
    ) -> None:
        super().__init__(message)
        self._problem = problem
        self.retry_after = retry_after
        self.stated_outcome = outcome
        self._reason = reason

    @property
    def problem(self) -> Mapping[str, Any] | None:
        return self._problem.raw if self._problem else None

    @property
    def code(self) -> str | None:
        return self._problem.code if self._problem else None

    @property
    def status(self) -> int | None:
        return self._problem.status if self._problem else None

    @property
    def detail(self) -> str | None:
        return wording.detail_of(self._problem.detail) if self._problem else None

    @property
    def hint(self) -> str | None:
        return self._problem.advice if self._problem else None

    @property
    def request_id(self) -> str | None:
        return self._text("request_id")

    @property
    def retryable(self) -> bool:
        return self._problem.retryable if self._problem else self._is_retryable

    @property
    def lost(self) -> bool:
        return isinstance(self, LeaseLost)

    @property
    def stale(self) -> bool:
        return isinstance(self, Stale)

    @property
    def outcome(self) -> str | None:
        is_unknown = isinstance(self, OutcomeUnknown)
        stated: str | None = self.stated_outcome or self._text("outcome")
        return stated or ("unknown" if is_unknown else None)

    @property
    def lock(self) -> str | None:
        """The lock that the server refused, if it named one."""
        return self._text("lock")

    def _text(self, name: str) -> str | None:
        value = self._member(name)
        return value if isinstance(value, str) else None

    def _number(self, name: str) -> int | None:
        value = self._member(name)
        return value if isinstance(value, int) else None

    def _member(self, name: str) -> Any:
        return self._problem.raw.get(name) if self._problem else None


class Contended(FencepostError):
    """Another lease holds the lock: retry later, or wait in the queue."""

    kind = "contended"
    _is_retryable = True
    _waited_s: float | None = None
    _what = "acquire"

    @property
    def waited(self) -> float | None:
        """Seconds for which the call waited in the queue; 0 if it asked for no wait."""
        return self._waited_s

    @property
    def holder(self) -> Mapping[str, Any] | None:
        """``owner``, ``token``, ``held_ms`` and ``expires_in_ms`` of the holder."""
        holder = self._member("holder")
        return holder if isinstance(holder, dict) else None

    @property
    def queue_length(self) -> int | None:
        return self._number("queue_length")


class TakeoverRefused(FencepostError):
    """The lock may not be taken over: wait in the queue or stop, depending on ``why``."""

    kind = "takeover-refused"

    @property
    def why(self) -> str | None:
        return self._text("why")


class LeaseLost(FencepostError):
    """The lease can no longer be trusted: stop the work that it protected."""

    kind = "lease-lost"

    @property
    def reason(self) -> str:
        """The word of :class:`LostReason`."""
        return self._reason.word if self._reason else "ended"

    @property
    def ended_by(self) -> str | None:
        """The server's reason, as ``expired`` or ``revoked``, if ``reason`` is ``ended``."""
        return self._reason.ended_by if self._reason else None


class Stale(FencepostError):
    """The guard has seen a higher token: stop, and never retry."""

    kind = "stale"

    @property
    def mark(self) -> int | None:
        """The highest token that the guard has seen."""
        return self._number("mark")

    @property
    def min_token(self) -> int | None:
        """The token that the next token of the lock must exceed to be admitted."""
        return self._number("min_token") or self.mark


class PreconditionFailed(FencepostError):
    """``if_match`` or ``if_absent`` did not hold: read the object again before deciding."""

    kind = "precondition"

    @property
    def etag(self) -> str | None:
        return self._text("etag")


class Unavailable(FencepostError):
    """The server or its store is unreachable and nothing was done: retry later."""

    kind = "unavailable"
    _is_retryable = True


class OutcomeUnknown(FencepostError):
    """The request may or may not have been applied: repeat it under the same lease, or read."""

    kind = "outcome-unknown"
    _is_retryable = True


class Invalid(FencepostError):
    """The request breaks a rule: correct it."""

    kind = "invalid"


class InternalError(FencepostError):
    """A defect in the client or the server, or a server that is no Fencepost: report it."""

    kind = "internal"


_CLASSES: Mapping[str, type[FencepostError]] = {
    "lock-held": Contended,
    "lease-lost": LeaseLost,
    "session-ended": LeaseLost,
    "session-unknown": LeaseLost,
    "takeover-refused": TakeoverRefused,
    "stale-token": Stale,
    # A collision calls for the same reaction as a stale token: stop, never retry.
    "token-collision": Stale,
    "precondition-failed": PreconditionFailed,
    "request-timeout": Unavailable,
    "limit-reached": Unavailable,
    "upstream-unavailable": Unavailable,
    "store-unavailable": Unavailable,
    "draining": Unavailable,
    "quarantined": Unavailable,
    "not-leader": Unavailable,
    "guard-unsealed": Unavailable,
    "shutting-down": Unavailable,
    "outcome-unknown": OutcomeUnknown,
    "internal": InternalError,
}

#: Codes whose class is :class:`Invalid`; any other code is unknown and goes by its status.
_INVALID = frozenset(
    "invalid-request malformed-token unauthorized bad-signature forbidden cross-origin "
    "session-blocked wrong-lock not-found method-not-allowed lease-id-conflict lock-kind-conflict "
    "session-conflict quarantine-conflict payload-too-large unsupported-media-type "
    "misdirected-request op-id-reused token-required not-offered-by-store".split()
)


def is_known(code: str) -> bool:
    """``True`` for a code of this version's servers."""
    return code in _CLASSES or code in _INVALID


def class_of(problem: Problem) -> type[FencepostError]:
    """Maps a problem to its class; no other code does."""
    if problem.code in _INVALID:
        return Invalid
    return _CLASSES.get(problem.code) or _by_status(problem.status)


def _by_status(status: int) -> type[FencepostError]:
    """Class of a code that is unknown: of a newer server, or of a proxy in between."""
    if status == 423:
        return Contended
    if status == 410:
        return LeaseLost
    if status in (408, 429, 502, 503):
        return Unavailable
    if status == 504:
        return OutcomeUnknown
    return Invalid if 400 <= status < 500 else InternalError


def end_reason(problem: Problem) -> str:
    """End of the lease by the server's reply.

    A reason of a newer server is unknown here, and counts as superseded: the lease has ended.
    """
    if problem.code in ("session-ended", "session-unknown"):
        return "session-ended"
    reason = problem.raw.get("reason")
    known = ("expired", "superseded", "released", "revoked", "session-ended")
    return reason if reason in known else "superseded"


def from_problem(what: str, problem: Problem, retry_after: float | None) -> FencepostError:
    """The error of an error reply; ``what`` names the call."""
    kind = class_of(problem)
    if kind is Contended:
        return contended(what, problem, retry_after, None)
    reason = ended(end_reason(problem)) if kind is LeaseLost else None
    message = f"{what}: {problem}"
    return kind(message, problem=problem, retry_after=retry_after, reason=reason)


def contended(
    what: str, problem: Problem, retry_after: float | None, waited_s: float | None
) -> Contended:
    """The error of a lock that is held; ``waited_s`` is ``None`` if the wait is unknown."""
    error = Contended(_held_text(what, problem, waited_s), problem=problem, retry_after=retry_after)
    error._what, error._waited_s = what, waited_s
    return error


def _held_text(what: str, problem: Problem, waited_s: float | None) -> str:
    parts = [wording.holder_of(problem.raw) or wording.detail_of(problem.detail)]
    length = problem.raw.get("queue_length")
    if isinstance(length, int) and length > 0:
        parts.append(f"{length} more in the queue")
    if waited_s is not None:
        parts.append(f"waited {waited_s:.1f} s" if waited_s else "no wait was asked for")
    return f"{what}: {'; '.join(parts)} ({problem.code}): {problem.advice}"


def after_wait(error: Contended, waited_s: float) -> Contended:
    """The error of a call that waited in several rounds, the last of which failed so."""
    if error._problem is None:
        return error
    return contended(error._what, error._problem, error.retry_after, waited_s)


def lease_lost(what: str, reason: LostReason) -> LeaseLost:
    """The error of a lease that can no longer be trusted; ``what`` names the lock."""
    return LeaseLost(f"the lease on {what} is lost: {reason}", reason=reason)
