"""Runs redis-py's own tests against a guard and compares what fails with a list, as in expected.py.

    redis_py.py EXPECTED MODE GUARD_URL REDIS_URL PROTOCOL TESTS...

Modes are `direct` (Redis itself), `credential`, `open`, `observe` and `rules`; `refused` is what
docs/reference/redis-commands.md refuses. A line that begins with "resp2 " or "resp3 " goes for that
protocol alone.

The tests empty their database after themselves, and forget all scripts before some. SCRIPT FLUSH is
denied at the guard, and FLUSHDB leaves functions and other databases, so that this cleaning, and it
alone, is done at Redis itself, and spares the guard's own keys.
"""

import re
import sys
import threading

import pytest
import redis

from expected import List, Outcomes

GUARDS_OWN = b"{fence:"
MODES = ["direct", "credential", "open", "observe", "rules"]
# The guard's words for what it refuses.
REFUSAL = re.compile(r"\b(DENIED|NOTOKEN|WRONGTOKEN) ")


class Judge(Outcomes):
    """Notes how every test went, and cleans up after each."""

    def __init__(self, redis_url):
        super().__init__()
        self.direct = redis.Redis.from_url(redis_url)
        self.replace("flushdb", "teardown", self.clean)
        self.replace("script_flush", "reset_scripts", self.direct.script_flush)

    @staticmethod
    def replace(method, caller, direct):
        """Calls of a method by the function `caller` go to Redis itself."""
        through_the_guard = getattr(redis.Redis, method)

        def replaced(client, *args, **kwargs):
            if sys._getframe(1).f_code.co_name == caller:
                return direct()
            return through_the_guard(client, *args, **kwargs)

        setattr(redis.Redis, method, replaced)

    def clean(self):
        for space in self.direct.info("keyspace"):
            client = redis.Redis(
                connection_pool=self.pool_of(int(space.removeprefix("db"))),
            )
            keys = [key for key in client.keys() if not key.startswith(GUARDS_OWN)]
            if keys:
                client.delete(*keys)
        self.direct.function_flush()
        return True

    def pool_of(self, db):
        options = dict(self.direct.connection_pool.connection_kwargs, db=db)
        return redis.ConnectionPool(**options)


def be_patient():
    """A test gives a thread 0.1 s to end: enough on a quiet machine, and not on a busy one."""
    join = threading.Thread.join

    def patient_join(thread, timeout=None):
        join(thread, None if timeout is None else 100 * timeout)

    threading.Thread.join = patient_join


def main():
    be_patient()
    list_path, mode, guard_url, redis_url, protocol, *tests = sys.argv[1:]
    judge = Judge(redis_url)
    options = ["-p", "no:cacheprovider", "-q", "--no-header", "--tb=no", "-W", "ignore"]
    options += ["-o", "addopts=", "-o", "filterwarnings=", "-m", "not onlycluster", "--protocol", protocol]
    options += ["--redis-url", f"{guard_url}/0", "--redis-mod-url", f"{guard_url}/0"]
    status = pytest.main([*options, *tests], plugins=[judge])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(f"pytest ended with {status!r}")
    List(list_path, MODES, REFUSAL).compare(mode, f"resp{protocol}", judge, 300)


if __name__ == "__main__":
    main()
