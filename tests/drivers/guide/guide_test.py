"""The Python examples of docs/guides/redis-pools.md over a hand-over: nothing late is written, and the
first write of the next lease succeeds by itself.

    guide_test.py LOCK_SERVER_PORT GUARD_PORT      beside the files that extract.py writes
"""

import json
import sys
import threading
import time
from urllib.error import HTTPError
from urllib.request import urlopen

import redis

import job
import process
import request
from lease import call

SIZE = 16
PATIENCE_S = 30


def at_once(work):
    """The outcomes of SIZE threads that do `work` at the same time."""
    barrier, outcomes = threading.Barrier(SIZE), [None] * SIZE

    def one(index):
        barrier.wait(PATIENCE_S)
        try:
            outcomes[index] = work()
        except redis.RedisError as error:
            outcomes[index] = error

    threads = [threading.Thread(target=one, args=(index,)) for index in range(SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def refused(words, work):
    """Asserts that `work` is refused with one of these words."""
    try:
        outcome = work()
    except redis.ResponseError as error:
        outcome = str(error)
    assert str(outcome).startswith(words), outcome


def until_refused(word, work):
    """Repeats `work`, which fails each time, until it is refused with this word."""
    end = time.monotonic() + PATIENCE_S
    while True:
        assert time.monotonic() < end, f"never refused with {word}"
        try:
            raise AssertionError(f"not refused: {work()}")
        except redis.RedisError as error:
            if str(error).startswith(word):
                return


class Other:
    """The next holder of a lock, which ends the lease of the present one."""

    def __init__(self, order):
        self.lock = f"orders/{order}"
        shown = json.load(urlopen(f"http://127.0.0.1:{sys.argv[1]}/v1/locks/{self.lock}"))
        call(self.lock, "release", lease_id=shown["holder"]["lease_id"])
        self.grant = call(self.lock, "acquire", owner="other", ttl_ms=60_000)
        password = self.grant["fencing_credential"]
        self.client = redis.Redis(port=int(sys.argv[2]), username="fence", password=password)

    def release(self):
        call(self.lock, "release", lease_id=self.grant["lease_id"])


def one_lease_a_process():
    journal = "orders:42:journal"
    process.lease.begin()
    outcomes = at_once(lambda: process.client.rpush(journal, "first"))
    assert sorted(outcomes) == list(range(1, SIZE + 1)), outcomes
    other = Other(42)
    other.client.rpush(journal, "other")
    refused("FENCED", lambda: process.client.rpush(journal, "late"))
    outcomes = at_once(lambda: process.client.rpush(journal, "late"))
    assert all(isinstance(outcome, redis.RedisError) for outcome in outcomes), outcomes
    other.release()
    process.lease.begin()
    assert process.client.rpush(journal, "next") == SIZE + 2
    outcomes = at_once(lambda: process.client.rpush(journal, "next"))
    assert all(isinstance(outcome, int) for outcome in outcomes), outcomes
    refused("FENCED", lambda: other.client.rpush(journal, "late"))
    expected = [b"first"] * SIZE + [b"other"] + [b"next"] * (SIZE + 1)
    assert process.client.lrange(journal, 0, -1) == expected
    call("orders/42", "release", lease_id=process.lease.grant["lease_id"])


def one_lease_a_job():
    def work(connection):
        connection.rpush("orders:7:journal", "first")
        return connection.client_id()

    used = job.run(7, work)
    assert job.run(7, work) == used, "the second job has another connection"
    refused("NOTOKEN", lambda: redis.Redis(connection_pool=job.pool).rpush("orders:7:journal", "late"))
    refused("NOTOKEN", lambda: job.run(8, work))

    def stalls(connection):
        other = Other(7)
        other.client.rpush("orders:7:journal", "other")
        refused("FENCED", lambda: connection.rpush("orders:7:journal", "late"))
        # The driver connects again, without a token.
        until_refused("NOTOKEN", lambda: connection.rpush("orders:7:journal", "late"))
        other.release()

    try:
        job.run(7, stalls)
        raise AssertionError("its lease had ended")
    except HTTPError as error:
        assert error.code == 410, error
    job.run(7, work)
    with redis.Redis(connection_pool=job.pool) as client:
        assert client.lrange("orders:7:journal", 0, -1) == [b"first"] * 2 + [b"other"] + [b"first"]


def one_lease_a_request():
    assert request.add_to(9, 5) == 5
    assert request.add_to(9, 5) == 10
    refused("NOTOKEN", lambda: redis.Redis(connection_pool=job.pool).incrby("orders:9:total", 5))


for example in (one_lease_a_process, one_lease_a_job, one_lease_a_request):
    example()
    print(f"{example.__name__}: ok", flush=True)
