"""A base task of Celery that holds a lock; from ``pip install fencepost[celery]``."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

import celery

from .client import Client, Lease
from .errors import Contended, Invalid
from .frameworks import name_of
from .interrupting import interrupting
from .validation import Seconds

_lease: ContextVar[Lease] = ContextVar("fencepost_lease")


class LockedTask(celery.Task):  # type: ignore[misc]
    """Runs under the lock of its arguments: ``@app.task(base=LockedTask, lock="orders/{order}")``.

    The loss of the lock ends the task with ``LeaseLost`` at any line, where the pool runs tasks in
    a main thread (prefork, solo). In another pool set ``lock_interrupts=False``: the task then gets
    ``LeaseLost`` by ``check``, by a write, or at its end. A task whose lock is held for longer than
    ``lock_wait`` is retried later, within ``max_retries``; a wait occupies a worker.
    """

    abstract = True

    #: A template with the names of the task's parameters; or override ``lock_of``.
    lock: str | None = None
    #: Seconds, as ``ttl`` and ``wait`` of ``Client.lock``.
    lock_ttl: Seconds = 15
    lock_wait: Seconds | None = 0
    lock_interrupts = True
    #: A client of the environment's settings by default; a process that is forked may share it.
    fence_client: Client | None = None

    @property
    def lease(self) -> Lease:
        """The lease of the task that runs here; raises ``Invalid`` outside of one."""
        lease = _lease.get(None)
        if lease is None:
            raise Invalid("no task holds its lock here")
        return lease

    def lock_of(self, *args: Any, **kwargs: Any) -> str:
        """The lock of these arguments, by the template."""
        if self.lock is None:
            raise Invalid(f'the task {self.name} names no lock: give it lock="orders/{{order}}"')
        call = inspect.signature(self.run).bind(*args, **kwargs)
        call.apply_defaults()
        return name_of(self.lock, **call.arguments)

    def _client(self) -> Client:
        if self.fence_client is None:
            LockedTask.fence_client = Client()
        return self.fence_client or Client()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.lock_of(*args, **kwargs)
        request = self._client().lock(name, ttl=self.lock_ttl, wait=self.lock_wait)
        with ExitStack() as stack:
            block = interrupting(request) if self.lock_interrupts else request
            try:
                lease = stack.enter_context(block)
            except Contended as error:
                raise self.retry(exc=error, countdown=error.retry_after or 1) from None
            outer = _lease.set(lease)
            try:
                return super().__call__(*args, **kwargs)
            finally:
                _lease.reset(outer)
