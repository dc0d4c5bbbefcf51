"""What redis-py sends again when its connection breaks at a hand-over, and how long it waits for BLPOP.

    redis_py_retries.py GUARD_PORT REDIS_PORT CREDENTIAL…      of one lock, with rising tokens

Each client has the first of its three credentials, and writes. Its next write is lost with its
connection; another client presents the second credential and writes; then this one gets the third.
"""

import asyncio
import socket
import sys
import threading

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

# Longer than redis-py waits for a reply by default.
BLPOP_S = 6


class Lease(redis.CredentialProvider):
    """The lease that this process has, or had."""

    def __init__(self, credential):
        self.credential = credential

    def get_credentials(self):
        return "fence", self.credential

    async def get_credentials_async(self):
        return self.get_credentials()


class Relay:
    """Passes bytes on to the guard. A connection that sends `late` is cut, once `at_late` was called."""

    def __init__(self, guard, at_late):
        self.guard, self.at_late = guard, at_late
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client = self.listener.accept()[0]
            guard = socket.create_connection(("127.0.0.1", self.guard))
            for ends in ((client, guard), (guard, client)):
                threading.Thread(target=self.pass_on, args=ends, daemon=True).start()

    def pass_on(self, source, target):
        while data := source.recv(1 << 16):
            if b"late" in data and self.at_late is not None:
                hand_over, self.at_late = self.at_late, None
                hand_over()
                break
            target.sendall(data)
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class HandOver:
    """A journal, a client of the first lease behind a relay, and the next two leases."""

    def __init__(self, guard, credentials):
        self.lease = Lease(next(credentials))
        others, self.next = next(credentials), next(credentials)
        self.holder = redis.Redis(port=guard, username="fence", password=others)
        self.relay = Relay(guard, self.pass_the_lock_on)

    def pass_the_lock_on(self):
        self.holder.rpush("journal", "other")
        self.lease.credential = self.next

    def settings(self):
        return {"port": self.relay.port, "credential_provider": self.lease}

    def sync(self, **settings):
        client = redis.Redis(**self.settings(), **settings)
        client.delete("journal")
        client.rpush("journal", "first")
        try:
            client.rpush("journal", "late")
        except redis.ConnectionError:
            pass
        return client.lrange("journal", 0, -1)

    async def asynchronous(self, **settings):
        async with redis.asyncio.Redis(**self.settings(), **settings) as client:
            await client.delete("journal")
            await client.rpush("journal", "first")
            try:
                await client.rpush("journal", "late")
            except redis.ConnectionError:
                pass
            return await client.lrange("journal", 0, -1)


def lost_writes(guard, credentials):
    def hand_over():
        return HandOver(guard, credentials)

    # The hazard: redis-py repeats it under the next lease, and the caller does not learn of that.
    repeated = [b"first", b"other", b"late"]
    assert hand_over().sync() == repeated
    assert asyncio.run(hand_over().asynchronous()) == repeated
    # With the guide's settings it is not written.
    written = hand_over().sync(retry=Retry(NoBackoff(), 0), socket_timeout=None)
    assert written == repeated[:2], written
    never = AsyncRetry(NoBackoff(), 0)
    written = asyncio.run(hand_over().asynchronous(retry=never, socket_timeout=None))
    assert written == repeated[:2], written
    print(f"redis-py {redis.__version__}: a lost write is repeated by default, and not as in the guide")


def blocking(guard, direct, credentials):
    lease, direct = Lease(next(credentials)), redis.Redis(port=direct)
    direct.config_resetstat()
    settings = {"port": guard, "credential_provider": lease, "socket_timeout": None}
    popped = ["nothing"]

    def pop():
        popped[0] = redis.Redis(**settings, retry=Retry(NoBackoff(), 0)).blpop("empty", BLPOP_S)

    async def pop_too():
        async with redis.asyncio.Redis(**settings, retry=AsyncRetry(NoBackoff(), 0)) as client:
            return await client.blpop("empty", BLPOP_S)

    thread = threading.Thread(target=pop)
    thread.start()
    assert asyncio.run(pop_too()) is None
    thread.join()
    assert popped == [None], popped
    calls = direct.info("commandstats")["cmdstat_blpop"]["calls"]
    assert calls == 2, f"Redis got {calls} BLPOPs of two clients"
    print(f"redis-py {redis.__version__}: BLPOP waits {BLPOP_S} s for an empty list, and is sent once")


def main(guard, direct, *credentials):
    left = iter(credentials)
    lost_writes(int(guard), left)
    blocking(int(guard), int(direct), left)


main(*sys.argv[1:])
