"""RQ jobs that hold a lock: ``queue.enqueue("rq_job.pay", "42")``, ``rq worker``."""

from __future__ import annotations

import os
import time

from fencepost import Lease
from fencepost.rq import locked

#: Time to live of the lock, in seconds: a loss is noticed within a third of it.
TTL_S = float(os.environ.get("LOCK_TTL_S", "15"))


@locked("orders/{order}", ttl=TTL_S)
def pay(lease: Lease, order: str, seconds: float = 0) -> str:
    """An example."""
    lease.put(f"orders/{order}", "paying")
    time.sleep(seconds)
    lease.put(f"orders/{order}", "paid")
    return "paid"
