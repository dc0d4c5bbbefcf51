"""Locks as the server shows them. Times are in milliseconds, from when it replied.

``raw`` has the whole reply, with what a newer server adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from .errors import InternalError
from .events import Event

T = TypeVar("T")

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class LeaseHolder:
    """A live lease of a lock; ``renewals`` counts those that succeeded."""

    lease_id: str
    owner: str
    token: int
    held_ms: int
    expires_in_ms: int
    ttl_ms: int
    renewals: int = 0
    mode: str = "exclusive"
    session_id: str | None = None
    incarnation: str | None = None
    metadata: Any = None
    raw: Raw = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Waiter:
    """A request in the queue of a lock."""

    lease_id: str
    owner: str
    waiting_ms: int
    mode: str = "exclusive"
    raw: Raw = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class EndedLease:
    """A lease that ended by ``reason``; ``why`` is that of the operator who revoked it."""

    lease_id: str
    reason: str
    held_ms: int
    ended_ms_ago: int
    token: int | None = None
    owner: str | None = None
    why: str | None = None
    raw: Raw = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class LockState:
    """A lock: its holder, up to 100 further ones and waiters, and its last ended leases.

    ``state`` is ``free``, ``held``, or ``delayed`` for ``delayed_ms``; ``size`` is that of a
    semaphore in use. The newest events and refused writes come first.
    """

    lock: str
    state: str
    holder: LeaseHolder | None
    also_held: tuple[LeaseHolder, ...]
    lease_count: int
    size: int | None
    delayed_ms: int | None
    queue_length: int
    queue: tuple[Waiter, ...]
    history: tuple[EndedLease, ...]
    events: tuple[Event, ...]
    refusals: tuple[Event, ...]
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def of(cls, reply: Raw) -> LockState:
        """Reads a reply; raises ``InternalError`` if it does not describe a lock."""
        holder = reply.get("holder")
        return cls(
            lock=_member(reply, "lock", str),
            state=_member(reply, "state", str),
            holder=None if holder is None else _read(LeaseHolder, holder),
            also_held=_each(LeaseHolder, reply, "also_held"),
            lease_count=_member(reply, "lease_count", int, 0),
            size=_member(reply, "size", int, None),
            delayed_ms=_member(reply, "delayed_ms", int, None),
            queue_length=_member(reply, "queue_length", int),
            queue=_each(Waiter, reply, "queue"),
            history=_each(EndedLease, reply, "history"),
            events=_events(reply, "events"),
            refusals=_events(reply, "refusals"),
            raw=reply,
        )


@dataclass(frozen=True)
class ListedLock:
    """A held lock in a list, with the holder that expires first."""

    lock: str
    owner: str
    token: int
    held_ms: int
    expires_in_ms: int
    queue_length: int
    raw: Raw = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class LockPage:
    """A page of held locks by name; ``next_after`` is ``None`` on the last one."""

    locks: tuple[ListedLock, ...]
    next_after: str | None

    @classmethod
    def of(cls, reply: Raw) -> LockPage:
        """Reads a reply; raises ``InternalError`` if it is no page."""
        locks = _each(ListedLock, reply, "locks")
        return cls(locks, _member(reply, "next_after", str, None))

    def __iter__(self) -> Iterator[ListedLock]:
        return iter(self.locks)

    def __len__(self) -> int:
        return len(self.locks)


@dataclass(frozen=True)
class GuardSeal:
    """Reply of a guard to a revocation: its ``mark``, or the ``problem`` that prevented it."""

    guard: str
    mark: int | None = None
    problem: str | None = None
    raw: Raw = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class RevokedLease:
    """A lease that a revocation ended."""

    lock: str
    lease_id: str
    token: int
    reason: str
    raw: Raw = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Revocation:
    """Effect of a revocation; no lease if it only lifted a lock-delay."""

    leases: tuple[RevokedLease, ...]
    guards: tuple[GuardSeal, ...]
    delay_lifted: bool
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def of(cls, reply: Raw) -> Revocation:
        """Reads a reply; raises ``InternalError`` if it is none to a revocation."""
        first = (_read(RevokedLease, reply),) if "lease_id" in reply else ()
        leases = first + _each(RevokedLease, reply, "others")
        guards = _each(GuardSeal, reply, "guards")
        return cls(leases, guards, _member(reply, "delay_lifted", bool, False), reply)


_KINDS: Mapping[str, type] = {"str": str, "int": int, "Any": object}
_REQUIRED: Any = object()


def _unusable(reply: object, why: str) -> InternalError:
    return InternalError(f"the reply of the server {why}: {str(reply)[:200]}")


def _member(reply: Raw, name: str, kind: type[T], default: Any = _REQUIRED) -> Any:
    value = reply.get(name)
    if value is None and default is not _REQUIRED:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _unusable(reply, f"has no {name} of type {kind.__name__}")
    return value


def _read(kind: type[T], value: object) -> T:
    """Reads an object whose members are named as the fields of this dataclass."""
    if not isinstance(value, dict):
        raise _unusable(value, f"has no {kind.__name__}")
    members: dict[str, Any] = {"raw": value}
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name == "raw" or (each.name not in value and each.default is not MISSING):
            continue
        word = str(each.type).split(" ")[0]
        is_optional = word == "Any" or str(each.type).endswith("None")
        default = None if is_optional else _REQUIRED
        members[each.name] = _member(value, each.name, _KINDS[word], default)
    return kind(**members)


def _each(kind: type[T], reply: Raw, name: str) -> tuple[T, ...]:
    return tuple(_read(kind, value) for value in _member(reply, name, list, []))


def _events(reply: Raw, name: str) -> tuple[Event, ...]:
    found = [value for value in _member(reply, name, list, []) if isinstance(value, dict)]
    return tuple(Event(str(each.get("kind")), each.get("lock"), None, each) for each in found)
