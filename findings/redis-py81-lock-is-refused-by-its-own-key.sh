#!/usr/bin/env bash
# redis-py 8.1.0 beside 5.3.1 (PyPI), Redis 7.0.15: redis.Redis(...).lock("job"), all defaults. The
# reply of one request is lost with its connection. Since retries are a default (ten of them), the
# client sends the same request again, and that one meets what the first has done.
#
# Seen:
#   lost reply of acquire()   8.1.0: False, "somebody else has it". It is the caller's own token that
#                             stands there, without an expiry, which nobody will ever release
#                             5.3.1: ConnectionError
#   lost reply of release()   8.1.0: LockNotOwnedError, as after an expiry, yet it was released in time
#                             5.3.1: ConnectionError
# With retry=Retry(NoBackoff(), 0), version 8.1.0 raises ConnectionError too.
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
for version in 8.1.0 5.3.1; do
  pip install --quiet --root-user-action ignore --target "$dir/$version" "redis==$version" 2>/dev/null
done
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/log" &
server=$!
until redis-cli -p "$port" ping >"$dir/out" 2>&1; do kill -0 "$server"; done
redis-cli -p "$port" info server | grep redis_version
cat >"$dir/seen.py" <<'PY'
import socket
import sys
import threading

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

port = int(sys.argv[1])
direct = redis.Redis(port=port)


def breaking_link(word):
    """A way to Redis that breaks once, when the reply to a request with this word comes."""
    entrance = socket.create_server(("127.0.0.1", 0))
    left = [word]

    def carry(client):
        with client, socket.create_connection(("127.0.0.1", port)) as redis_end:
            while request := client.recv(65536):
                redis_end.sendall(request)
                reply = redis_end.recv(65536)
                if left and left[0] in request:
                    left.clear()
                    return
                client.sendall(reply)

    def accept():
        while True:
            threading.Thread(target=carry, args=entrance.accept()[:1], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return entrance.getsockname()[1]


def outcome(call):
    try:
        return str(call())
    except redis.RedisError as error:
        return type(error).__name__


def lost_acquire(**options):
    direct.flushall()
    lock = redis.Redis(port=breaking_link(b"NX"), **options).lock("job")
    said = outcome(lambda: lock.acquire(blocking=False))
    return said, "the key is there" if direct.exists("job") else "no key", f"ttl {direct.ttl('job')}"


def lost_release(**options):
    direct.flushall()
    lock = redis.Redis(port=breaking_link(b"EVALSHA"), **options).lock("job", timeout=60)
    # The server knows the script already, so that the first EVALSHA is the release.
    direct.script_load(lock.LUA_RELEASE_SCRIPT)
    assert lock.acquire(blocking=False)
    return outcome(lock.release), "the key is there" if direct.exists("job") else "no key"


def check(what, seen, expected):
    print(f"  {what}: {', '.join(seen)}")
    assert seen == expected


print("redis-py", redis.__version__)
current = redis.__version__ == "8.1.0"
refused, lost = ("False", "LockNotOwnedError") if current else ("ConnectionError", "ConnectionError")
check("acquire", lost_acquire(), (refused, "the key is there", "ttl -1"))
check("release", lost_release(), (lost, "no key"))
if current:
    once = Retry(NoBackoff(), 0)
    broken = "ConnectionError"
    check("acquire, no retry", lost_acquire(retry=once), (broken, "the key is there", "ttl -1"))
    check("release, no retry", lost_release(retry=once), (broken, "no key"))
PY
for version in 8.1.0 5.3.1; do
  PYTHONPATH=$dir/$version timeout 60 python3 -u "$dir/seen.py" "$port"
done
