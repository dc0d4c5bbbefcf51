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
    "Event",
    "EventStream",
    "Events",
    "FencepostError",
    "FencingToken",
    "InternalError",
    "Invalid",
    "Leader",
    "Lease",
    "LeaseLost",
    "Leases",
    "LockRequest",
    "Object",
    "OutcomeUnknown",
    "PreconditionFailed",
    "Session",
    "Stale",
    "TakeoverRefused",
    "Unavailable",
]
