"""Celery tasks that hold a lock, for prefork workers: ``celery -A celery_task worker``."""

from __future__ import annotations

import os
import time
from typing import Any

import celery
from interrupting import interrupting

from fencepost import Client, Contended, Lease

app = celery.Celery("orders", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
# Made once: each forked worker gets a thread and connections of its own.
client = Client()
#: Time to live of a lock, in seconds: a loss is noticed within a third of it.
TTL_S = float(os.environ.get("LOCK_TTL_S", "15"))


class LockedTask(celery.Task):  # type: ignore[misc]
    """Runs under the lock ``lock_of(arguments)``; its loss ends the task with ``LeaseLost``.

    A task whose lock is held by another one is retried later.
    """

    lease: Lease

    def lock_of(self, *args: Any, **kwargs: Any) -> str:
        return f"orders/{args[0]}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with interrupting(client.lock(self.lock_of(*args, **kwargs), ttl=TTL_S)) as lease:
                self.lease = lease
                return super().__call__(*args, **kwargs)
        except Contended as error:
            raise self.retry(exc=error, countdown=error.retry_after or 1) from None


@app.task(base=LockedTask, bind=True, max_retries=100)
def pay(task: LockedTask, order: str, seconds: float = 0) -> str:
    """An example."""
    task.lease.put(f"orders/{order}", "paying")
    time.sleep(seconds)
    task.lease.put(f"orders/{order}", "paid")
    return "paid"
