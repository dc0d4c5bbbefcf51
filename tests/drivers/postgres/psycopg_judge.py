"""psycopg 3 and its pool at the PostgreSQL port, over a hand-over.

Arguments: the port, and three credentials of one lock with rising tokens.
"""

import sys
import threading
import time

import psycopg
from psycopg_pool import ConnectionPool

PORT = sys.argv[1]
FIRST, SECOND, THIRD = sys.argv[2:5]


def connect(credential, **more):
    return psycopg.connect(
        host="127.0.0.1", port=PORT, dbname="shop", user="app", password=credential, **more
    )


def transactions():
    with connect(FIRST) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
        conn.execute("INSERT INTO t VALUES (%s, %s)", (1, "one"))
        with conn.transaction():
            conn.execute("INSERT INTO t VALUES (2, 'two')")
            try:
                with conn.transaction():
                    conn.execute("INSERT INTO t VALUES (2, 'again')")
            except psycopg.errors.UniqueViolation:
                pass
        assert conn.execute("SELECT count(*) FROM t").fetchone() == (2,)
        # Prepared by the server from the first execution on.
        for number in range(3, 40):
            conn.execute("INSERT INTO t VALUES (%s, %s)", (number, "x"), prepare=True)
        with conn.pipeline():
            for number in range(40, 60):
                conn.execute("INSERT INTO t VALUES (%s, 'piped')", (number,))
        assert conn.execute("SELECT count(*) FROM t").fetchone() == (59,)
        with conn.cursor(binary=True) as cur:
            large = cur.execute("SELECT %b::bytea", (b"\0\1" * (8 << 20),)).fetchone()[0]
            assert len(large) == 16 << 20
        with conn.cursor(name="scrolls") as cur:
            cur.itersize = 100
            rows = cur.execute("SELECT g FROM generate_series(1, 5000) g").fetchall()
            assert len(rows) == 5000
    print("transactions, prepared statements, pipelines, large values, cursors")


def copies():
    with connect(FIRST) as conn, conn.cursor() as cur:
        with cur.copy("COPY t FROM STDIN") as copy:
            for number in range(100, 20_100):
                copy.write_row((number, "y" * 100))
        with cur.copy("COPY t TO STDOUT (FORMAT binary)") as copy:
            size = sum(len(piece) for piece in copy)
        assert size > 2_000_000, size
        try:
            with cur.copy("COPY t FROM STDIN") as copy:
                copy.write("no number\n")
        except psycopg.errors.InvalidTextRepresentation:
            conn.rollback()
        assert cur.execute("SELECT count(*) FROM t").fetchone() == (59,), "the COPY was rolled back"
    print("COPY both ways")


def notifications():
    with connect(FIRST, autocommit=True) as listener, connect(FIRST, autocommit=True) as sender:
        listener.execute("LISTEN news")
        sender.execute("NOTIFY news, 'hello'")
        got = next(listener.notifies(timeout=20))
        assert got.payload == "hello"
    print("LISTEN and NOTIFY")


def cancel_a_statement(conn):
    with connect(FIRST, autocommit=True) as watch:

        def cancel():
            while not watch.execute(
                "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            ).fetchone():
                time.sleep(0.01)
            conn.cancel_safe()

        thread = threading.Thread(target=cancel)
        thread.start()
        try:
            conn.execute("SELECT pg_sleep(600)")
            raise AssertionError("not cancelled")
        except psycopg.errors.QueryCanceled:
            pass
        thread.join()
        assert conn.execute("SELECT 1").fetchone() == (1,)


def cancels():
    # In 3.2, which libpq 18 speaks, the key of a cancel request is longer.
    assert psycopg.pq.version() >= 180000, psycopg.pq.version()
    for version in ("3.0", "3.2"):
        with connect(FIRST, autocommit=True, min_protocol_version=version) as conn:
            cancel_a_statement(conn)
    print("cancel, by protocols 3.0 and 3.2")


def channel_binding():
    # A credential is bound to no channel.
    try:
        connect(FIRST, channel_binding="require")
        raise AssertionError("connected")
    except psycopg.OperationalError as error:
        assert "channel binding" in str(error), error
    print("libpq names the reason if it must bind the channel")


def token_by_other_ways():
    with connect("", options=f"-c fence.token={FIRST} -c work_mem=5MB") as conn:
        assert conn.execute("SHOW work_mem").fetchone() == ("5MB",)
    with psycopg.connect(
        host="127.0.0.1", port=PORT, dbname="shop", user="reader", password="any", autocommit=True
    ) as conn:
        conn.execute(f"SET fence.token = '{FIRST}'")
        assert conn.execute("SELECT current_user").fetchone() == ("writer",)
    print("options, SET")


def hand_over():
    stale = connect(FIRST)
    stale.execute("INSERT INTO t VALUES (-1, 'stale')")
    with connect(SECOND) as conn:
        assert conn.execute("SELECT count(*) FROM t WHERE id = -1").fetchone() == (0,)
    for attempt in (lambda: stale.commit(), lambda: connect(FIRST)):
        try:
            attempt()
            raise AssertionError("a stale session was served")
        except psycopg.OperationalError as error:
            assert "FE412" in (error.sqlstate or "") or "stale" in str(error), error
    with connect(SECOND) as conn:
        assert conn.execute("SELECT count(*) FROM t WHERE id = -1").fetchone() == (0,)
    print("hand-over")


def pool():
    lease = {"password": SECOND}

    class Leased(psycopg.Connection):
        @classmethod
        def connect(cls, conninfo="", **kwargs):
            return super().connect(conninfo, **kwargs, **lease)

    conninfo = f"host=127.0.0.1 port={PORT} dbname=shop user=app"
    with ConnectionPool(
        conninfo, connection_class=Leased, min_size=4, max_size=4, reconnect_timeout=20,
        check=ConnectionPool.check_connection,
    ) as made:
        made.wait(20)
        for number in range(200, 220):
            with made.connection() as conn:
                conn.execute("INSERT INTO t VALUES (%s, 'pool')", (number,))
        connect(THIRD).close()
        lease["password"] = THIRD
        with made.connection(timeout=20) as conn:
            assert conn.execute("SELECT count(*) FROM t WHERE body = 'pool'").fetchone() == (20,)
    print("a pool whose credential follows the lease")


for judged in (
    transactions, copies, notifications, cancels, channel_binding, token_by_other_ways, hand_over,
    pool,
):
    judged()
