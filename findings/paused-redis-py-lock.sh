#!/usr/bin/env bash
# redis-py 8.1.0 (PyPI), Redis 7.0.15 (Debian): A holds client.lock("job", timeout=1) and stops itself
# (SIGSTOP) before its write. The lock expires, B takes it and writes, then A is resumed.
#
# Seen:
#   A's write     OK, and replaces B's
#   A's release   LockNotOwnedError, after the write
#
# Fails if A's write is refused, or its release is not.
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
cat >"$dir/a.py" <<'PY'
import os
import signal
import sys

import redis

client = redis.Redis(port=int(sys.argv[1]))
try:
    with client.lock("job", timeout=1):
        os.kill(os.getpid(), signal.SIGSTOP)
        print("A's write:", client.set("order", "A"))
except redis.RedisError as error:
    print("A's release:", type(error).__name__)
PY
export PYTHONPATH=$dir/py
timeout 60 python3 -u - "$dir/a.py" "$port" <<'PY'
import os
import signal
import subprocess
import sys

import redis

a = subprocess.Popen([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE, text=True)
assert os.WIFSTOPPED(os.waitpid(a.pid, os.WUNTRACED)[1])
client = redis.Redis(port=int(sys.argv[2]), decode_responses=True)
with client.lock("job", timeout=30):
    client.set("order", "B")
a.send_signal(signal.SIGCONT)
said = a.communicate()[0]
print(said + f"the order is {client.get('order')}'s")
assert said == "A's write: True\nA's release: LockNotOwnedError\n", said
assert client.get("order") == "A"
PY
