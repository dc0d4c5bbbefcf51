"""Runs redis-py's own tests against a guard and compares what fails with a list.

    redis_py.py EXPECTED GUARD_URL REDIS_URL PROTOCOL TESTS...

EXPECTED has a line a test that fails through the guard: its id, a tab, the reason. The list is
exact: a test that fails and is not listed, and one that is listed and passes, are both errors.
A line that begins with "resp2 " or "resp3 " goes for that protocol alone.

The tests empty their database after themselves, and forget all scripts before some. SCRIPT FLUSH is
denied at the guard, and FLUSHDB leaves functions and other databases, so that this cleaning, and it
alone, is done at Redis itself, and spares the guard's own keys.
"""

import sys

import pytest
import redis

GUARDS_OWN = b"{fence:"


class Judge:
    """Notes how every test went, and cleans up after each."""

    def __init__(self, redis_url):
        self.direct = redis.Redis.from_url(redis_url)
        self.failed, self.passed, self.reasons = set(), set(), {}
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

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.add(report.nodeid)
            crash = getattr(report.longrepr, "reprcrash", None)
            lines = (crash.message if crash else str(report.longrepr)).splitlines()
            self.reasons.setdefault(report.nodeid, lines[0] if lines else "")
        elif report.passed and report.when == "call":
            self.passed.add(report.nodeid)


def expected(path, protocol):
    """The tests that are listed for this protocol."""
    found = {}
    for line in open(path, encoding="utf-8"):
        line = line.rstrip("\n")
        if not line or line.startswith("#"):
            continue
        test, tab, reason = line.partition("\t")
        if not tab or not reason.strip():
            sys.exit(f"{path}: a line without a reason: {line}")
        only, space, rest = test.partition(" ")
        if space and only not in ("resp2", "resp3"):
            sys.exit(f"{path}: not resp2 or resp3: {line}")
        if not space or only == f"resp{protocol}":
            found[rest or test] = reason
    return found


def main():
    list_path, guard_url, redis_url, protocol, *tests = sys.argv[1:]
    judge = Judge(redis_url)
    options = ["-p", "no:cacheprovider", "-q", "--no-header", "--tb=no", "-W", "ignore"]
    options += ["-o", "addopts=", "-o", "filterwarnings=", "-m", "not onlycluster", "--protocol", protocol]
    options += ["--redis-url", f"{guard_url}/0", "--redis-mod-url", f"{guard_url}/0"]
    status = pytest.main([*options, *tests], plugins=[judge])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(f"pytest ended with {status!r}")
    listed = expected(list_path, protocol)
    new = sorted(judge.failed - listed.keys())
    fine = sorted((judge.passed - judge.failed) & listed.keys())
    for test in new:
        print(f"NOT LISTED, FAILS: {test}\t{judge.reasons[test]}")
    for test in fine:
        print(f"LISTED, PASSES: {test}")
    count = len(judge.passed - judge.failed)
    print(f"RESP{protocol}: {count} passed, {len(judge.failed)} failed ({len(new)} not listed)")
    if new or fine or count < 300:
        sys.exit(1)


if __name__ == "__main__":
    main()
