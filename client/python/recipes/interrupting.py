"""Raises ``LeaseLost`` in the main thread when a lock is lost, for jobs that cannot ask.

A worker that runs one job at a time in its main thread (a cron job, a prefork worker of Celery, RQ)
can be interrupted as Ctrl-C does it: at whatever line it is. Writes still carry the token, so one
that has left already is refused by the guard.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fencepost import Lease, LeaseLost, LockRequest


@contextmanager
def interrupting(request: LockRequest, signum: int = signal.SIGUSR2) -> Iterator[Lease]:
    """Holds the lock for the block; its loss ends the block with ``LeaseLost``."""
    main = threading.main_thread().ident
    lost: list[LeaseLost] = []

    def interrupt(error: LeaseLost) -> None:
        lost.append(error)
        if main is not None:
            signal.pthread_kill(main, signum)

    def end(*_: object) -> None:
        if lost:
            raise lost[0]

    before = signal.signal(signum, end)
    try:
        with request as lease:
            lease.on_lost(interrupt)
            yield lease
    finally:
        signal.signal(signum, before)
