#!/usr/bin/env bash
# ioredis 6.0.0 and node-redis 6.3.1 (npm), valkey-glide 2.6.0 and redis-py 8.1.0 (PyPI), Redis 7.0.15,
# all defaults: WATCH, GET, then the connection breaks, somebody else changes the key, the client
# reconnects by itself, MULTI ... EXEC. The server forgot the WATCH with the connection, so that only
# the client can know that the check is void.
#
# Seen, the key 100, then 5 by somebody else, the transaction sets 100 + 1:
#   ioredis         EXEC replies OK     101, the other write is lost
#   valkey-glide    EXEC replies OK     101, the other write is lost
#   node-redis      WatchError          5
#   redis-py        WatchError          5
# (For ioredis somebody reported it in 2022: its issue 1686.)
#
# Fails if one of them does otherwise.
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
cd "$dir"
npm install --silent --no-save --prefix "$dir" ioredis@6.0.0 redis@6.3.1 >/dev/null
pip install --quiet --root-user-action ignore --target "$dir/py" valkey-glide==2.6.0 redis==8.1.0 2>/dev/null
export PYTHONPATH=$dir/py
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/log" &
server=$!
until redis-cli -p "$port" ping >"$dir/out" 2>&1; do kill -0 "$server"; done
redis-cli -p "$port" info server | grep redis_version

cat >"$dir/node.js" <<'JS'
const assert = require('node:assert')
const Redis = require('ioredis')
const { createClient } = require('redis')

const port = Number(process.argv[2])

async function main() {
  const other = new Redis(port)

  // Change the key, end the client's connection, wait until it has the next.
  async function meanwhile(client, id) {
    const again = new Promise((resolve) => client.once('ready', resolve))
    await other.set('balance', 5)
    await other.client('KILL', 'ID', id)
    await again
  }

  await other.set('balance', 100)
  const first = new Redis(port)
  await first.watch('balance')
  let read = Number(await first.get('balance'))
  await meanwhile(first, await first.client('ID'))
  const reply = await first.multi().set('balance', read + 1).exec()
  console.log('ioredis: EXEC replies', JSON.stringify(reply), 'balance', await other.get('balance'))
  assert.strictEqual(await other.get('balance'), '101')
  first.disconnect()

  await other.set('balance', 100)
  const second = createClient({ socket: { port } })
  second.on('error', () => {})
  await second.connect()
  await second.watch('balance')
  read = Number(await second.get('balance'))
  await meanwhile(second, await second.clientId())
  const refused = await second.multi().set('balance', String(read + 1)).exec().catch((error) => error)
  console.log('node-redis:', refused.constructor.name, refused.message, 'balance', await other.get('balance'))
  assert.strictEqual(refused.constructor.name, 'WatchError')
  assert.strictEqual(await other.get('balance'), '5')
  second.destroy()
  other.disconnect()
}

main()
JS
cat >"$dir/clients.py" <<'PY'
import asyncio
import sys

import glide
import redis

port = int(sys.argv[1])
other = redis.Redis(port=port, decode_responses=True)


async def with_glide():
    address = glide.NodeAddress("127.0.0.1", port)
    client = await glide.GlideClient.create(glide.GlideClientConfiguration([address]))
    await client.watch(["balance"])
    read = int(await client.get("balance"))
    before = await client.client_id()
    other.set("balance", 5)
    other.client_kill_filter(_id=before)
    now = before
    while now == before:
        try:
            now = await client.client_id()
        except glide.ConnectionError:
            pass
    transaction = glide.Batch(is_atomic=True)
    transaction.set("balance", str(read + 1))
    reply = await client.exec(transaction, raise_on_error=True)
    print("valkey-glide: EXEC replies", reply, "balance", other.get("balance"))
    assert (reply, other.get("balance")) == (["OK"], "101")
    await client.close()


other.set("balance", 100)
asyncio.run(with_glide())

other.set("balance", 100)
with redis.Redis(port=port).pipeline() as client:
    client.watch("balance")
    read = int(client.get("balance"))
    number = client.immediate_execute_command("CLIENT", "ID")
    other.set("balance", 5)
    other.client_kill_filter(_id=number)
    client.multi()
    client.set("balance", read + 1)
    try:
        client.execute()
        sys.exit("redis-py commits")
    except redis.WatchError as refused:
        print("redis-py:", type(refused).__name__, refused, "balance", other.get("balance"))
assert other.get("balance") == "5"
PY
timeout 60 node node.js "$port"
timeout 60 python3 clients.py "$port"
