"""``AsyncClient`` over a real lock server and guard: what the event loop adds."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable
from typing import Any, Callable

import pytest
from servers import PATIENCE_S, FaultProxy, Site

from fencepost import AsyncClient, Invalid, LeaseLost, clock
from fencepost.timing import Window


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(work(), 2 * PATIENCE_S))  # type: ignore[arg-type]


def client(server: str, guard: str, **options: Any) -> AsyncClient:
    return AsyncClient(server, guard, owner="tester", environment={}, **options)


async def until(what: str, condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        is_last = time.monotonic() > deadline
        value = condition()
        if await value if asyncio.iscoroutine(value) else value:
            return
        assert not is_last, f"not within {PATIENCE_S} s: {what}"
        await asyncio.sleep(0.005)


@pytest.mark.usefixtures("soon_renewed")
def test_the_loss_of_a_lease_cancels_the_body(site: Site, name: str) -> None:
    async def work() -> None:
        async with client(site.server, site.guard) as direct:
            cancelled = False
            with pytest.raises(LeaseLost) as lost:
                async with direct.lock(name, ttl=60) as held:
                    await direct.revoke(name, "test")
                    try:
                        await held.lost.wait()
                        for _ in range(1_000):
                            await asyncio.sleep(0)
                        raise AssertionError("the body was not cancelled")
                    except asyncio.CancelledError:
                        cancelled = True
                        raise
            assert cancelled and lost.value.ended_by == "revoked"
            # The task continues as one that was never cancelled.
            await asyncio.sleep(0)
            if sys.version_info >= (3, 11):
                task = asyncio.current_task()
                assert task is not None and task.cancelling() == 0
            async with direct.lock(name, ttl=60) as lease:
                await lease.put(name, "1")

    run(work)


def test_the_close_of_a_client_cancels_the_blocks_of_its_leases(site: Site, name: str) -> None:
    async def work() -> None:
        other = client(site.server, site.guard)
        entered = asyncio.Event()

        async def body() -> None:
            async with other.lock(name, ttl=60):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(body())
        await entered.wait()
        assert await other.close(PATIENCE_S)
        with pytest.raises(LeaseLost, match="released"):
            await task

    run(work)


def test_a_cancellation_from_elsewhere_stays_one(site: Site, name: str) -> None:
    async def work() -> None:
        async with client(site.server, site.guard) as direct:
            entered = asyncio.Event()

            async def body() -> None:
                async with direct.lock(name, ttl=60):
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.ensure_future(body())
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until("the release", lambda: is_free(direct, name))

    run(work)


@pytest.mark.usefixtures("soon_renewed")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="a task does not count its cancellations")
def test_a_cancellation_from_elsewhere_wins_over_a_loss(site: Site, name: str) -> None:
    async def work() -> None:
        async with client(site.server, site.guard) as direct:

            async def body() -> None:
                async with direct.lock(name, ttl=60) as lease:
                    loop, task = asyncio.get_running_loop(), asyncio.current_task()
                    assert task is not None
                    lease.on_lost(lambda _: loop.call_soon_threadsafe(task.cancel))
                    await direct.revoke(name, "test")
                    await asyncio.Event().wait()

            with pytest.raises(asyncio.CancelledError):
                await asyncio.ensure_future(body())

    run(work)


async def is_free(direct: AsyncClient, name: str) -> bool:
    return bool((await direct.show(name)).state == "free")


@pytest.mark.usefixtures("soon_renewed")
def test_the_error_of_the_body_is_not_masked(site: Site, name: str) -> None:
    async def work() -> None:
        async with client(site.server, site.guard) as direct:
            for swallowed in (False, True):
                with pytest.raises(ZeroDivisionError):
                    async with direct.lock(name, ttl=60) as lease:
                        await direct.revoke(name, "test")
                        try:
                            await lease.lost.wait()
                            await asyncio.Event().wait()
                        except asyncio.CancelledError:
                            if not swallowed:
                                raise ZeroDivisionError from None
                        raise ZeroDivisionError

    run(work)


def test_a_blocked_loop_loses_its_lease_and_says_so(site: Site, name: str) -> None:
    async def work() -> None:
        async with client(site.server, site.guard) as direct:
            with pytest.raises(LeaseLost) as lost:
                async with direct.lock(name, ttl=1) as lease:
                    # Nothing else runs in this loop until the deadline has passed.
                    deadline_ms = lease._trust.window.deadline_ms
                    while clock.now_ms() < deadline_ms:
                        time.sleep(0.01)
                    # No task of the lease has run yet: the check reads the clock.
                    with pytest.raises(LeaseLost):
                        lease.check()
                    with pytest.raises(LeaseLost):
                        await lease.put(name, "late")
            assert lost.value.reason == "deadline"

    run(work)


def test_a_cancelled_acquire_releases_what_it_was_granted(
    site: Site, proxy: FaultProxy, name: str
) -> None:
    async def work() -> None:
        async with client(proxy.url, site.guard) as faulty:
            hold = proxy.fault("/acquire", "hold-reply")
            task = asyncio.ensure_future(faulty.lock(name, ttl=60, wait=PATIENCE_S).acquire())
            await until("the grant", lambda: is_held(faulty, name))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until("the release", lambda: is_free(faulty, name))
            (acquired,) = proxy.bodies("/acquire")
            assert proxy.bodies("/release")[0]["lease_id"] == acquired["lease_id"]
            hold.healed.set()

    run(work)


async def is_held(direct: AsyncClient, name: str) -> bool:
    return not await is_free(direct, name)


@pytest.mark.usefixtures("soon_renewed")
def test_lost_replies_change_nothing(site: Site, proxy: FaultProxy, name: str) -> None:
    async def work() -> None:
        async with client(proxy.url, site.guard) as faulty:
            proxy.fault("/acquire", "drop-reply")
            proxy.fault("/renew", "drop-reply")
            proxy.fault("/release", "drop-reply")
            async with faulty.lock(name, ttl=60) as lease:
                await until("a renewal", lambda: len(proxy.bodies("/renew")) >= 2)
                lease.check()
            assert {body["lease_id"] for body in proxy.bodies("/acquire")} == {lease.lease_id}
            assert len(proxy.bodies("/release")) == 2
            assert await is_free(faulty, name)

    run(work)


@pytest.mark.usefixtures("soon_renewed")
def test_a_renewal_without_a_reply_is_overlapped_by_another(
    site: Site, proxy: FaultProxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Window, "renewal_patience_ms", lambda window, now_ms: 100)

    async def work() -> None:
        async with client(proxy.url, site.guard) as faulty:
            hold = proxy.fault("/renew", "hold-reply")
            async with faulty.lock(name, ttl=60) as lease:
                before_ms = lease._trust.window.deadline_ms
                await until("a later window", lambda: lease._trust.window.deadline_ms > before_ms)
                assert not hold.healed.is_set() and lease.is_live
            hold.healed.set()

    run(work)


def test_a_wait_keeps_its_place_beyond_one_request(
    site: Site, proxy: FaultProxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fencepost import acquire

    # The overlap is longer than a request to a busy server takes, as in the protocol.
    monkeypatch.setattr(acquire, "WAIT_MS_MAX", 20_000)
    monkeypatch.setattr(acquire, "_NEXT_AFTER_S", 0.1)
    monkeypatch.setattr(acquire, "_OVERLAP_S", 3)

    async def work() -> None:
        async with client(proxy.url, site.guard) as faulty:
            async with client(site.server, site.guard) as direct:
                holder = await direct.lock(name, ttl=60).acquire()
                first = asyncio.ensure_future(faulty.lock(name, ttl=60, wait=300).acquire())
                await until("a second request", lambda: len(proxy.bodies("/acquire")) >= 2)
                second = asyncio.ensure_future(direct.lock(name, ttl=60, wait=300).acquire())

                async def waiters() -> bool:
                    return bool((await direct.show(name)).queue_length == 2)

                await until("both in the queue", waiters)
                # It is sent when the first, which began the wait, has been given up.
                await until("a third request", lambda: len(proxy.bodies("/acquire")) >= 3)
                await holder.release()
                lease = await first
                assert not second.done(), "the first waiter kept its place"
                assert {body["lease_id"] for body in proxy.bodies("/acquire")} == {lease.lease_id}
                await lease.release()
                await (await second).release()

    run(work)


@pytest.mark.usefixtures("soon_renewed")
def test_a_session_that_is_lost_cancels_its_block(site: Site, name: str) -> None:
    async def work() -> None:
        async with client(site.server, site.guard) as direct:
            with pytest.raises(LeaseLost):
                async with await direct.session(ttl=60) as session:
                    lease = await session.lock(name)
                    path = f"/v1/sessions/{session.session_id}"
                    await direct._core().locks.send("DELETE", path, 5_000)
                    await asyncio.Event().wait()
            with pytest.raises(LeaseLost):
                lease.check()
            async with await direct.lock_all([f"{name}/a", f"{name}/b"], ttl=60) as leases:
                leases.check()
            assert await is_free(direct, f"{name}/a")

    run(work)


def test_a_session_whose_reply_is_lost_is_begun_once(
    site: Site, proxy: FaultProxy, name: str
) -> None:
    async def work() -> None:
        async with client(proxy.url, site.guard) as faulty:
            proxy.fault("/v1/sessions", "drop-reply")
            async with await faulty.session(ttl=60) as session:
                bodies = proxy.bodies("/v1/sessions")
                assert [body["session_id"] for body in bodies] == [session.session_id] * 2
                async with await session.lock(name) as lease:
                    await lease.put(name, "1")

    run(work)


def test_a_client_belongs_to_one_loop_at_a_time(site: Site, name: str) -> None:
    shared = client(site.server, site.guard)
    request = shared.lock(name, ttl=60)

    @request
    async def job() -> str:
        assert shared._shared is not None
        return str((await shared.show(name)).state)

    async def twice() -> None:
        assert await job() == "held"
        with pytest.raises(Invalid, match="one event loop"):
            await asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(other()))

    async def other() -> None:
        await shared.show(name)

    run(twice)
    run(twice)


def test_a_child_has_no_lease_of_its_parent(site: Site, name: str) -> None:
    async def work() -> None:
        async with client(site.server, site.guard) as direct:
            async with direct.lock(name, ttl=60) as lease:
                child = os.fork()
                if child == 0:
                    try:
                        lease.check()
                    except LeaseLost as error:
                        os._exit(0 if error.reason == "forked" else 1)
                    os._exit(2)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
                lease.check()

    run(work)


def test_events_are_resumed_where_they_broke(site: Site, proxy: FaultProxy, name: str) -> None:
    async def work() -> None:
        async with client(site.server, site.guard) as direct:
            async with await direct.events(name) as events:
                items = events.__aiter__()
                assert (await items.__anext__()).kind == "ready"
                assert events._body is not None
                await events._body.close()
                async with direct.lock(name):
                    pass
                kinds = [(await items.__anext__()).kind for _ in range(4)]
                assert kinds == ["broken", "resumed", "granted", "released"]

    run(work)


def test_a_web_server_is_no_fencepost(site: Site) -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\nconnection: close\r\n\r\n<html></html>"
        )
        await writer.drain()
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(page, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with client(url, url) as wrong:
            with pytest.raises(Invalid, match="<html>") as refused:
                await wrong.show("a")
            assert url in str(refused.value)
            with pytest.raises(Invalid, match="<html>"):
                await wrong.get("a")
            with pytest.raises(Invalid, match="<html>"):
                await wrong.lock("a").acquire()
        server.close()

    run(work)
