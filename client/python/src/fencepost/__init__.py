"""Leases with fencing tokens, and writes that a stale holder cannot make.

Synchronous programs use :class:`Client`, asynchronous ones :class:`AsyncClient`; their calls have
the same names, arguments and errors. ``fencepost.redis`` carries the token to Redis.
"""

import logging

from .aio import AsyncClient, AsyncElection, AsyncLease, AsyncLeases, AsyncLockRequest, AsyncSession
from .client import Client, Election, Lease, Leases, LockRequest, Session
from .election import Leader
from .errors import (
    Contended,
    FencepostError,
    InternalError,
    Invalid,
    LeaseLost,
    OutcomeUnknown,
    PreconditionFailed,
    Stale,
    TakeoverRefused,
    Unavailable,
)
from .event_reader import Events
from .events import Event, EventStream
from .objects import Applied, Object
from .queue_position import QueuePosition
from .shown import (
    EndedLease,
    GuardSeal,
    LeaseHolder,
    ListedLock,
    LockPage,
    LockState,
    Revocation,
    RevokedLease,
    Waiter,
)
from .token import FencingToken

logging.getLogger("fencepost").addHandler(logging.NullHandler())

__version__ = "0.1.0"

__all__ = [
    "Applied",
    "AsyncClient",
    "AsyncElection",
    "AsyncLease",
    "AsyncLeases",
    "AsyncLockRequest",
    "AsyncSession",
    "Client",
    "Contended",
    "Election",
    "EndedLease",
    "Event",
    "EventStream",
    "Events",
    "FencepostError",
    "FencingToken",
    "GuardSeal",
    "InternalError",
    "Invalid",
    "Leader",
    "Lease",
    "LeaseHolder",
    "LeaseLost",
    "Leases",
    "ListedLock",
    "LockPage",
    "LockRequest",
    "LockState",
    "Object",
    "OutcomeUnknown",
    "PreconditionFailed",
    "QueuePosition",
    "Revocation",
    "RevokedLease",
    "Session",
    "Stale",
    "TakeoverRefused",
    "Unavailable",
    "Waiter",
]
