"""RQ jobs that hold a lock: ``queue.enqueue("rq_job.pay", "42")``, ``rq worker``.

RQ runs each job in the main thread of a process of its own, so its client is made there.
"""

from __future__ import annotations

import functools
import os
import time
from typing import Any, Callable

from interrupting import interrupting

from fencepost import Client, Lease

#: Time to live of the lock, in seconds: a loss is noticed within a third of it.
TTL_S = float(os.environ.get("LOCK_TTL_S", "15"))


def locked(lock_of: Callable[..., str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Runs a job under the lock of its arguments; the loss ends it with ``LeaseLost``.

    A job whose lock is held for longer than 30 s fails with ``Contended``: give it a ``Retry``.
    """

    def decorate(job: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(job)
        def holding(*args: Any, **kwargs: Any) -> Any:
            with Client() as client:
                with interrupting(
                    client.lock(lock_of(*args, **kwargs), ttl=TTL_S, wait=30)
                ) as lease:
                    return job(lease, *args, **kwargs)

        return holding

    return decorate


@locked(lambda order, *_: f"orders/{order}")
def pay(lease: Lease, order: str, seconds: float = 0) -> str:
    """An example."""
    lease.put(f"orders/{order}", "paying")
    time.sleep(seconds)
    lease.put(f"orders/{order}", "paid")
    return "paid"
