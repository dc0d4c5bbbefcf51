#!/usr/bin/env bash
# redis-semaphore 5.8.0, ioredis 6.0.0 (npm), Redis 7.0.15: a Mutex and a Semaphore of one permit, all
# defaults (a lock lives 10 s and is refreshed every 8 s). The Mutex is a key whose expiry Redis counts.
# The Semaphore is a sorted set of times, and each client brings its own: what is older than 10 s by
# the clock of whoever asks is thrown out.
#
# Seen, A holds both and refreshes them as it should, B asks from a host whose clock is 2.5 s ahead:
#   Mutex       B gives up after 10 s
#   Semaphore   B gets the permit within 8 s, just before A's next refresh: two holders. A hears of it
#               at that refresh, "Lost semaphore"
# The clock of B is set by replacing Date.now in B's process.
#
# Fails if B's clock gets it no permit, or gets it the mutex.
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
npm install --silent --no-save --prefix "$dir" redis-semaphore@5.8.0 ioredis@6.0.0 >/dev/null
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/log" &
server=$!
until redis-cli -p "$port" ping >"$dir/out" 2>&1; do kill -0 "$server"; done
redis-cli -p "$port" info server | grep redis_version
cat >"$dir/b.js" <<'JS'
const Redis = require('ioredis')
const { Mutex, Semaphore } = require('redis-semaphore')

const now = Date.now
Date.now = () => now() + 2500
const redis = new Redis(Number(process.argv[2]))
const locks = { Mutex: new Mutex(redis, 'job'), Semaphore: new Semaphore(redis, 'job', 1) }
const asked = Object.entries(locks).map(async ([kind, lock]) => {
  const begun = now()
  const outcome = await lock.acquire().then(() => 'acquired', (error) => error.constructor.name)
  process.send({ kind, outcome, after: now() - begun })
})
Promise.all(asked).then(() => process.exit())
JS
cat >"$dir/a.js" <<'JS'
const assert = require('node:assert')
const { once } = require('node:events')
const { fork } = require('node:child_process')
const Redis = require('ioredis')
const { Mutex, Semaphore } = require('redis-semaphore')

async function main() {
  const redis = new Redis(Number(process.argv[2]))
  const lost = []
  const onLockLost = (error) => lost.push(error.message)
  await new Mutex(redis, 'job', { onLockLost }).acquire()
  await new Semaphore(redis, 'job', 1, { onLockLost }).acquire()
  const b = fork('./b.js', [process.argv[2]])
  const seen = {}
  b.on('message', ({ kind, outcome, after }) => {
    seen[kind] = outcome
    console.log(`B, ${kind}: ${outcome} after ${(after / 1000).toFixed(1)} s`)
  })
  await once(b, 'exit')
  console.log(`A was told: ${lost}`)
  assert.deepStrictEqual(seen, { Semaphore: 'acquired', Mutex: 'TimeoutError' })
  assert.strictEqual(lost.length, 1)
  process.exit()
}

main()
JS
timeout 60 node a.js "$port"
