"""Jobs of RQ that hold a lock; from ``pip install fencepost[rq]``.

RQ runs each job in the main thread of a process of its own, so its client is made there.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

from .client import Client
from .decorated import check_sync
from .frameworks import LockOf, name_of
from .interrupting import interrupting
from .validation import Seconds


def locked(
    lock: LockOf, *, ttl: Seconds = 15, wait: Seconds | None = 30
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Runs a job under the lock of its arguments: ``@locked("orders/{order}")``.

    The job gets the lease as its first argument, and the loss of the lock ends it with
    ``LeaseLost`` at any line. A job whose lock is held for longer than ``wait`` fails with
    ``Contended``: enqueue it with RQ's ``Retry``. The client has the settings of the environment.
    Raises ``TypeError`` for ``async def`` and generators.
    """

    def decorate(job: Callable[..., Any]) -> Callable[..., Any]:
        # RQ runs a coroutine once the job has returned it.
        check_sync(job)
        signature = inspect.signature(job)

        @functools.wraps(job)
        def holding(*args: Any, **kwargs: Any) -> Any:
            call = signature.bind(None, *args, **kwargs)
            call.apply_defaults()
            name = name_of(lock, **call.arguments)
            with Client() as client, interrupting(client.lock(name, ttl=ttl, wait=wait)) as lease:
                return job(lease, *args, **kwargs)

        return holding

    return decorate
