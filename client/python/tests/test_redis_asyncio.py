"""``fencepost.redis`` with ``redis.asyncio``, over a hand-over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Callable

import pytest
import redis
from servers import PATIENCE_S
from test_redis import RedisSite

import fencepost
from fencepost import AsyncClient, Invalid, LeaseLost
from fencepost.redis import AsyncLeasePool, FencedError

SIZE = 8


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisSite]:
    site = RedisSite(tmp_path_factory.mktemp("redis"), ["--rule", "**=journal"])
    yield site
    site.stop()


@asynccontextmanager
async def clients(port: RedisSite) -> AsyncIterator[tuple[AsyncClient, AsyncClient]]:
    """Of the old and the new holder."""
    settings: dict[str, Any] = {"environment": {}}
    async with AsyncClient(port.server, port.guard, owner="old", **settings) as old:
        async with AsyncClient(port.server, port.guard, owner="new", **settings) as new:
            yield old, new


def pool_of(port: RedisSite, lease: fencepost.AsyncLease | None = None) -> AsyncLeasePool:
    return AsyncLeasePool(lease, host="127.0.0.1", port=port.port, max_connections=SIZE)


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 2 * PATIENCE_S))


def test_no_write_of_the_old_holder_lands_behind_the_first_of_the_new_one(port: RedisSite) -> None:
    async def work() -> None:
        port.direct.delete("journal")
        async with clients(port) as (first, second):
            old = await first.lock("journal", ttl=600).acquire()
            pool = pool_of(port, old)
            store = pool.of(old)

            async def write_on() -> FencedError:
                while True:
                    try:
                        await store.rpush("journal", "old")
                    except FencedError as error:
                        return error
                    except (redis.RedisError, fencepost.FencepostError):
                        continue

            # The old holder does not notice that its lease ends: its next renewal is minutes away.
            writing = [asyncio.ensure_future(write_on()) for _ in range(SIZE)]
            while port.direct.llen("journal") < 10 * SIZE:
                await asyncio.sleep(0.001)
            await second.revoke("journal", "test")
            new = await second.lock("journal", ttl=60).acquire()
            other = pool_of(port, new)
            assert await other.of(new).rpush("journal", "new") > 0
            for error in await asyncio.gather(*writing):
                assert isinstance(error, fencepost.Stale) and isinstance(error, redis.ResponseError)
                assert error.stale and not error.retryable
            assert port.direct.lindex("journal", -1) == b"new"
            for transaction in (False, True):
                late = store.pipeline(transaction=transaction)
                late.set("journal", "late").set("journal", "later")
                with pytest.raises(fencepost.Stale):
                    await late.execute()
            assert port.direct.lindex("journal", -1) == b"new"
            await new.release()
            # The process of the old holder gets the lock again: its pool needs no reconnect.
            again = await first.lock("journal", ttl=60, wait=PATIENCE_S).acquire()
            pool.hold(again)
            assert await pool.of(again).rpush("journal", "again") > 0
            with pytest.raises((LeaseLost, Invalid)):
                await store.rpush("journal", "late")
            await again.release()
            await pool.aclose()
            await other.aclose()

    run(work)


def test_a_connection_from_before_a_hand_over_is_not_used_again(port: RedisSite) -> None:
    async def work() -> None:
        async with clients(port) as (client, _):
            first = await client.lock("journal", ttl=600).acquire()
            pool = pool_of(port, first)
            idle, busy = await pool.get_connection(), await pool.get_connection()
            before = [idle._writer, busy._writer]
            await pool.release(idle)
            await first.release()
            second = await client.lock("journal", ttl=600).acquire()
            pool.hold(second)
            await pool.release(busy)
            assert not busy.is_connected, "closed on its return"
            store = pool.of(second)
            assert await store.set("journal", "second") is True
            after = [await pool.get_connection() for _ in range(2)]
            assert not {id(one._writer) for one in after} & {id(one) for one in before}
            for connection in after:
                await pool.release(connection)
            with pytest.raises(Invalid, match="released"):
                await pool.of(first).set("journal", "late")
            await second.release()
            with pytest.raises(Invalid, match="released"):
                await store.set("journal", "late")
            pool.hold(None)
            with pytest.raises(Invalid, match="no lease"):
                await pool.get_connection()
            await pool.aclose()

    run(work)


def test_a_client_that_keeps_its_connection_never_gets_the_next_lease(port: RedisSite) -> None:
    async def work() -> None:
        async with clients(port) as (client, other):
            first = await client.lock("journal", ttl=600).acquire()
            pool = pool_of(port, first)
            kept = pool.of(first).client()
            await kept.set("journal", "in time")
            await other.revoke("journal", "test")
            second = await client.lock("journal", ttl=60, wait=PATIENCE_S).acquire()
            pool.hold(second)
            assert await pool.of(second).set("journal", "second")
            for _ in range(3):
                with pytest.raises((LeaseLost, redis.RedisError)):
                    await kept.set("journal", "late")
            with pytest.raises(LeaseLost):
                await kept.set("journal", "late")
            assert port.direct.get("journal") == b"second"
            await second.release()
            await kept.aclose()
            await pool.aclose()

    run(work)


def test_nothing_is_sent_before_the_credential_of_a_lease(port: RedisSite) -> None:
    async def work() -> None:
        async with clients(port) as (client, _):
            lease = await client.lock("journal", ttl=600).acquire()
            pool = pool_of(port, lease)
            connection = pool.make_connection()
            await lease.release()
            with pytest.raises(Invalid, match="released"):
                await connection.connect()
            assert not connection.is_connected, "an open socket would carry a command without it"

    run(work)


def test_a_redis_py_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(redis.CredentialProvider, "get_credentials_async")
    with pytest.raises(Invalid, match=r"needs redis-py 5\.3"):
        AsyncLeasePool()
