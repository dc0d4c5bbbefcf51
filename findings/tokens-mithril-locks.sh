#!/usr/bin/env bash
# mithril-locks 0.1.0, redis-py 7.4.1 (PyPI), Redis 7.0.15 (Debian): Lock gives a token; comparing it is
# left to the store that is written to. A holds a lock of one second and stops itself (SIGSTOP) before
# its write, B takes the lock and writes, A is resumed. Then once more with a Redis that lost its memory
# (FLUSHALL, as a restart without persistence) in between.
#
# Seen:
#   the tokens                    A 1, B 2; A 3, and B 1 after Redis was emptied
#   A's set, without comparison   True, and replaces B's
#   A's release                   LockExpiredError or NotAcquiredError, after the write
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
pip install --quiet --root-user-action ignore --target "$dir/py" mithril-locks==0.1.0 redis==7.4.1 2>/dev/null
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/log" &
server=$!
until redis-cli -p "$port" ping >"$dir/out" 2>&1; do kill -0 "$server"; done
redis-cli -p "$port" info server | grep redis_version
cat >"$dir/a.py" <<'PY'
import os
import signal
import sys

from mithril import Lock, MithrilError
from mithril.backends import RedisBackend
from redis import Redis

redis = Redis(port=int(sys.argv[1]), socket_timeout=5, socket_connect_timeout=5)
lock = Lock("job", backend=RedisBackend(redis), ttl=1, timeout=10)
try:
    with lock as token:
        os.kill(os.getpid(), signal.SIGSTOP)
        print(token.fencing_token, redis.set("order", "A"))
except MithrilError as error:
    print(type(error).__name__)
PY
PYTHONPATH=$dir/py timeout 60 python3 -u - "$dir/a.py" "$port" <<'PY'
import os
import signal
import subprocess
import sys

from mithril import Lock
from mithril.backends import RedisBackend
from redis import Redis

redis = Redis(port=int(sys.argv[2]), socket_timeout=5, socket_connect_timeout=5, decode_responses=True)


def seen(is_emptied):
    a = subprocess.Popen([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE, text=True)
    assert os.WIFSTOPPED(os.waitpid(a.pid, os.WUNTRACED)[1])
    if is_emptied:
        redis.flushall()
    with Lock("job", backend=RedisBackend(redis), ttl=30, timeout=10) as token:
        redis.set("order", "B")
        a.send_signal(signal.SIGCONT)
        said = [line for line in a.communicate()[0].splitlines() if "backend=" not in line]
    print(f"emptied {is_emptied}: B has {token.fencing_token}, A: {said}, the order is {redis.get('order')}'s")
    assert said[1] in ("LockExpiredError", "NotAcquiredError")
    return token.fencing_token, said[0], redis.get("order")


assert seen(False) == (2, "1 True", "A")
assert seen(True) == (1, "3 True", "A")
PY
