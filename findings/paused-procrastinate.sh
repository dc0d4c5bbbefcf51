#!/usr/bin/env bash
# procrastinate 3.10.0, psycopg 3.3.9 (PyPI), PostgreSQL 15 (Debian): worker A fetches a job and stops
# itself (SIGSTOP) before its write. Its heartbeat ends, and the retry of stalled jobs that the manual
# shows (get_stalled_jobs, retry_job; here after one second) gives the job to worker B, which writes.
# Then A is resumed.
#
# Seen:
#   A's write      commits, and replaces B's
#   A's end        refused, 'Job was not found or not in "doing" or "todo" status'; A's worker ends with 0
#   the job        succeeded, after two attempts
#
# Fails if A's write does not commit, or the end differs.
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
pip install --quiet --root-user-action ignore --target "$dir/py" procrastinate==3.10.0 \
  'psycopg[binary]==3.3.9' 2>/dev/null
chmod -R a+rX "$dir"
mkdir pg
if [ "$(id -u)" = 0 ]; then chown postgres pg; fi
as_owner "$bin/initdb" -D pg/data -A trust -U postgres --no-sync >out
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
as_owner "$bin/pg_ctl" -D pg/data -l pg/log -w start -o "-p $port -c listen_addresses=127.0.0.1 -k $dir/pg" >out
export PGHOST=127.0.0.1 PGPORT=$port PGUSER=postgres PGDATABASE=postgres
cat >tasks.py <<'PY'
import os
import signal

import procrastinate
import psycopg

app = procrastinate.App(connector=procrastinate.PsycopgConnector())


@app.task(name="pay", queue="jobs")
def pay():
    who = os.environ["WHO"]
    if who == "A":
        os.kill(os.getpid(), signal.SIGSTOP)
    with psycopg.connect() as connection:
        connection.execute("INSERT INTO writes (who) VALUES (%s)", [who])
        connection.execute('UPDATE "order" SET owner = %s', [who])
PY
cat >worker.py <<'PY'
import asyncio

import tasks


async def main():
    async with tasks.app.open_async():
        await tasks.app.run_worker_async(
            queues=["jobs"], wait=False, update_heartbeat_interval=0.2, stalled_worker_timeout=1
        )


asyncio.run(main())
PY
export PYTHONPATH=$dir/py:$dir
timeout 120 python3 -u - <<'PY'
import asyncio
import os
import signal
import subprocess
import sys

import psycopg

import tasks

connection = psycopg.connect(autocommit=True)
print("PostgreSQL", connection.execute("SHOW server_version").fetchone()[0])
connection.execute('CREATE TABLE "order" (owner text)')
connection.execute('INSERT INTO "order" VALUES (NULL)')
connection.execute("CREATE TABLE writes (id serial, who text)")


def worker(who):
    log = open(f"{who}.log", "w+")
    environment = {**os.environ, "WHO": who}
    return subprocess.Popen([sys.executable, "worker.py"], env=environment, stderr=log, stdout=log)


async def prepare():
    async with tasks.app.open_async():
        await tasks.app.schema_manager.apply_schema_async()
        await tasks.pay.defer_async()


async def retry_stalled():
    async with tasks.app.open_async():
        manager = tasks.app.job_manager
        while not (stalled := list(await manager.get_stalled_jobs(seconds_since_heartbeat=1))):
            await asyncio.sleep(0.1)
        for job in stalled:
            await manager.retry_job(job)


asyncio.run(prepare())
a = worker("A")
assert os.WIFSTOPPED(os.waitpid(a.pid, os.WUNTRACED)[1])
asyncio.run(retry_stalled())
print("B ended with", worker("B").wait())
a.send_signal(signal.SIGCONT)
print("A ended with", a.wait())
writes = [who for who, in connection.execute("SELECT who FROM writes ORDER BY id")]
order = connection.execute('SELECT owner FROM "order"').fetchone()[0]
jobs = connection.execute("SELECT status, attempts FROM procrastinate_jobs").fetchall()
refused = 'Job was not found or not in "doing" or "todo" status' in open("A.log").read()
print(f"writes {writes}, jobs {jobs}, A's end was refused: {refused}\nthe order is {order}'s")
assert writes == ["B", "A"] and order == "A"
assert jobs == [("succeeded", 2)] and refused
PY
