"""``fencepost.redis``: pools of redis-py before the guard's Redis port, over a hand-over."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from servers import PATIENCE_S, Site, until

import fencepost
from fencepost import Client, Invalid, LeaseLost
from fencepost.redis import FencedError, LeaseCredentials, LeasePool

SIZE = 16


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class RedisSite(Site):
    """A Redis, its guard with a Redis port, and a lock server."""

    def __init__(self, folder: Path, rules: Sequence[str] = ()) -> None:
        options = ["--dir", str(folder), "--save", "", "--appendonly", "yes"]
        options += ["--maxmemory-policy", "noeviction"]
        # A program that was faster may have taken the port.
        while not self._is_started(free_port(), options):
            pass
        store = f"redis://127.0.0.1:{self.broker_port}"
        super().__init__(["--store", store, "--redis-listen", "127.0.0.1:0", *rules])

    def _is_started(self, port: int, options: Sequence[str]) -> bool:
        self.redis = subprocess.Popen(
            ["redis-server", "--port", str(port), *options], stdout=subprocess.DEVNULL
        )
        self.direct, self.broker_port = redis.Redis(port=port), port
        return bool(until("Redis", self._is_up) == "up")

    def _is_up(self) -> str:
        if self.redis.poll() is not None:
            return "ended"
        try:
            is_ours = self.direct.info("server")["process_id"] == self.redis.pid
        except redis.RedisError:
            return ""
        return "up" if is_ours else ""

    def stop(self) -> None:
        super().stop()
        self.direct.close()
        self.redis.kill()
        self.redis.wait()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisSite]:
    site = RedisSite(tmp_path_factory.mktemp("redis"), ["--rule", "**=journal"])
    yield site
    site.stop()


@pytest.fixture
def clients(port: RedisSite) -> Iterator[tuple[Client, Client]]:
    """Of the old and the new holder."""
    made = [
        Client(port.server, port.guard, owner=owner, environment={}) for owner in ("old", "new")
    ]
    yield made[0], made[1]
    for client in made:
        client.close()


def pool_of(port: RedisSite, lease: fencepost.Lease) -> LeasePool:
    return LeasePool(lease, host="127.0.0.1", port=port.port, max_connections=SIZE)


def at_once(work: object, count: int = SIZE) -> list[threading.Thread]:
    threads = [threading.Thread(target=work) for _ in range(count)]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    return threads


def test_no_write_of_the_old_holder_lands_behind_the_first_of_the_new_one(
    port: RedisSite, clients: tuple[Client, Client]
) -> None:
    port.direct.delete("journal")
    old = clients[0].lock("journal", ttl=600).acquire()
    pool = pool_of(port, old)
    store = pool.of(old)
    refusals: list[Exception] = []

    def write_on() -> None:
        while True:
            try:
                store.rpush("journal", "old")
            except (redis.RedisError, fencepost.FencepostError) as error:
                refusals.append(error)
                if isinstance(error, FencedError):
                    return

    # The old holder does not notice that its lease ends: its next renewal is minutes away.
    threads = at_once(write_on)
    until("writes on every connection", lambda: port.direct.llen("journal") > 10 * SIZE)
    clients[1].revoke("journal", "test")
    new = clients[1].lock("journal", ttl=60).acquire()
    other = pool_of(port, new)
    assert other.of(new).rpush("journal", "new") > 0
    for thread in threads:
        thread.join()
    at = [value for value in port.direct.lrange("journal", 0, -1)].index(b"new")
    assert at == port.direct.llen("journal") - 1, "nothing lands behind the new holder's write"
    fenced = next(error for error in refusals if isinstance(error, FencedError))
    assert fenced.stale and not fenced.retryable
    # Whatever the old pool connects anew is refused as well.
    with pytest.raises(FencedError):
        store.rpush("journal", "late")
    assert port.direct.lindex("journal", -1) == b"new"
    # The process of the old holder gets the lock again: its pool continues without a reconnect.
    new.release()
    again = clients[0].lock("journal", ttl=60, wait=PATIENCE_S).acquire()
    pool.hold(again)
    assert pool.of(again).rpush("journal", "again") > 0
    with pytest.raises((LeaseLost, Invalid)):
        store.rpush("journal", "late")
    again.release()
    for each in (pool, other):
        each.disconnect()


def test_a_connection_from_before_a_hand_over_is_closed_and_not_used_again(
    port: RedisSite, clients: tuple[Client, Client]
) -> None:
    first = clients[0].lock("journal", ttl=600).acquire()
    pool = pool_of(port, first)
    idle, busy = pool.get_connection(), pool.get_connection()
    sockets = {id(connection._sock) for connection in (idle, busy)}
    assert len(sockets) == 2
    pool.release(idle)
    kept = [idle._sock, busy._sock]
    first.release()
    second = clients[0].lock("journal", ttl=600).acquire()
    pool.hold(second)
    assert busy.is_retired()
    pool.release(busy)
    assert busy._sock is None, "closed on its return"
    store = pool.of(second)
    assert store.set("journal", "second") is True
    connections = [pool.get_connection() for _ in range(2)]
    assert not {id(one._sock) for one in connections} & {id(one) for one in kept}
    for connection in connections:
        pool.release(connection)
    late = pool.of(first)
    with pytest.raises(Invalid, match="released"):
        late.set("journal", "late")
    second.release()
    with pytest.raises(Invalid, match="released"):
        store.set("journal", "late")
    pool.hold(None)
    with pytest.raises(Invalid, match="no lease"):
        pool.get_connection()
    pool.disconnect()


def test_a_pipeline_that_is_fenced_raises_the_error_of_both_packages(
    port: RedisSite, clients: tuple[Client, Client]
) -> None:
    old = clients[0].lock("journal", ttl=600).acquire()
    pool = pool_of(port, old)
    pool.of(old).set("journal", "old")
    clients[1].revoke("journal", "test")
    with clients[1].lock("journal", ttl=60) as new:
        other = pool_of(port, new)
        other.of(new).set("journal", "new")
        # The guard may have closed the connection first; the pool then connects under old's token.
        for transaction in (False, True):
            pipeline = pool.of(old).pipeline(transaction=transaction)
            pipeline.set("journal", "late").set("journal", "later")
            with pytest.raises(fencepost.Stale) as refused:
                pipeline.execute()
            assert isinstance(refused.value, redis.ResponseError)
        assert other.of(new).get("journal") == b"new"
        other.disconnect()
    pool.disconnect()


def test_a_client_that_keeps_its_connection_never_gets_the_next_lease(
    port: RedisSite, clients: tuple[Client, Client]
) -> None:
    first = clients[0].lock("journal", ttl=600).acquire()
    pool = pool_of(port, first)
    kept = pool.of(first).client()
    kept.set("journal", "in time")
    watching = pool.of(first).pipeline()
    watching.watch("journal")
    clients[1].revoke("journal", "test")
    # The same process gets the lock again. Its write reaches the guard, which closes the others.
    second = clients[0].lock("journal", ttl=60, wait=PATIENCE_S).acquire()
    pool.hold(second)
    assert pool.of(second).set("journal", "second")
    for _ in range(3):
        with pytest.raises((LeaseLost, redis.RedisError)):
            kept.set("journal", "late")
        with pytest.raises((LeaseLost, redis.RedisError)):
            watching.get("journal")
    with pytest.raises(LeaseLost):
        kept.set("journal", "late")
    assert port.direct.get("journal") == b"second"
    second.release()
    pool.disconnect()


def test_a_command_that_blocks_for_long_is_sent_once(
    port: RedisSite, clients: tuple[Client, Client], caplog: pytest.LogCaptureFixture
) -> None:
    longer_than_redis_py_waits_by_default = 6
    popped: list[object] = []

    async def pop() -> object:
        credentials, never = LeaseCredentials(lease), Retry(NoBackoff(), 0)
        async with redis.asyncio.Redis(
            port=port.port, credential_provider=credentials, retry=never, socket_timeout=None
        ) as client:
            return await client.blpop("empty", longer_than_redis_py_waits_by_default)

    with clients[0].lock("journal", ttl=600) as lease:
        port.direct.config_resetstat()
        pool = pool_of(port, lease)
        store = pool.of(lease)
        [thread] = at_once(
            lambda: popped.append(store.blpop("empty", longer_than_redis_py_waits_by_default)), 1
        )
        assert asyncio.run(pop()) is None
        thread.join()
        assert popped == [None]
        assert port.direct.info("commandstats")["cmdstat_blpop"]["calls"] == 2
        pool.disconnect()
    # redis-py warns of a provider that is not made for asyncio.
    assert not [record for record in caplog.records if record.name.startswith("redis")]


class _Held:
    """A lease without a server."""

    fencing_credential = "credential"

    def check(self) -> None:
        pass


def test_a_lease_that_is_held_again_gets_no_connection_of_the_one_between(
    port: RedisSite,
) -> None:
    stamp = LeasePool(port=port.port).make_connection()._stamp
    first, second = _Held(), _Held()
    credentials = stamp._credentials
    credentials.hold(second)
    stamp.get_credentials()
    credentials.hold(first)
    assert stamp.lease is second is not credentials.lease
    stamp.pinned = second
    with pytest.raises(LeaseLost):
        stamp.get_credentials()
