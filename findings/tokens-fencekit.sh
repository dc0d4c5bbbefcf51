#!/usr/bin/env bash
# fencekit 0.6.1, redis-py 8.1.0 (PyPI), Redis 7.0.15 (Debian): DistributedLock gives a token, the caller
# writes with FenceGate.set_if_fresh, which compares and writes in one script. A holds a lock of one
# second and stops itself (SIGSTOP) before its write, B takes the lock and writes, A is resumed. Then the
# same with a Redis that lost its memory (FLUSHALL, as a restart without persistence) under A.
#
# Seen:
#   A's set_if_fresh                       FencedOutError
#   A's set, past the gate                 True
#   A's set_if_fresh, Redis was emptied    accepted: A has token 2, B has 1 of a new count
#
# Fails if one of them differs.
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
pip install --quiet --root-user-action ignore --target "$dir/py" fencekit==0.6.1 redis==8.1.0 2>/dev/null
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/log" &
server=$!
until redis-cli -p "$port" ping >"$dir/out" 2>&1; do kill -0 "$server"; done
redis-cli -p "$port" info server | grep redis_version
cat >"$dir/a.py" <<'PY'
import os
import signal
import sys
from datetime import timedelta

from fencekit import DistributedLock, FencedOutError, FenceGate
from redis import Redis

redis = Redis(port=int(sys.argv[1]), decode_responses=True)
handle = DistributedLock(redis).acquire("job", ttl=timedelta(seconds=1))
os.kill(os.getpid(), signal.SIGSTOP)
try:
    FenceGate(redis).set_if_fresh(handle.token, "order", "A")
    print("accepted", handle.token.value)
except FencedOutError:
    print("FencedOutError", handle.token.value)
if sys.argv[2] == "past":
    print("past the gate", redis.set("order", "A"))
PY
PYTHONPATH=$dir/py timeout 60 python3 -u - "$dir/a.py" "$port" <<'PY'
import os
import signal
import subprocess
import sys
from datetime import timedelta

from fencekit import DistributedLock, FenceGate
from redis import Redis

redis = Redis(port=int(sys.argv[2]), decode_responses=True)


def seen(past, is_emptied):
    a = subprocess.Popen([sys.executable, *sys.argv[1:], past], stdout=subprocess.PIPE, text=True)
    assert os.WIFSTOPPED(os.waitpid(a.pid, os.WUNTRACED)[1])
    if is_emptied:
        redis.flushall()
    lock = DistributedLock(redis)
    ttl = timedelta(seconds=30)
    handle = lock.acquire("job", ttl=ttl, blocking=True, wait=ttl)
    FenceGate(redis).set_if_fresh(handle.token, "order", "B")
    a.send_signal(signal.SIGCONT)
    said = a.communicate()[0].split("\n")[:-1]
    lock.release(handle)
    print(f"emptied {is_emptied}: B has {handle.token.value}, A: {said}, the order is {redis.get('order')}'s")
    return handle.token.value, said, redis.get("order")


assert seen("", False) == (2, ["FencedOutError 1"], "B")
assert seen("past", False) == (4, ["FencedOutError 3", "past the gate True"], "A")
redis.flushall()
DistributedLock(redis).acquire("job", ttl=timedelta(milliseconds=1))
while redis.exists("fencekit:lock:job"):
    pass
assert seen("", True)[1:] == (["accepted 2"], "A")
PY
