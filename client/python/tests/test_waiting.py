"""One attempt, a wait without end, and the position in the queue."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from typing import Any, Callable

import pytest
from servers import PATIENCE_S, FaultProxy, Site, until

import fencepost
from fencepost import AsyncClient, Client, Invalid, QueuePosition


def test_one_attempt_is_a_lease_or_none(direct: Client, name: str) -> None:
    request = direct.lock(name, ttl=60, wait=PATIENCE_S)
    assert not request.locked()
    lease = request.acquire(blocking=False)
    assert lease is not None and request.locked()
    assert direct.lock(name, wait=PATIENCE_S).acquire(blocking=False) is None
    assert direct.show(name).queue_length == 0
    lease.release()
    assert not request.locked()
    # A server that cannot be reached is no lock that is held.
    with Client("http://127.0.0.1:9", environment={}) as nowhere:
        with pytest.raises(fencepost.Unavailable):
            nowhere.lock(name, patience=0).acquire(blocking=False)


def test_a_wait_has_no_end_with_none(
    direct: Client, faulty: Client, proxy: FaultProxy, name: str
) -> None:
    kept: list[fencepost.Lease] = []
    with direct.lock(name, ttl=60):
        # Neither a refusal of the wait nor a server that is unreachable for now ends it.
        held = {"code": "lock-held", "detail": "d", "hint": "h", "retryable": True}
        proxy.fault("/acquire", "forge-reply", status=423, content=json.dumps(held).encode())
        proxy.fault("/acquire", "refuse", times=3)
        request = faulty.lock(name, wait=None, patience=0)
        waiting = threading.Thread(target=lambda: kept.append(request.acquire()))
        waiting.start()
        until("the waiter", lambda: direct.show(name).queue_length == 1)
        assert proxy.bodies("/acquire")[-1]["wait_ms"] == 300_000
    waiting.join()
    kept[0].check()
    with pytest.raises(Invalid, match="or None for a wait without an end"):
        direct.lock(name, wait=float("inf"))


def test_a_waiter_gets_its_position(direct: Client, name: str) -> None:
    seen: list[QueuePosition] = []

    def report(position: QueuePosition) -> None:
        seen.append(position)
        raise ZeroDivisionError("a callback that fails ends no wait")

    first = direct.lock(name, ttl=60).acquire()
    kept: list[fencepost.Lease] = []
    before = direct.lock(name, ttl=60, wait=None)
    request = direct.lock(name, ttl=60, wait=None, on_queued=report)
    threads = [threading.Thread(target=lambda: kept.append(before.acquire()))]
    threads[0].start()
    until("the first waiter", lambda: direct.show(name).queue_length == 1)
    threads.append(threading.Thread(target=lambda: kept.append(request.acquire())))
    threads[1].start()
    until("a position", lambda: seen)
    assert (seen[0].lock, seen[0].position, seen[0].length) == (name, 2, 2)
    assert seen[0].holder is not None and seen[0].holder.token == first.token
    first.release()
    until("the next one", lambda: seen[-1].position == 1)
    assert seen[-1].length == 1
    kept[0].release()
    for thread in threads:
        thread.join()
    assert kept[1].token > kept[0].token
    # It is not asked for where nothing waits.
    count = len(seen)
    kept[1].release()
    with direct.lock(name, ttl=60, on_queued=report):
        assert len(seen) == count


#: Each way to wait for this lock, with the options, by a client or a session.
WAYS: dict[str, Callable[[Any, str, Any], Any]] = {
    "session.lock": lambda one, name, more: one.lock(name, **more),
    "session.lock_all": lambda one, name, more: one.lock_all([name, f"{name}/free"], **more),
    "client.lock_all": lambda one, name, more: one.lock_all([f"{name}/free", name], **more),
    "election.campaign": lambda one, name, more: one.election(name).campaign(**more),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_wait_reports_positions(direct: Client, name: str, way: str) -> None:
    seen: queue.Queue[QueuePosition] = queue.Queue()
    held = direct.lock(name, ttl=60).acquire()
    with direct.session(ttl=60) as session:
        one = session if way.startswith("session") else direct
        more = {"wait": None, "on_queued": seen.put}
        kept: list[Any] = []
        waiting = threading.Thread(target=lambda: kept.append(WAYS[way](one, name, more)))
        waiting.start()
        locks = {name, f"{name}/free"} if way.endswith("_all") else {name}
        found = {each.lock: each for each in (seen.get(timeout=PATIENCE_S) for _ in locks)}
        assert found.keys() == locks
        assert (found[name].position, found[name].length) == (1, 1)
        assert found[name].holder is not None and found[name].holder.token == held.token
        held.release()
        waiting.join()
        kept[0].release()


def test_a_task_waits_in_the_same_ways(site: Site, name: str) -> None:
    async def work() -> None:
        async with AsyncClient(site.server, site.guard, environment={}) as client:
            request = client.lock(name, ttl=60)
            first = await request.acquire(blocking=False)
            assert first is not None and await request.locked()
            assert await client.lock(name).acquire(blocking=False) is None
            positions: asyncio.Queue[QueuePosition] = asyncio.Queue()
            waiting = client.lock(name, wait=None, on_queued=positions.put_nowait)
            task = asyncio.ensure_future(waiting.acquire())
            assert (await asyncio.wait_for(positions.get(), PATIENCE_S)).position == 1
            await first.release()
            second = await task
            assert second.token > first.token
            await second.release()

    asyncio.run(work())


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_a_task_reports_positions(site: Site, name: str, way: str) -> None:
    async def work() -> None:
        seen: asyncio.Queue[QueuePosition] = asyncio.Queue()
        async with AsyncClient(site.server, site.guard, environment={}) as client:
            held = await client.lock(name, ttl=60).acquire()
            async with await client.session(ttl=60) as session:
                one = session if way.startswith("session") else client
                more = {"wait": None, "on_queued": seen.put_nowait}
                task = asyncio.ensure_future(WAYS[way](one, name, more))
                locks = {name, f"{name}/free"} if way.endswith("_all") else {name}
                found = {}
                for _ in locks:
                    position = await asyncio.wait_for(seen.get(), PATIENCE_S)
                    found[position.lock] = (position.position, position.length)
                assert found.keys() == locks and found[name] == (1, 1)
                await held.release()
                await (await task).release()

    asyncio.run(work())
