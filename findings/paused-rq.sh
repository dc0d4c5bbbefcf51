#!/usr/bin/env bash
# RQ 3.0.0, redis-py 8.1.0 (PyPI), Redis 7.0.15 (Debian): worker A takes a job with Retry(max=1) and is
# stopped (SIGSTOP) with the process of its job, before that writes. Its heartbeats end, after a minute
# the job counts as abandoned, worker B runs it again and writes, then A is resumed.
#
# Seen:
#   A's write      True, and replaces B's
#   job.results()  two successes with one id, A's first; the job had been finished with B's
#
# Fails if A's write is refused, or the results differ. Takes a minute and a half.
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
pip install --quiet --root-user-action ignore --target "$dir/py" rq==3.0.0 redis==8.1.0 2>/dev/null
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/log" &
server=$!
until redis-cli -p "$port" ping >"$dir/out" 2>&1; do kill -0 "$server"; done
redis-cli -p "$port" info server | grep redis_version
cat >"$dir/jobs.py" <<'PY'
import os
import signal

import redis

client = redis.Redis(port=int(os.environ["REDIS_PORT"]))


def pay():
    who = os.environ["WHO"]
    if who == "A":
        client.set("A's job", os.getpid())
        os.kill(os.getppid(), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
    client.rpush("writes", f"{who}: {client.set('order', who)}")
    return who
PY
cd "$dir"
export PYTHONPATH=$dir/py:$dir REDIS_PORT=$port
timeout 180 python3 -u - <<'PY'
import os
import signal
import subprocess
import sys
import time

from rq import Queue, Retry
from rq.registry import StartedJobRegistry

import jobs

queue = Queue(connection=jobs.client)
job = queue.enqueue("jobs.pay", retry=Retry(max=1))


def worker(who):
    url = f"redis://127.0.0.1:{os.environ['REDIS_PORT']}"
    command = [sys.executable, "-m", "rq.cli", "worker", "--burst", "--url", url]
    command += ["--job-monitoring-interval", "1"]
    log = open(f"{who}.log", "w")
    return subprocess.Popen(command, env={**os.environ, "WHO": who}, stdout=log, stderr=log)


a = worker("A")
assert os.WIFSTOPPED(os.waitpid(a.pid, os.WUNTRACED)[1])
started = StartedJobRegistry(queue=queue)
while not started.get_expired_job_ids():
    time.sleep(0.1)
assert worker("B").wait() == 0
print("B has ended, the job is", job.get_status(), "with", job.return_value())
os.kill(int(jobs.client.get("A's job")), signal.SIGCONT)
a.send_signal(signal.SIGCONT)
print("A ended with", a.wait())
writes = [write.decode() for write in jobs.client.lrange("writes", 0, -1)]
results = [(result.type.name, result.return_value) for result in job.results()]
order = jobs.client.get("order").decode()
print(f"writes {writes}\nresults {results}\nthe order is {order}'s")
assert writes == ["B: True", "A: True"] and order == "A"
assert results == [("SUCCESSFUL", "A"), ("SUCCESSFUL", "B")]
PY
