#!/usr/bin/env bash
# redis-py 8.1.0 and valkey-glide 2.6.0 (PyPI), ioredis 6.0.0 and node-redis 6.3.1 (npm), their cluster
# clients, Redis 7.0.15 (Debian): SET and then WAIT 1 100, "is my write on a replica?". Node A has a
# replica, node B has none. WAIT has no key, and it asks after the writes of its own connection, so
# the answer depends on the node that a client picks for it.
#
# Seen, several times:               key of B (no replica)   key of A (one replica)
#   redis-py                         1 each time             1
#   ioredis                          0 or 1, by chance       0 or 1, by chance
#   node-redis                       0                       0
#   valkey-glide                     0                       0
#   redis-py, target_nodes=owner     0                       1
# So two of them confirm a write that no replica has. The other two do as the tips of COMMAND INFO WAIT
# say, ask all nodes and take the least, and so deny one that a replica has.
#
# Fails if redis-py or ioredis never confirms the key of B, or another line differs.
set -euo pipefail
dir=$(mktemp -d)
nodes=()
cleanup() {
  for node in "${nodes[@]}"; do kill "$node" 2>"$dir/kill" || true; done
  for node in "${nodes[@]}"; do wait "$node" || true; done 2>"$dir/kill"
  rm -rf "$dir"
}
trap cleanup EXIT
cd "$dir"
npm install --silent --no-save --prefix "$dir" ioredis@6.0.0 redis@6.3.1 >/dev/null
pip install --quiet --root-user-action ignore --target "$dir/py" redis==8.1.0 valkey-glide==2.6.0 2>/dev/null
# A cluster bus listens 10000 above its node.
mapfile -t port < <(python3 -c '
import socket
free = []
for candidate in range(22000, 23000):
    try:
        for number in candidate, candidate + 10000:
            socket.create_server(("127.0.0.1", number)).close()
    except OSError:
        continue
    free.append(candidate)
print(*free[:3], sep="\n")')
for number in "${port[@]}"; do
  mkdir "$dir/$number"
  redis-server --port "$number" --bind 127.0.0.1 --dir "$dir/$number" --save '' --cluster-enabled yes \
    --repl-diskless-sync-delay 0 >"$dir/log" &
  nodes+=($!)
done
cat >"$dir/cluster.py" <<'PY'
import sys

import redis

nodes = [redis.Redis(port=int(port)) for port in sys.argv[1:]]
for node in nodes:
    while True:
        try:
            node.ping()
            break
        except redis.ConnectionError:
            pass
a, b, replica = nodes
print("Redis", a.info("server")["redis_version"], flush=True)
for epoch, (node, first, last) in enumerate(((a, 0, 8191), (b, 8192, 16383)), 1):
    node.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
    node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", epoch)
for node in b, replica:
    node.execute_command("CLUSTER", "MEET", "127.0.0.1", sys.argv[1])
while any(node.cluster("info")["cluster_state"] != "ok" for node in nodes):
    pass
identity = a.execute_command("CLUSTER", "MYID").decode()
while True:
    try:
        replica.execute_command("CLUSTER", "REPLICATE", identity)
        break
    except redis.ResponseError:
        pass
while a.wait(1, 100) != 1:
    pass
while any(len(node.cluster("nodes")) != 3 for node in nodes):
    pass
PY
cat >"$dir/clients.py" <<'PY'
import asyncio
import sys

import glide
import redis

port = int(sys.argv[1])
cluster = redis.RedisCluster(host="127.0.0.1", port=port)
A, B = "f", "d"
for key, node in ((A, sys.argv[1]), (B, sys.argv[2])):
    assert cluster.get_node_from_key(key).port == int(node)


def report(name, b, a, expected):
    print(f"{name}: key of B {sorted(set(b))}, key of A {sorted(set(a))}")
    assert (set(b), set(a)) == expected


def with_redis_py(key, **options):
    cluster.set(key, "x")
    return cluster.wait(1, 100, **options)


report("redis-py", *([with_redis_py(key) for _ in range(5)] for key in (B, A)), ({1}, {1}))
owners = {key: cluster.get_node_from_key(key) for key in (A, B)}
targeted = ([with_redis_py(key, target_nodes=owners[key]) for _ in range(5)] for key in (B, A))
report("redis-py, target_nodes=owner", *targeted, ({0}, {1}))


async def with_glide():
    address = glide.NodeAddress("127.0.0.1", port)
    client = await glide.GlideClusterClient.create(glide.GlideClusterClientConfiguration([address]))
    seen = {A: [], B: []}
    for key in (B, A):
        for _ in range(5):
            await client.set(key, "x")
            seen[key].append(await client.wait(1, 100))
    report("valkey-glide", seen[B], seen[A], ({0}, {0}))
    await client.close()


asyncio.run(with_glide())
PY
cat >"$dir/clients.js" <<'JS'
const assert = require('node:assert')
const Redis = require('ioredis')
const { createCluster } = require('redis')

const port = Number(process.argv[2])

async function seen(name, client) {
  const found = []
  for (const key of ['d', 'f']) {
    const replies = new Set()
    for (let i = 0; i < 20; i++) {
      await client.set(key, 'x')
      replies.add(await client.wait(1, 100))
    }
    found.push([...replies].sort().join(' '))
  }
  console.log(`${name}: key of B [${found[0]}], key of A [${found[1]}]`)
  return found
}

async function main() {
  const first = new Redis.Cluster([{ host: '127.0.0.1', port }])
  assert.deepStrictEqual(await seen('ioredis', first), ['0 1', '0 1'])
  first.disconnect()
  const second = createCluster({ rootNodes: [{ url: `redis://127.0.0.1:${port}` }] })
  await second.connect()
  assert.deepStrictEqual(await seen('node-redis', second), ['0', '0'])
  second.destroy()
}

main()
JS
export PYTHONPATH=$dir/py
timeout 60 python3 cluster.py "${port[@]}"
timeout 60 python3 clients.py "${port[@]}"
timeout 60 node clients.js "${port[@]}"
