"""What the calls of one client share: servers, identity and tasks in the background.

The engine of this package is asynchronous and runs in one event loop: that of the program
(``AsyncClient``), or that of the client's thread (``Client``).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Coroutine
from typing import Any

from .errors import FencepostError, Invalid
from .settings import Settings
from .transport import Endpoint, retrieved

log = logging.getLogger("fencepost")


class Core:
    """One client in one event loop of one process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._releases: set[asyncio.Task[Any]] = set()
        self.held: set[Any] = set()
        self.is_closed = False
        self.locks = Endpoint(settings.server, settings.bearer, settings.tls)
        self.guard = Endpoint(settings.guard, settings.bearer, settings.tls)

    def is_left(self) -> bool:
        """``True`` if its event loop is closed, or this process was forked from its own."""
        return self._pid != os.getpid() or self.loop.is_closed()

    def check(self) -> None:
        """Raises ``Invalid`` if the client cannot be used here."""
        if self.is_closed:
            raise Invalid("the client is closed; make another one")
        if asyncio.get_running_loop() is not self.loop:
            message = "a client belongs to one event loop, and this is another; make a client in it"
            raise Invalid(message)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs a task that the close of the client cancels, as a renewal."""
        return self._kept(self._tasks, work)

    def release(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs a release in the background; the close of the client waits for it."""
        return self._kept(self._releases, work)

    def _kept(
        self, tasks: set[asyncio.Task[Any]], work: Coroutine[Any, Any, Any]
    ) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        # A release whose caller was cancelled has nothing that awaits it.
        task.add_done_callback(retrieved)
        return task

    def soon(self, work: Any, *args: Any) -> None:
        """Calls back in the loop, from any thread; does nothing once the loop is left."""
        # A child would wake its parent's loop, whose pipe it shares.
        if self.is_left():
            return
        try:
            self.loop.call_soon_threadsafe(work, *args)
        except RuntimeError:
            log.debug("the event loop is closed; %s expires by itself", args or work)

    async def close(self, timeout_s: float) -> bool:
        """Abandons live leases, and waits for releases; ``False`` if some did not end in time."""
        self.is_closed = True
        for held in list(self.held):
            held.abandon()
        is_drained = await self.drained(timeout_s)
        rest = [*self._tasks, *self._releases]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self.locks.close()
        await self.guard.close()
        return is_drained

    async def drained(self, timeout_s: float) -> bool:
        """Waits until the releases in the background have ended; ``False`` if time ran out."""
        pending = set(self._releases)
        if pending:
            _, pending = await asyncio.wait(pending, timeout=timeout_s)
        return not pending


async def best_effort(what: str, release: Awaitable[Any]) -> None:
    """Awaits a release that has no caller; a failure is logged, as the lease expires by itself."""
    try:
        await release
    except (FencepostError, asyncio.TimeoutError) as error:
        log.debug("%s: %r", what, error)


async def shielded(task: asyncio.Task[Any]) -> Any:
    """Awaits a task that continues if the caller is cancelled."""
    return await asyncio.shield(task)
