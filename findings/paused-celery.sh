#!/usr/bin/env bash
# Celery 5.7.0, kombu 5.7.0, redis-py 8.1.0 (PyPI), Redis 7.0.15 (Debian) as broker and results,
# acks_late: worker A takes a task and stops itself (SIGSTOP) before its write. After
# visibility_timeout, here one second and by default an hour, the message is given to B, which runs the
# task and writes, then A is resumed.
#
# Seen:
#   A's write    True, and replaces B's
#   A's end      "succeeded", as B's
#   the result   B's, the first
#
# Fails if A's write is refused, or one of them ends otherwise.
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
pip install --quiet --root-user-action ignore --target "$dir/py" celery==5.7.0 kombu==5.7.0 \
  redis==8.1.0 packaging==26.4 2>/dev/null
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/log" &
server=$!
until redis-cli -p "$port" ping >"$dir/out" 2>&1; do kill -0 "$server"; done
redis-cli -p "$port" info server | grep redis_version
cat >"$dir/tasks.py" <<'PY'
import os
import signal

import celery
import redis

url = os.environ["BROKER"]
app = celery.Celery("tasks", broker=url, backend=url)
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_transport_options={"visibility_timeout": 1},
    broker_connection_retry_on_startup=True,
)
client = redis.Redis.from_url(url)


@app.task
def pay():
    who = os.environ["WHO"]
    client.rpush("runs", who)
    if who == "A":
        os.kill(os.getpid(), signal.SIGSTOP)
    client.rpush("writes", f"{who}: {client.set('order', who)}")
    return who
PY
cd "$dir"
export PYTHONPATH=$dir/py:$dir BROKER=redis://127.0.0.1:$port/0
timeout 120 python3 -u - <<'PY'
import os
import signal
import subprocess
import sys
import time

import tasks


def worker(who):
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-P", "solo", "-l", "info"]
    environment = {**os.environ, "WHO": who}
    log = open(f"{who}.log", "w+")
    return subprocess.Popen([*command, "-n", who], env=environment, stderr=log, stdout=log), log


def until_written(who):
    while f"{who}: True" not in [write.decode() for write in tasks.client.lrange("writes", 0, -1)]:
        time.sleep(0.05)


def until_succeeded(log):
    while True:
        log.seek(0)
        if found := [line for line in log if "succeeded" in line]:
            return "succeeded" + found[0].split("s:")[-1].rstrip()
        time.sleep(0.05)


sent = tasks.pay.delay()
a, a_log = worker("A")
assert os.WIFSTOPPED(os.waitpid(a.pid, os.WUNTRACED)[1])
while not tasks.client.zcount("unacked_index", 0, time.time() - 1):
    time.sleep(0.05)
b, b_log = worker("B")
until_written("B")
b_end = until_succeeded(b_log)
a.send_signal(signal.SIGCONT)
until_written("A")
a_end = until_succeeded(a_log)
runs = tasks.client.lrange("runs", 0, -1)
order = tasks.client.get("order").decode()
print(f"runs {runs}\nB: {b_end}\nA: {a_end}\nthe result is {sent.get()}'s, the order is {order}'s")
for process in (a, b):
    process.terminate()
    process.wait()
assert "succeeded" in a_end and "succeeded" in b_end
assert runs == [b"A", b"B"] and order == "A" and sent.get() == "B"
PY
