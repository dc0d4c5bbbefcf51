#!/usr/bin/env bash
# etcd3gw 2.7.0 and aetcd 1.0.0 (PyPI), etcd 3.4.23 (Debian): "with client.lock(...)" while somebody
# else has the lock. Other locks wait, or raise when they give up (redis-py 8.1.0: LockError). These
# two only return False from acquire(), which their "with" does not look at.
#
# Seen, A inside its "with" with a lease of 60 s:
#   etcd3gw   B enters at once, without waiting; inside, is_acquired() says False
#   aetcd     B waits 10 s (acquire's default timeout) and enters all the same; is_acquired() False
#   redis-py  B waits as long as it is told to, then LockError, and its block does not run
# A keeps the lock, so its own checks tell it nothing either.
#
# Fails if B of etcd3gw or aetcd does not enter.
set -euo pipefail
dir=$(mktemp -d)
servers=()
cleanup() {
  for server in "${servers[@]}"; do
    kill "$server" 2>"$dir/kill" || true
    wait "$server" || true
  done
  rm -rf "$dir"
}
trap cleanup EXIT
pip install --quiet --root-user-action ignore --target "$dir/py" etcd3gw==2.7.0 aetcd==1.0.0 \
  redis==8.1.0 2>/dev/null
mapfile -t port < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(socket.getsockname()[1] for socket in sockets), sep="\n")')
client=http://127.0.0.1:${port[0]}
peer=http://127.0.0.1:${port[1]}
etcd --data-dir "$dir/data" --log-level error --listen-client-urls "$client" \
  --advertise-client-urls "$client" --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
  --initial-cluster "default=$peer" >"$dir/log" 2>&1 &
servers+=($!)
redis-server --port "${port[2]}" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/redis.log" &
servers+=($!)
export ETCDCTL_API=3
until etcdctl --endpoints "$client" get job >"$dir/out" 2>&1; do kill -0 "${servers[0]}"; done
until redis-cli -p "${port[2]}" ping >"$dir/out" 2>&1; do kill -0 "${servers[1]}"; done
PYTHONPATH=$dir/py timeout 60 python3 -u - "${port[0]}" "${port[2]}" <<'PY'
import asyncio
import sys
import time

import aetcd
import etcd3gw
import redis

etcd_port, redis_port = map(int, sys.argv[1:])


def report(name, begun, *inside):
    print(f"{name}: B inside after {time.monotonic() - begun:.1f} s, has the lock: {inside[0]}, A has it: {inside[1]}")
    assert inside == (False, True)


client = etcd3gw.client(host="127.0.0.1", port=etcd_port)
entered = []
with client.lock("job", ttl=60) as a:
    begun = time.monotonic()
    with client.lock("job", ttl=60) as b:
        report("etcd3gw", begun, b.is_acquired(), a.is_acquired())
        entered.append("etcd3gw")


async def with_aetcd():
    async with aetcd.Client(host="127.0.0.1", port=etcd_port) as client:
        async with client.lock(b"another", ttl=60) as a:
            begun = time.monotonic()
            async with client.lock(b"another", ttl=60) as b:
                report("aetcd", begun, await b.is_acquired(), await a.is_acquired())
                entered.append("aetcd")


asyncio.run(with_aetcd())

client = redis.Redis(port=redis_port)
with client.lock("job", timeout=60):
    try:
        with client.lock("job", timeout=60, blocking_timeout=1):
            entered.append("redis-py")
    except redis.exceptions.LockError as refused:
        print("redis-py:", type(refused).__name__)
assert entered == ["etcd3gw", "aetcd"]
PY
