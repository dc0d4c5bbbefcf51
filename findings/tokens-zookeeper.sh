#!/usr/bin/env bash
# ZooKeeper 3.8.0 (Debian), kazoo 2.11.0 (PyPI): A holds client.Lock("/job") in a session of four
# seconds and stops itself (SIGSTOP) before its write, the session ends, B takes the lock and writes, A
# is resumed. The token is the sequence number of the lock's node, or that node in a transaction.
#
# Seen:
#   the sequence numbers                  rise
#   A's multi that checks its lock node   NoNodeError, nothing is written
#   A's set without the check             the first fails with ConnectionLoss, a repeated one replaces
#                                         B's, in a new session
#   A's lock.is_acquired                  True all the time
#
# Fails if one of them differs.
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
apt-get download zookeeper=3.8.0-11+deb12u2 libzookeeper-java=3.8.0-11+deb12u2 libnetty-java \
  libslf4j-java libsnappy-java libdropwizard-metrics-java libcommons-cli-java >out 2>&1
for package in *.deb; do dpkg -x "$package" .; done
pip install --quiet --root-user-action ignore --target "$dir/py" kazoo==2.11.0 2>/dev/null
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
cat >zoo.cfg <<CFG
tickTime=500
dataDir=$dir/data
clientPort=$port
clientPortAddress=127.0.0.1
admin.enableServer=false
CFG
jars=usr/share/java
classes=$jars/zookeeper.jar:$jars/zookeeper-jute.jar:$jars/slf4j-api.jar:$jars/slf4j-nop.jar
classes+=:$jars/netty-all.jar:$jars/snappy-java.jar:$jars/metrics-core.jar:$jars/commons-cli.jar
java -cp "$classes" org.apache.zookeeper.server.quorum.QuorumPeerMain zoo.cfg >log 2>&1 &
server=$!
cat >a.py <<'PY'
import logging
import os
import signal
import sys

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

logging.disable()
client = KazooClient(sys.argv[1], timeout=4)
client.start()
lock = client.Lock("/job")
lock.acquire()
node = f"/job/{lock.node}"
print(node[-10:])
os.kill(os.getpid(), signal.SIGSTOP)


def outcome(call):
    try:
        return type(call()).__name__
    except KazooException as error:
        return type(error).__name__


def fenced():
    transaction = client.transaction()
    transaction.check(node, 0)
    transaction.set_data("/order", b"A")
    return [type(result).__name__ for result in transaction.commit()]


print(lock.is_acquired, outcome(lambda: client.set("/order", b"A")))
while outcome(lambda: client.exists("/order")) != "ZnodeStat":
    pass
print(fenced())
print(client.get("/order")[0])
print(lock.is_acquired, outcome(lambda: client.set("/order", b"A")))
os._exit(0)
PY
PYTHONPATH=$dir/py timeout 100 python3 -u - "$port" <<'PY'
import logging
import os
import signal
import subprocess
import sys

from kazoo.client import KazooClient

logging.disable()
hosts = f"127.0.0.1:{sys.argv[1]}"
client = KazooClient(hosts, timeout=10)
client.start(timeout=60)
client.create("/order", b"")
a = subprocess.Popen([sys.executable, "-u", "a.py", hosts], stdout=subprocess.PIPE, text=True)
assert os.WIFSTOPPED(os.waitpid(a.pid, os.WUNTRACED)[1])
with client.Lock("/job") as lock:
    pass
lock = client.Lock("/job")
lock.acquire()
client.set("/order", b"B")
mine = lock.node[-10:]
a.send_signal(signal.SIGCONT)
said = a.communicate()[0].splitlines()
order = client.get("/order")[0]
print(f"A {said}\nB {mine}, the order is {order}")
client.stop()
assert mine > said[0]
assert said[1] in ("True ConnectionLoss", "True SessionExpiredError")
assert said[2:] == ["['NoNodeError', 'RuntimeInconsistency']", "b'B'", "True ZnodeStat"] and order == b"A"
PY
