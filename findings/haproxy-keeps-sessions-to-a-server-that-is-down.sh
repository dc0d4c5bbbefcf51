#!/usr/bin/env bash
# HAProxy 2.6.12 (Debian) in TCP mode before two Redis 7.0.15, redis-py 8.1.0: its health check finds
# the primary, as with "expect role:master" (here a key that says so, as both are primaries, like two
# after a split). The primary changes, HAProxy calls the old one DOWN and the new one UP. That is for
# new sessions alone: a connection that exists stays with the server that is DOWN, for as long as the
# client keeps it, and pools keep theirs.
#
# Seen, after the change, SET lock NX through the same HAProxy:
#   connection from before                          OK, at the server that is DOWN
#   new connection                                  OK, at the server that is UP: two have the lock
#   with on-marked-down shutdown-sessions, before   the connection is closed
#
# Fails if one of them differs.
set -euo pipefail
dir=$(mktemp -d)
started=()
cleanup() {
  for process in "${started[@]}"; do kill "$process" 2>"$dir/kill" || true; done
  for process in "${started[@]}"; do wait "$process" || true; done 2>"$dir/kill"
  rm -rf "$dir"
}
trap cleanup EXIT
pip install --quiet --root-user-action ignore --target "$dir/py" redis==8.1.0 2>/dev/null
mapfile -t port < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
print(*(socket.getsockname()[1] for socket in sockets), sep="\n")')
haproxy=$(command -v haproxy || echo /usr/sbin/haproxy)
"$haproxy" -v | sed -n 1p
for number in "${port[@]:0:2}"; do
  redis-server --port "$number" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/log" &
  started+=($!)
done
cat >"$dir/haproxy.cfg" <<CFG
global
    stats socket $dir/stats
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    option tcp-check
    tcp-check send GET\ primary\r\n
    tcp-check expect string yes
    default-server check inter 100ms fall 1 rise 1
listen plain
    bind 127.0.0.1:${port[2]}
    server a 127.0.0.1:${port[0]}
    server b 127.0.0.1:${port[1]}
listen closing
    bind 127.0.0.1:${port[3]}
    default-server on-marked-down shutdown-sessions
    server a 127.0.0.1:${port[0]}
    server b 127.0.0.1:${port[1]}
CFG
"$haproxy" -db -f "$dir/haproxy.cfg" >"$dir/haproxy.log" 2>&1 &
started+=($!)
PYTHONPATH=$dir/py timeout 60 python3 -u - "$dir/stats" "${port[@]}" <<'PY'
import csv
import socket
import sys

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

stats, ports = sys.argv[1], [int(port) for port in sys.argv[2:]]
a, b = (redis.Redis(port=port) for port in ports[:2])
PROXIES = {"plain": ports[2], "closing": ports[3]}
for node in a, b:
    while True:
        try:
            node.ping()
            break
        except redis.ConnectionError:
            pass


def servers():
    """proxy/server -> state, as HAProxy sees it."""
    with socket.socket(socket.AF_UNIX) as end:
        try:
            end.connect(stats)
        except OSError:
            return {}
        end.sendall(b"show stat\n")
        text = end.makefile().read().lstrip("# ")
    return {f"{line['pxname']}/{line['svname']}": line["status"] for line in csv.DictReader(text.splitlines())}


def primary_is(new, old):
    old.set("primary", "no")
    new.set("primary", "yes")
    wanted = {new: "UP", old: "DOWN"}
    while any(
        servers().get(f"{proxy}/{name}") != wanted[node]
        for proxy in PROXIES
        for name, node in (("a", a), ("b", b))
    ):
        pass


def session(proxy):
    client = redis.Redis(port=PROXIES[proxy], retry=Retry(NoBackoff(), 0), single_connection_client=True)
    client.ping()
    return client


def take(client, owner):
    try:
        return client.set("lock", owner, nx=True)
    except redis.ConnectionError:
        return "closed"


for proxy, expected in (("plain", (True, True)), ("closing", ("closed", True))):
    for node in a, b:
        node.delete("lock")
    primary_is(a, b)
    before = session(proxy)
    primary_is(b, a)
    seen = take(before, "before"), take(session(proxy), "new")
    held = [(node.get("lock") or b"nobody").decode() for node in (a, b)]
    print(f"{proxy}: connection from before {seen[0]}, new one {seen[1]}; a (DOWN) has {held[0]}, b (UP) {held[1]}")
    assert seen == expected
PY
