#!/usr/bin/env bash
# BullMQ 6.7.0, ioredis 6.0.0 (npm), Node 20, Redis 7.0.15 (Debian): worker A takes a job and stops
# itself (SIGSTOP) before its write. Its job lock of one second expires (30 s is the default), worker B
# runs the job as stalled and writes, then A is resumed.
#
# Seen:
#   A's write         OK, and replaces B's
#   A's completion    refused, "Missing lock for job"
#   the job's result  B's; job.attemptsStarted is 2
#
# Fails if A's write is refused, or its completion is not.
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
npm install --silent --no-save --prefix "$dir" bullmq@6.7.0 ioredis@6.0.0 >/dev/null
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/log" &
server=$!
until redis-cli -p "$port" ping >"$dir/out" 2>&1; do kill -0 "$server"; done
redis-cli -p "$port" info server | grep redis_version
cat >"$dir/worker.js" <<'JS'
const Redis = require('ioredis')
const { Worker } = require('bullmq')

const [who, port] = process.argv.slice(2)
const redis = new Redis(Number(port))
const options = { connection: { port: Number(port) }, lockDuration: 1000, stalledInterval: 500 }
const worker = new Worker('jobs', async () => {
  if (who === 'A') process.kill(process.pid, 'SIGSTOP')
  console.log(`${who}'s write: ${await redis.set('order', who)}`)
  return who
}, options)
const ended = (outcome) => {
  console.log(`${who}'s completion: ${outcome}`)
  process.exit()
}
worker.on('completed', () => ended('accepted'))
worker.on('error', (error) => {
  if (error.message.includes('moveToFinished')) ended(error.message)
})
JS
cat >"$dir/queue.js" <<'JS'
const { Queue } = require('bullmq')

async function main() {
  const queue = new Queue('jobs', { connection: { port: Number(process.argv[3]) } })
  if (process.argv[2] === 'add') {
    await queue.add('pay', {}, { jobId: 'one' })
  } else {
    const { returnvalue, attemptsStarted } = await queue.getJob('one')
    console.log(`the result is ${returnvalue}'s, started ${attemptsStarted} times`)
  }
  await queue.close()
}

main()
JS
timeout 60 python3 -u - "$dir" "$port" <<'PY'
import os
import signal
import subprocess
import sys

folder, port = sys.argv[1:]


def start(script, argument):
    command = ["node", f"{folder}/{script}", argument, port]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


start("queue.js", "add").communicate()
a = start("worker.js", "A")
assert os.WIFSTOPPED(os.waitpid(a.pid, os.WUNTRACED)[1])
b = start("worker.js", "B").communicate()[0]
a.send_signal(signal.SIGCONT)
said = a.communicate()[0]
order = subprocess.check_output(["redis-cli", "-p", port, "get", "order"], text=True)
result = start("queue.js", "show").communicate()[0]
print(b + said + result + f"the order is {order.strip()}'s")
assert b == "B's write: OK\nB's completion: accepted\n", b
assert said.startswith("A's write: OK\nA's completion: Missing lock for job one"), said
assert order == "A\n" and result == "the result is B's, started 2 times\n"
PY
