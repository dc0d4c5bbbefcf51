"""asyncpg and its pool at the PostgreSQL port, over hand-overs.

Arguments: the port, and credentials of one lock with rising tokens.
"""

import asyncio
import logging
import sys

import asyncpg

PORT = int(sys.argv[1])
TOKENS = iter(sys.argv[2:])
SETTINGS = {"host": "127.0.0.1", "port": PORT, "database": "shop", "user": "app"}
INSERT = "INSERT INTO journal (body) VALUES ($1)"
SIZE = 4
# Of a session that ended: as it waited for a reply, and later.
ENDED = (asyncpg.ConnectionDoesNotExistError, asyncpg.InterfaceError)


def connect(credential):
    return asyncpg.connect(**SETTINGS, password=credential)


async def journal(credential):
    conn = await connect(credential)
    rows = await conn.fetch("SELECT body FROM journal ORDER BY id")
    await conn.execute("TRUNCATE journal")
    await conn.close()
    return [row["body"] for row in rows]


async def refused(error_type, attempt):
    try:
        await attempt()
    except error_type as error:
        return error
    raise AssertionError("a stale session was served")


async def session():
    first, second = next(TOKENS), next(TOKENS)
    stale = await connect(first)
    await stale.execute("CREATE TABLE journal (id serial, body text)")
    await stale.execute(INSERT, "first")
    open_one = stale.transaction()
    await open_one.start()
    await stale.execute(INSERT, "late")
    other = await connect(second)
    await other.execute(INSERT, "other")
    await refused(ENDED, open_one.commit)
    await refused(ENDED, lambda: stale.execute(INSERT, "late"))
    error = await refused(asyncpg.PostgresError, lambda: connect(first))
    assert error.sqlstate == "FE412", error
    assert await journal(second) == ["first", "other"]
    print("a stale session")


async def pool():
    mine, others, again = next(TOKENS), next(TOKENS), next(TOKENS)
    lease = {"password": mine}

    async def password():
        return lease["password"]

    async with asyncpg.create_pool(**SETTINGS, password=password, min_size=SIZE, max_size=SIZE) as made:

        async def at_once(body):
            writes = [made.execute(INSERT, body) for _ in range(2 * SIZE)]
            return await asyncio.gather(*writes, return_exceptions=True)

        assert await at_once("first") == ["INSERT 0 1"] * 2 * SIZE
        other = await connect(others)
        await other.execute(INSERT, "other")
        late = await at_once("late") + await at_once("late")
        assert all(isinstance(outcome, Exception) for outcome in late), late
        assert getattr(late[-1], "sqlstate", None) == "FE412", late[-1]
        lease["password"] = again
        assert await at_once("next") == ["INSERT 0 1"] * 2 * SIZE
        await refused(ENDED, lambda: other.execute(INSERT, "late"))
    expected = ["first"] * 2 * SIZE + ["other"] + ["next"] * 2 * SIZE
    written = await journal(again)
    assert written == expected, written
    print("a pool whose credential follows the lease")


async def waits_for_a_login():
    mine, again = next(TOKENS), next(TOKENS)
    lease, begun = {"password": mine}, asyncio.Event()

    async def password():
        await begun.wait()
        return lease["password"]

    async with asyncpg.create_pool(**SETTINGS, password=password, min_size=0, max_size=1) as made:
        late = asyncio.create_task(made.execute(INSERT, "late"))
        lease["password"] = again
        begun.set()
        await late
    await refused(asyncpg.PostgresError, lambda: connect(mine))
    assert await journal(again) == ["late"]
    print("what waits for a login carries the lease of that")


async def main():
    await session()
    await pool()
    await waits_for_a_login()


# The pool logs each refused login.
logging.disable()
asyncio.run(main())
