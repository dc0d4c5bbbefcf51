"""pg8000 and the pool of SQLAlchemy at the PostgreSQL port, over hand-overs.

Arguments: the port, and credentials of one lock with rising tokens.
"""

import logging
import sys
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy
from pg8000 import dbapi

PORT = int(sys.argv[1])
TOKENS = iter(sys.argv[2:])
INSERT = "INSERT INTO journal (body) VALUES (%s)"
SIZE = 4


def connect(credential):
    return dbapi.connect("app", host="127.0.0.1", port=PORT, database="shop", password=credential)


def write(conn, body):
    conn.cursor().execute(INSERT, (body,))
    conn.commit()


def journal(credential):
    conn = connect(credential)
    cursor = conn.cursor()
    cursor.execute("SELECT body FROM journal ORDER BY id")
    rows = cursor.fetchall()
    cursor.execute("TRUNCATE journal")
    conn.commit()
    conn.close()
    return [body for [body] in rows]


def refused(error_type, attempt):
    try:
        attempt()
    except error_type as error:
        return error
    raise AssertionError("a stale session was served")


def session():
    first, second = next(TOKENS), next(TOKENS)
    stale = connect(first)
    stale.cursor().execute("CREATE TABLE journal (id serial, body text)")
    write(stale, "first")
    stale.cursor().execute(INSERT, ("late",))
    other = connect(second)
    write(other, "other")
    # The session has ended, and pg8000 does not read the reason; a login is refused with it.
    refused(dbapi.InterfaceError, stale.commit)
    refused(dbapi.InterfaceError, lambda: write(stale, "late"))
    error = refused(dbapi.DatabaseError, lambda: connect(first))
    assert error.args[0]["C"] == "FE412", error
    assert journal(second) == ["first", "other"]
    print("a stale session")


def pool(pre_ping):
    mine, others, again = next(TOKENS), next(TOKENS), next(TOKENS)
    lease = {"password": mine}
    engine = sqlalchemy.create_engine(
        "postgresql+pg8000://", creator=lambda: connect(lease["password"]),
        pool_size=SIZE, max_overflow=0, pool_pre_ping=pre_ping,
    )

    def one(body):
        try:
            with engine.begin() as conn:
                conn.exec_driver_sql(INSERT, (body,))
        except sqlalchemy.exc.DBAPIError as error:
            return error.orig

    def at_once(body):
        with ThreadPoolExecutor(SIZE) as threads:
            return list(threads.map(one, [body] * 2 * SIZE))

    assert at_once("first") == [None] * 2 * SIZE
    other = connect(others)
    write(other, "other")
    late = at_once("late") + at_once("late")
    assert None not in late, late
    assert late[-1].args[0]["C"] == "FE412", late[-1]
    lease["password"] = again
    assert at_once("next") == [None] * 2 * SIZE
    refused(dbapi.InterfaceError, lambda: write(other, "late"))
    engine.dispose()
    expected = ["first"] * 2 * SIZE + ["other"] + ["next"] * 2 * SIZE
    written = journal(again)
    assert written == expected, written
    print(f"a pool whose credential follows the lease, {pre_ping=}")


# The pool logs each session that was ended.
logging.disable()
session()
pool(pre_ping=False)
pool(pre_ping=True)
