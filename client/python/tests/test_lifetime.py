"""What ends a lease beside its release and its loss: a fork of the process, and a drop."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import os
import pickle
import select
import signal
import threading
from collections.abc import Iterator
from typing import Any, Callable

import pytest
from servers import PATIENCE_S, FaultProxy, Site, until

from fencepost import AsyncClient, Client, Contended, LeaseLost


@pytest.fixture
def client(site: Site) -> Iterator[Client]:
    with Client(site.server, site.guard, owner="direct", environment={}) as made:
        yield made


def in_child(work: Callable[[], Any]) -> str:
    """What ``work`` returns in a forked child, as a text; empty if it hangs there."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = str(work())
        except BaseException as error:
            found = repr(error)
        os.write(writing, found.encode())
        os._exit(0)
    os.close(writing)
    if not select.select([reading], [], [], PATIENCE_S)[0]:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reading) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return found


@contextlib.contextmanager
def held_by_a_thread(lock: Any) -> Iterator[None]:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def reason_of(use: Callable[[], Any]) -> str:
    try:
        return str(use())
    except LeaseLost as error:
        return error.reason


def test_a_child_sees_that_the_leases_of_its_parent_are_lost(client: Client, name: str) -> None:
    calls: list[LeaseLost] = []
    lease = client.lock(name, ttl=60, on_lost=calls.append).acquire()
    session = client.session(ttl=60)
    bound = session.lock(f"{name}/session")
    bound.on_lost(calls.append)
    released = client.lock(f"{name}/released", ttl=60).acquire()
    released.release()

    def work() -> list[Any]:
        events = [lease.lost, bound.lost, session.lost]
        found = [event.wait(PATIENCE_S) for event in events]
        return [*found, lease.is_live, released.lost.is_set(), calls]

    with held_by_a_thread(lease.lost._cond):  # type: ignore[attr-defined]
        assert in_child(work) == "[True, True, True, False, False, []]"
    lease.check(), bound.check(), session.check()
    assert not lease.lost.is_set() and calls == []
    lease.release(), session.end()


def test_a_child_can_ask_about_a_lease_that_a_thread_of_its_parent_used(
    client: Client, name: str
) -> None:
    with client.lock(name, ttl=60) as lease:

        def work() -> list[str]:
            calls: list[LeaseLost] = []
            lease.on_lost(calls.append)
            return [call.reason for call in calls]

        with held_by_a_thread(lease._trust._lock):
            assert in_child(work) == "['forked']"


def test_a_child_can_enter_what_a_thread_of_its_parent_was_entering(
    site: Site, proxy: FaultProxy, name: str
) -> None:
    with Client(proxy.url, site.guard, environment={}) as faulty:
        hold = proxy.fault("/acquire", "hold-reply")
        request = faulty.lock(name, ttl=60, wait=PATIENCE_S)

        def enter() -> str:
            with request as lease:
                return reason_of(lease.check)

        thread = threading.Thread(target=enter)
        thread.start()
        until("the request", lambda: proxy.bodies("/acquire"))

        def heal() -> None:
            until("the request of the child", lambda: len(proxy.bodies("/acquire")) > 1)
            hold.healed.set()

        healer = threading.Thread(target=heal)
        healer.start()
        assert in_child(enter) == "None"
        thread.join(), healer.join()


def test_a_child_can_enter_what_its_parent_holds(client: Client, name: str) -> None:
    request = client.lock(name, ttl=60)

    def work() -> str:
        with pytest.raises(Contended):
            request.__enter__()
        # The end of the block that began in the parent.
        return reason_of(lambda: request.__exit__(None, None, None))

    with request as lease:
        assert in_child(work) == "forked"
        lease.check()


def test_a_child_is_free_of_the_loop_of_its_parent(
    site: Site, proxy: FaultProxy, name: str
) -> None:
    async def parent() -> None:
        async with AsyncClient(proxy.url, site.guard, environment={}) as client:
            async with client.lock(name, ttl=60) as lease:
                hold = proxy.fault("/acquire", "hold-reply")
                request = client.lock(f"{name}/entered", ttl=60, wait=PATIENCE_S)

                async def enter() -> str:
                    async with request as entered:
                        return reason_of(entered.check)

                task = asyncio.ensure_future(enter())
                while len(proxy.bodies("/acquire")) < 2:
                    await asyncio.sleep(0.005)

                def work() -> list[Any]:
                    return [lease.lost.is_set(), asyncio.run(enter())]

                found = asyncio.get_running_loop().run_in_executor(None, in_child, work)
                while len(proxy.bodies("/acquire")) < 3 and not found.done():
                    await asyncio.sleep(0.005)
                hold.healed.set()
                assert await task == "None"
                assert await found == "[True, 'None']"
                assert not lease.lost.is_set()
                lease.check()

    asyncio.run(asyncio.wait_for(parent(), 2 * PATIENCE_S))


