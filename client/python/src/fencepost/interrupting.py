"""Raises ``LeaseLost`` in the main thread when a lock is lost, for jobs that cannot check.

A worker that runs one job at a time in its main thread (a cron job, a prefork worker of Celery, RQ)
can be interrupted as Ctrl-C does it: at any line. Writes still carry the token, so one that has
left already is refused by the guard.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

from .client import Lease, LockRequest
from .errors import Invalid, LeaseLost

#: Pause, in seconds, in which the main thread leaves the callback.
_LATER_S = 0.01


class _Interruption:
    """Interrupts the main thread while a block is entered."""

    def __init__(self, signum: int, before: Any) -> None:
        self._signum = signum
        self._before = before
        self._main = threading.main_thread().ident
        self._mutex = threading.Lock()
        self._is_over = False
        self._lost: LeaseLost | None = None

    def interrupt(self, error: LeaseLost) -> None:
        """Called with the loss, in any thread."""
        self._lost = error
        if threading.get_ident() != self._main:
            return self._send()
        # The main thread has noticed by itself: an error in this callback would be logged alone.
        later = threading.Timer(_LATER_S, self._send)
        later.daemon = True
        later.start()

    def _send(self) -> None:
        with self._mutex:
            # The default action of the signal, behind the block, is the end of the process.
            if not self._is_over and self._main is not None:
                signal.pthread_kill(self._main, self._signum)

    def handle(self, *args: Any) -> None:
        """Handler of the signal, which an outer block may mean."""
        if self._lost is not None and not self._is_over:
            raise self._lost
        if callable(self._before):
            self._before(*args)

    def end(self) -> None:
        """Sends no signal from now on."""
        with self._mutex:
            self._is_over = True


@contextmanager
def interrupting(request: LockRequest, signum: int | None = None) -> Iterator[Lease]:
    """Holds the lock for the block; its loss ends the block with ``LeaseLost``.

    In the main thread alone, and by SIGUSR2 unless ``signum`` names another signal. Raises as
    ``LockRequest.acquire``, and ``Invalid`` in another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise Invalid("only the main thread can be interrupted; use the lease and its check() here")
    number = signal.SIGUSR2 if signum is None else signum
    before: Callable[..., Any] | int | None = signal.getsignal(number)
    interruption = _Interruption(number, before)
    signal.signal(number, interruption.handle)
    try:
        with request as lease:
            lease.on_lost(interruption.interrupt)
            yield lease
    finally:
        try:
            interruption.end()
        finally:
            signal.signal(number, signal.SIG_DFL if before is None else before)
