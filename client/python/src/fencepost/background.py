"""The thread of a synchronous client: one event loop, which renews all its leases."""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, Callable, Generic, TypeVar

from . import forks
from .core import Core
from .errors import Invalid
from .settings import Settings

T = TypeVar("T")

#: Longest time for which the end of the process waits for releases, in seconds.
_EXIT_S = 2.0


class _Delivery(Generic[T]):
    """Result of a call that a waiting thread takes, or that is undone if the thread has gone."""

    def __init__(self, undo: Callable[[T], None] | None) -> None:
        self._undo = undo
        self._lock = threading.Lock()
        self._is_left = False
        self._results: list[T] = []

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        result = await work
        with self._lock:
            self._results.append(result)
            is_left = self._is_left
        if is_left and self._undo is not None:
            self._undo(result)
        return result

    def leave(self, core: Core) -> None:
        """The waiting thread was interrupted: nothing will take the result."""
        with self._lock:
            self._is_left = True
            results = list(self._results)
        for result in results:
            if self._undo is not None:
                core.soon(self._undo, result)


class Background:
    """The thread, started by the first call, and again in a child that was forked."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._is_closed = False
        self._begin_anew()
        _all.add(self)
        forks.register(self)

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._core: Core | None = None

    def after_fork(self) -> None:
        """Forgets the parent's thread and connections, without closing what they share."""
        _of_parents.append(self._core)
        self._begin_anew()

    def core(self) -> Core:
        """The engine; starts its thread if there is none."""
        with self._lock:
            if self._is_closed:
                raise Invalid("the client is closed; make another one")
            if self._core is None:
                begun: list[Core] = []
                is_begun = threading.Event()

                async def begin() -> None:
                    begun.append(Core(self._settings))
                    is_begun.set()

                loop = asyncio.new_event_loop()
                first = loop.create_task(begin())
                thread = threading.Thread(
                    target=_run, args=(loop,), name="fencepost-renewal", daemon=True
                )
                thread.start()
                is_begun.wait()
                del first
                self._core = begun[0]
            return self._core

    def run(self, work: Callable[[Core], Coroutine[Any, Any, T]], undo: Any = None) -> T:
        """Runs ``work`` in the loop and waits for it.

        If the waiting thread is interrupted the work is cancelled, and a result that it may have
        had already is undone by ``undo``.
        """
        core = self.core()
        if threading.current_thread().name == "fencepost-renewal":
            raise Invalid(
                "a callback of a lease must not call the client: it would wait for itself"
            )
        delivery: _Delivery[T] = _Delivery(undo)
        future = asyncio.run_coroutine_threadsafe(delivery.run(work(core)), core.loop)
        try:
            return future.result()
        except BaseException as error:
            # An interrupt of this thread, and not the outcome of the work.
            if not future.done() or future.cancelled() or future.exception() is not error:
                future.cancel()
                delivery.leave(core)
            raise

    def close(self, timeout_s: float) -> bool:
        """Releases what is still held, and ends the thread; ``False`` if time ran out."""
        with self._lock:
            self._is_closed = True
            core, self._core = self._core, None
        if core is None:
            return True
        future = asyncio.run_coroutine_threadsafe(_closed(core, timeout_s), core.loop)
        try:
            return future.result(timeout_s + 1)
        except Exception:
            return False
        finally:
            core.soon(core.loop.stop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _closed(core: Core, timeout_s: float) -> bool:
    is_drained = await core.close(timeout_s)
    await core.loop.shutdown_asyncgens()
    return is_drained


_all: weakref.WeakSet[Background] = weakref.WeakSet()
#: Kept for ever, because a finaliser could write to a connection that the parent uses.
_of_parents: list[Core | None] = []


def _at_exit() -> None:
    for background in list(_all):
        background.close(_EXIT_S)


atexit.register(_at_exit)