def is_free(client: Client, name: str) -> bool:
    return bool(client.show(name).state == "free")


class Worker:
    """Has a lease, whose callbacks are its methods."""

    def __init__(self, calls: list[LeaseLost]) -> None:
        self.calls = calls
        self.warnings: list[str] = []
        self.lease: Any = None

    def stop(self, lost: LeaseLost) -> None:
        self.calls.append(lost)

    def warn(self, reason: str, _: float) -> None:
        self.warnings.append(reason)


@pytest.mark.parametrize("kind", ["lock", "session"])
def test_a_lease_whose_owner_is_dropped_is_released(client: Client, name: str, kind: str) -> None:
    calls: list[LeaseLost] = []
    worker = Worker(calls)
    if kind == "lock":
        worker.lease = client.lock(
            name, ttl=60, on_lost=worker.stop, max_hold=600, on_warning=worker.warn
        ).acquire()
    else:
        worker.lease = client.session(ttl=60, on_warning=worker.warn).lock(name)
        worker.lease._bound_to.on_lost(worker.stop)
    gc.collect()
    worker.lease.check()
    del worker
    gc.collect()
    until("the release", lambda: is_free(client, name))
    until("the callback", lambda: calls)
    (lost,) = calls
    assert lost.ended_by == ("released" if kind == "lock" else "session-ended")


@pytest.mark.usefixtures("soon_renewed")
def test_a_callback_that_nothing_else_refers_to_is_called(client: Client, name: str) -> None:
    calls: list[LeaseLost] = []
    dropped: list[LeaseLost] = []
    warner = Worker(calls)
    warnings = warner.warnings
    limits: dict[str, Any] = {"max_hold": 60, "warn_before": 59, "on_warning": warner.warn}
    del warner
    lease = client.lock(name, ttl=60, on_lost=Worker(calls).stop, **limits).acquire()
    limits.clear()
    client.lock(f"{name}/dropped", ttl=60, on_lost=Worker(dropped).stop).acquire()
    gc.collect()
    until("the warning", lambda: warnings)
    client.revoke(name, "test")
    until("the callbacks", lambda: calls and dropped)
    assert [lost.ended_by for lost in calls + dropped] == ["revoked", "released"]
    del lease
    assert client.drained(PATIENCE_S) and len(calls) == 1


def test_an_asynchronous_lease_whose_owner_is_dropped_is_released(site: Site, name: str) -> None:
    async def work() -> None:
        async with AsyncClient(site.server, site.guard, environment={}) as client:
            calls: list[LeaseLost] = []
            worker = Worker(calls)
            worker.lease = await client.lock(
                name,
                ttl=60,
                on_lost=worker.stop,
                max_hold=60,
                warn_before=59,
                on_warning=worker.warn,
            ).acquire()
            gc.collect()
            while not worker.warnings:
                await asyncio.sleep(0.005)
            del worker
            gc.collect()
            while (await client.show(name)).state != "free":
                await asyncio.sleep(0.005)
            assert [lost.ended_by for lost in calls] == ["released"]

    asyncio.run(asyncio.wait_for(work(), 2 * PATIENCE_S))


def test_a_session_that_ended_well_is_no_loss_to_its_leases(client: Client, name: str) -> None:
    calls: list[LeaseLost] = []
    with client.session(ttl=60) as session:
        bound = session.lock(name)
        bound.on_lost(calls.append)
    del bound
    gc.collect()
    # What was queued for the loop comes before this.
    client.lock(f"{name}/after", ttl=60).acquire().release()
    assert calls == []


def check_not_copied(*held: Any) -> None:
    for each in held:
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled: it ends with"):
                copied(each)


def test_a_lease_and_a_session_are_not_copied(site: Site, client: Client, name: str) -> None:
    lease, session = client.lock(name, ttl=60).acquire(), client.session(ttl=60)
    bound = session.lock(f"{name}/session")
    check_not_copied(lease, session, bound)

    async def work() -> None:
        async with AsyncClient(site.server, site.guard, environment={}) as other:
            lock = f"{name}/async"
            lease, session = await other.lock(lock, ttl=60).acquire(), await other.session(ttl=60)
            check_not_copied(lease, session, await session.lock(f"{lock}/session"))
            gc.collect()
            await other.drained()
            states = [(await other.show(each)).state for each in (lock, f"{lock}/session")]
            assert states == ["held", "held"]

    asyncio.run(work())
    gc.collect()
    client.drained()
    for each in (lease, bound):
        each.check()
        assert client.show(each.lock).state == "held"
