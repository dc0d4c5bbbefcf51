"""A pool of redis-py over a hand-over. Its credential provider presents the newest lease.

    redis_py_pool.py HOST PORT FIRST OTHER NEXT

FIRST, OTHER and NEXT are credentials of one lock, each with a higher token. The pool holds FIRST,
another client presents OTHER, and then the pool's process acquires NEXT.
"""

import select
import sys
import threading

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

SIZE = 16
PATIENCE_S = 30


class Lease(redis.CredentialProvider):
    """The lease that this process has, or had."""

    def __init__(self, credential):
        self.credential = credential

    def get_credentials(self):
        return "fence", self.credential


def at_once(work):
    """The outcomes of SIZE threads that do `work` at the same time."""
    barrier, outcomes = threading.Barrier(SIZE), [None] * SIZE

    def one(index):
        barrier.wait(PATIENCE_S)
        try:
            outcomes[index] = work(index)
        except redis.RedisError as error:
            outcomes[index] = error

    threads = [threading.Thread(target=one, args=(index,)) for index in range(SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def is_fenced(outcome):
    return isinstance(outcome, redis.RedisError) and "FENCED" in str(outcome)


def on_each_connection(pool, value):
    """One write on each of SIZE connections, as the pool hands them out."""
    connections = [pool.get_connection() for _ in range(SIZE)]
    try:
        for connection in connections:
            connection.send_command("RPUSH", "journal", value)
        return [connection.read_response() for connection in connections]
    finally:
        for connection in connections:
            pool.release(connection)


def until_closed(connections):
    """Waits until the guard has closed each of them; the pool has not noticed yet."""
    for connection in connections:
        if connection._sock is not None:
            ready, _, _ = select.select([connection._sock], [], [], PATIENCE_S)
            assert ready, "a connection of the pool is open that can only be refused"


def main(host, port, first, other, next_):
    lease, never = Lease(first), Retry(NoBackoff(), 0)
    pool = redis.ConnectionPool(
        host=host, port=int(port), max_connections=SIZE, credential_provider=lease, retry=never
    )
    client = redis.Redis(connection_pool=pool, retry=never)
    client.delete("journal")
    assert len(on_each_connection(pool, "first")) == SIZE
    connections = [pool.get_connection() for _ in range(SIZE)]
    for connection in connections:
        pool.release(connection)

    holder = redis.Redis(host=host, port=int(port), username="fence", password=other)
    holder.rpush("journal", "other")
    late = []
    try:
        client.rpush("journal", "late")
    except redis.ResponseError as error:
        late.append(error)
    assert len(late) == 1 and is_fenced(late[0]), late
    until_closed(connections)
    # The old lease is all that the process has: whatever connects anew is refused as well.
    late = at_once(lambda _: client.rpush("journal", "late"))
    assert all(map(is_fenced, late)), late
    assert holder.lrange("journal", 0, -1) == [b"first"] * SIZE + [b"other"]

    lease.credential = next_
    assert client.rpush("journal", "next") == SIZE + 2
    assert len(on_each_connection(pool, "next")) == SIZE
    late = at_once(lambda _: holder.rpush("journal", "late"))
    assert all(map(is_fenced, late)), late
    assert client.llen("journal") == 2 * SIZE + 2
    print(f"redis-py {redis.__version__}: a pool of {SIZE} presents the newest lease by itself")


main(*sys.argv[1:])
