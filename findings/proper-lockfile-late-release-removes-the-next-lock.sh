#!/usr/bin/env bash
# proper-lockfile 4.1.2 (npm), Node 20, local folder: a lock file is a lease, which its holder touches
# by a timer and others take over when it is "stale". A holder whose event loop was busy for longer
# learns it from onCompromised. But if it releases in the same turn of the loop in which its work
# ends, that timer has had no chance yet, and the release removes the lock file whoever's it is.
#
# Seen, stale: 2000 (the smallest; the default is 10000), A works synchronously until B has taken over:
#   A's release        resolves as if all had been well, onCompromised is not called
#   B's lock file      is removed
#   a third            gets the lock at once, while B works under its own
#   B                  is told when its own timer fires: ECOMPROMISED
# If A lets the loop turn before it releases, A is told, and its release is refused with ERELEASED.
#
# Fails if A's release leaves B's lock alone.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-save --prefix "$dir" proper-lockfile@4.1.2 >/dev/null
cat >"$dir/b.js" <<'JS'
const fs = require('node:fs')
const lockfile = require('proper-lockfile')

process.on('message', () => {}) // stays until the channel is closed
const retries = { retries: 2000, factor: 1, minTimeout: 10, maxTimeout: 10 }
const onCompromised = (error) => {
  process.send({ told: error.code })
  process.disconnect()
}
lockfile.lock('resource', { stale: 2000, retries, onCompromised }).then(() => {
  fs.writeFileSync('taken-over', '')
  process.send({ locked: true })
})
JS
cat >"$dir/a.js" <<'JS'
const assert = require('node:assert')
const { once } = require('node:events')
const { fork } = require('node:child_process')
const fs = require('node:fs')
const lockfile = require('proper-lockfile')

async function run(turn) {
  const told = []
  const onCompromised = (error) => told.push(error.code)
  const release = await lockfile.lock('resource', { stale: 2000, onCompromised })
  const b = fork('./b.js')
  const messages = []
  b.on('message', (message) => messages.push(message))
  while (!fs.existsSync('taken-over'));

  while (turn && told.length === 0) await new Promise((resolve) => setImmediate(resolve))
  const outcome = await release().then(() => 'resolves', (error) => error.code)
  const theirs = fs.existsSync('resource.lock') ? 'left alone' : 'removed'
  console.log(`${turn ? 'after a turn of the loop' : 'at once'}: A was told [${told}]`)
  console.log(`  A's release ${outcome}, B's lock file ${theirs}`)
  if (turn) {
    b.kill()
    return [outcome, theirs, told.length]
  }

  const third = await lockfile.lock('resource', { stale: 2000 }).then(() => 'has it too', (error) => error.code)
  console.log(`  while B knows nothing [${messages.filter((message) => message.told).length}], a third ${third}`)
  if (b.connected) await once(b, 'disconnect')
  console.log('  later B is told', messages.find((message) => message.told).told)
  await lockfile.unlock('resource')
  return [outcome, theirs, told.length, third]
}

async function main() {
  fs.writeFileSync('resource', '')
  assert.deepStrictEqual(await run(false), ['resolves', 'removed', 0, 'has it too'])
  fs.rmSync('taken-over')
  assert.deepStrictEqual(await run(true), ['ERELEASED', 'left alone', 1])
}

main()
JS
timeout 60 node a.js
