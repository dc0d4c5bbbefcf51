"""Celery tasks that hold a lock, for prefork workers: ``celery -A celery_task worker``."""

from __future__ import annotations

import os
import time

import celery

from fencepost.celery import LockedTask

app = celery.Celery("orders", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
#: Time to live of a lock, in seconds: a loss is noticed within a third of it.
TTL_S = float(os.environ.get("LOCK_TTL_S", "15"))


@app.task(base=LockedTask, bind=True, lock="orders/{order}", lock_ttl=TTL_S, max_retries=100)
def pay(task: LockedTask, order: str, seconds: float = 0) -> str:
    """An example."""
    task.lease.put(
        f"orders/{order}", f"paying, attempt {task.request.retries} of {task.request.id}"
    )
    time.sleep(seconds)
    task.lease.put(f"orders/{order}", "paid")
    return "paid"
