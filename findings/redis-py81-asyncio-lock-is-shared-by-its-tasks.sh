#!/usr/bin/env bash
# redis-py 8.1.0 (PyPI), Redis 7.0.15: a redis.asyncio Lock object used by several tasks, as one
# would use an asyncio.Lock ("lock = redis.lock(...)" once, "async with lock" in each task). The token
# of the holder is kept in the object, one per THREAD, and tasks share a thread.
#
# Seen:
#   A's lock expires, B gets it, A releases late
#     tasks:    A's release succeeds and frees B's lock; B's own release raises LockError
#     threads:  A's release raises LockNotOwnedError, B keeps the lock
#   A releases in time, the reply is 0.2 s late, B gets the lock meanwhile
#     tasks:    when the reply arrives, B's token is wiped out: B cannot release, LockError, and the
#               lock stays until it expires (for ever with the default timeout=None)
#     threads:  B releases
# Tasks with a Lock object each fare like the threads.
#
# Fails if one of them comes out otherwise.
set -euo pipefail
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then
    kill "$server" 2>"$dir/kill" || true
    wait "$server" || true
  fi
  rm -rf "$dir"
}
trap cleanup EXIT
pip install --quiet --root-user-action ignore --target "$dir/py" redis==8.1.0 2>/dev/null
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/log" &
server=$!
until redis-cli -p "$port" ping >"$dir/out" 2>&1; do kill -0 "$server"; done
redis-cli -p "$port" info server | grep redis_version
PYTHONPATH=$dir/py timeout 60 python3 -u - "$port" <<'PY'
import asyncio
import collections
import socket
import sys
import threading
import time

import redis
import redis.asyncio

port = int(sys.argv[1])
direct = redis.Redis(port=port)


def start_slow_link():
    """A way to Redis on which the replies of scripts, which are the releases, are 0.2 s late."""
    entrance = socket.create_server(("127.0.0.1", 0))

    def requests(client, redis_end, last_sent):
        while data := client.recv(65536):
            last_sent.append(data)
            redis_end.sendall(data)
        redis_end.close()

    def replies(redis_end, client, last_sent):
        while data := redis_end.recv(65536):
            if b"EVALSHA" in last_sent[0]:
                time.sleep(0.2)
            client.sendall(data)

    def accept():
        while True:
            client, _ = entrance.accept()
            redis_end = socket.create_connection(("127.0.0.1", port))
            last_sent = collections.deque([b""], maxlen=1)
            start(requests, client, redis_end, last_sent)
            start(replies, redis_end, client, last_sent)

    def start(run, *arguments):
        threading.Thread(target=run, args=arguments, daemon=True).start()

    start(accept)
    return entrance.getsockname()[1]


def outcome(call):
    try:
        call()
        return "ok"
    except redis.exceptions.LockError as refused:
        return type(refused).__name__


async def outcome_async(call):
    try:
        await call
        return "ok"
    except redis.exceptions.LockError as refused:
        return type(refused).__name__


async def tasks_late(link, own_objects=False):
    direct.flushall()
    client = redis.asyncio.Redis(port=port)
    lock = client.lock("job", timeout=30, sleep=0.01)
    b_lock = client.lock("job", timeout=30, sleep=0.01) if own_objects else lock
    b_has_it, a_is_done = asyncio.Event(), asyncio.Event()

    async def b():
        await b_lock.acquire()
        b_has_it.set()
        await a_is_done.wait()
        return await outcome_async(b_lock.release())

    await lock.acquire()
    direct.pexpire("job", 1)  # instead of 30 s
    waiting = asyncio.create_task(b())
    await b_has_it.wait()
    a_releases = await outcome_async(lock.release()), direct.exists("job")
    a_is_done.set()
    return [a_releases, await waiting]


async def tasks_late_with_a_lock_object_each(link):
    return await tasks_late(link, own_objects=True)


def threads_late(link):
    direct.flushall()
    lock = redis.Redis(port=port).lock("job", timeout=30, sleep=0.01)
    b_has_it, a_is_done = threading.Event(), threading.Event()
    seen = [None, None]

    def b():
        lock.acquire()
        b_has_it.set()
        a_is_done.wait()
        seen[1] = outcome(lock.release)

    second = threading.Thread(target=b)
    lock.acquire()
    direct.pexpire("job", 1)
    second.start()
    b_has_it.wait()
    seen[0] = outcome(lock.release), direct.exists("job")
    a_is_done.set()
    second.join()
    return seen


async def tasks_in_time(link):
    direct.flushall()
    lock = redis.asyncio.Redis(port=link).lock("job", timeout=30, sleep=0.01)

    async def b():
        await lock.acquire()
        await a_releases
        return await outcome_async(lock.release()), direct.exists("job")

    await lock.acquire()
    waiting = asyncio.create_task(b())
    a_releases = asyncio.create_task(outcome_async(lock.release()))
    return [await a_releases, await waiting]


def threads_in_time(link):
    direct.flushall()
    lock = redis.Redis(port=link).lock("job", timeout=30, sleep=0.01)
    seen = [None, None]
    a_is_done = threading.Event()

    def b():
        lock.acquire()
        a_is_done.wait()
        seen[1] = outcome(lock.release), direct.exists("job")

    second = threading.Thread(target=b)
    lock.acquire()
    second.start()
    seen[0] = outcome(lock.release)
    a_is_done.set()
    second.join()
    return seen


async def main():
    link = start_slow_link()
    checks = (
        (tasks_late, [("ok", 0), "LockError"]),
        (tasks_late_with_a_lock_object_each, [("LockNotOwnedError", 1), "ok"]),
        (threads_late, [("LockNotOwnedError", 1), "ok"]),
        (tasks_in_time, ["ok", ("LockError", 1)]),
        (threads_in_time, ["ok", ("ok", 0)]),
    )
    for check, expected in checks:
        if asyncio.iscoroutinefunction(check):
            seen = await check(link)
        else:
            seen = await asyncio.to_thread(check, link)
        print(f"{check.__name__}: A's release {seen[0]}, B's release {seen[1]} (1: the key is there)")
        assert seen == expected, f"{expected} expected"


asyncio.run(main())
PY
