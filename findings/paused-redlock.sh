#!/usr/bin/env bash
# node redlock 4.2.0, redlock-universal 0.8.5, ioredis 6.0.0 (npm), Node 20, Redis 7.0.15 (Debian): A
# holds a lock of one second, which the second library renews, and stops itself (SIGSTOP) before its
# write. The lock expires, B takes it and writes, then A is resumed.
#
# Seen:
#   redlock             A's write replaces B's; unlock() rejects with LockError
#   redlock-universal   A's write replaces B's, with signal.aborted false; using() resolves
#
# Fails if a write of A is refused, or an end differs.
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
npm install --silent --no-save --prefix "$dir" redlock@4.2.0 redlock-universal@0.8.5 ioredis@6.0.0 >/dev/null
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/log" &
server=$!
until redis-cli -p "$port" ping >"$dir/out" 2>&1; do kill -0 "$server"; done
redis-cli -p "$port" info server | grep redis_version
cat >"$dir/run.js" <<'JS'
const Redis = require('ioredis')
const Redlock = require('redlock')
const { createLock, IoredisAdapter } = require('redlock-universal')

const [who, library, port] = process.argv.slice(2)
const redis = new Redis(Number(port))

async function work(signal) {
  if (who === 'A') process.kill(process.pid, 'SIGSTOP')
  const aborted = signal ? `, aborted ${signal.aborted}` : ''
  console.log(`${who}'s write: ${await redis.set('order', who)}${aborted}`)
}

async function main() {
  if (library === 'redlock') {
    const lock = await new Redlock([redis], { retryCount: -1 }).lock('job', 1000)
    await work()
    return lock.unlock()
  }
  const adapter = new IoredisAdapter(redis)
  return createLock({ adapter, key: 'job', ttl: 1000, retryAttempts: 1000, retryDelay: 50 }).using(work)
}

const ended = (outcome) => {
  console.log(`${who}'s end: ${outcome}`)
  redis.disconnect()
}
main().then(() => ended('no error'), (error) => ended(error.constructor.name))
JS
timeout 60 python3 -u - "$dir/run.js" "$port" <<'PY'
import os
import signal
import subprocess
import sys

script, port = sys.argv[1:]


def start(who, library):
    command = ["node", script, who, library, port]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


seen = {}
for library in ("redlock", "redlock-universal"):
    a = start("A", library)
    assert os.WIFSTOPPED(os.waitpid(a.pid, os.WUNTRACED)[1])
    b = start("B", library).communicate()[0]
    a.send_signal(signal.SIGCONT)
    seen[library] = a.communicate()[0]
    order = subprocess.check_output(["redis-cli", "-p", port, "get", "order"], text=True)
    print(f"{library}\n{b}{seen[library]}the order is {order.strip()}'s")
    assert "B's write: OK" in b and order == "A\n"
assert seen["redlock"] == "A's write: OK\nA's end: LockError\n", seen
assert seen["redlock-universal"] == "A's write: OK, aborted false\nA's end: no error\n", seen
PY
