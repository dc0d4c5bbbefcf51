#!/usr/bin/env bash
# graphile-worker 0.18.0 (npm), Node 20, psycopg 3.3.9 (PyPI), PostgreSQL 15 (Debian): worker A takes a
# job of a named queue and stops itself (SIGSTOP) before its write. force_unlock_workers frees A's jobs
# (without it they wait for four hours), worker B begins the job, A is resumed and ends, then B does.
#
# Seen:
#   A's write    commits, A's job ends with success
#   the job      is deleted while B works on it; B's end is a success too
#   the queue    stays locked by B, which is done: its next job waits
#
# Fails if A's write does not commit, or one of them differs.
set -euo pipefail
dir=$(mktemp -d)
chmod 755 "$dir"
bin=/usr/lib/postgresql/15/bin
as_owner() { if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi; }
cleanup() {
  as_owner "$bin/pg_ctl" -D "$dir/pg/data" -m immediate -w stop >"$dir/stop" 2>&1 || true
  rm -rf "$dir"
}
trap cleanup EXIT
cd "$dir"
npm install --silent --no-save --prefix "$dir" graphile-worker@0.18.0 pg@8.23.1 >/dev/null
pip install --quiet --root-user-action ignore --target "$dir/py" 'psycopg[binary]==3.3.9' 2>/dev/null
mkdir pg
if [ "$(id -u)" = 0 ]; then chown postgres pg; fi
as_owner "$bin/initdb" -D pg/data -A trust -U postgres --no-sync >out
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
as_owner "$bin/pg_ctl" -D pg/data -l pg/log -w start -o "-p $port -c listen_addresses=127.0.0.1 -k $dir/pg" >out
export PGHOST=127.0.0.1 PGPORT=$port PGUSER=postgres PGDATABASE=postgres
cat >worker.js <<'JS'
const { once } = require('node:events')
const { run } = require('graphile-worker')
const { Client } = require('pg')

const [who] = process.argv.slice(2)

async function main() {
  const sql = new Client()
  await sql.connect()
  const pay = async () => {
    if (who === 'A') process.kill(process.pid, 'SIGSTOP')
    console.log('# begun')
    if (who === 'B') await once(process.stdin, 'data')
    await sql.query('UPDATE "order" SET owner = $1', [who])
    console.log('# written')
  }
  const runner = await run({ connectionString: 'postgres://', taskList: { pay }, concurrency: 1 })
  runner.events.on('job:complete', ({ error }) => console.log(error ? `# ${error.message}` : '# success'))
}

main()
JS
PYTHONPATH=$dir/py timeout 120 python3 -u - <<'PY'
import os
import signal
import subprocess
import time

import psycopg

sql = psycopg.connect(autocommit=True)


def value(query, *arguments):
    row = sql.execute(query, arguments).fetchone()
    return row and row[0]


def worker(who):
    log = open(f"{who}.log", "w")
    pipe = subprocess.PIPE
    return subprocess.Popen(["node", "worker.js", who], stdin=pipe, stdout=pipe, stderr=log, text=True)


def read(process, count):
    """Lines of the worker itself; the library logs to the same pipe."""
    own = (line[2:].strip() for line in process.stdout if line.startswith("# "))
    return [next(own) for _ in range(count)]


print("PostgreSQL", value("SHOW server_version"))
sql.execute('CREATE TABLE "order" (owner text)')
sql.execute('INSERT INTO "order" VALUES (NULL)')
command = ["node", "node_modules/.bin/graphile-worker", "-c", "postgres://", "--schema-only"]
subprocess.run(command, check=True, capture_output=True)
job = value("SELECT id FROM graphile_worker.add_job('pay', queue_name => 'orders')")
a = worker("A")
assert os.WIFSTOPPED(os.waitpid(a.pid, os.WUNTRACED)[1])
holder = value("SELECT locked_by FROM graphile_worker.jobs WHERE id = %s", job)
sql.execute("SELECT graphile_worker.force_unlock_workers(ARRAY[%s])", [holder])
b = worker("B")
assert read(b, 1) == ["begun"]
a.send_signal(signal.SIGCONT)
a_said = read(a, 3)
while value("SELECT count(*) FROM graphile_worker.jobs WHERE id = %s", job):
    time.sleep(0.05)
print("A:", a_said, "and the job that B works on is gone")
a.kill()
a.wait()
b.stdin.write("\n")
b.stdin.flush()
b_said = read(b, 2)
following = value("SELECT id FROM graphile_worker.add_job('pay', queue_name => 'orders')")
# B polls every two seconds, and is notified of new jobs.
time.sleep(7)
waits = value("SELECT locked_at IS NULL AND attempts = 0 FROM graphile_worker.jobs WHERE id = %s", following)
queue = value("SELECT locked_by IS NOT NULL FROM graphile_worker._private_job_queues")
print("B:", b_said, "- 7 s later the queue is locked:", queue, "and its next job waits:", waits)
b.kill()
b.wait()
assert a_said == ["begun", "written", "success"] and b_said == ["written", "success"]
assert queue and waits
PY
