"""Runs redis-py's own tests against a guard and compares what fails with a list.

    redis_py.py EXPECTED MODE GUARD_URL REDIS_URL PROTOCOL TESTS...

EXPECTED has a line a test that fails: its id, the modes in which it does, a class and the reason,
with tabs between them. The list is exact: a test that fails and is not listed, and one that is
listed and passes, are both errors.
A line that begins with "resp2 " or "resp3 " goes for that protocol alone.
Modes are `direct` (Redis itself), `credential`, `open`, `observe` and `rules`, with commas between
them; `guarded` is all but the first, `all` all of them.
Classes are `refused`, what docs/reference/redis-commands.md refuses; `differs`, another reply than
that of Redis, and why; `chance`, which passes or fails; and `direct`, what fails without a guard, too.

FENCE_REGENERATE=1 brings the list up to date with what happened; the reasons are for a human to read.

The tests empty their database after themselves, and forget all scripts before some. SCRIPT FLUSH is
denied at the guard, and FLUSHDB leaves functions and other databases, so that this cleaning, and it
alone, is done at Redis itself, and spares the guard's own keys.
"""

import os
import re
import sys
from pathlib import Path

import pytest
import redis

GUARDS_OWN = b"{fence:"
MODES = ["direct", "credential", "open", "observe", "rules"]
GROUPS = {"all": MODES, "guarded": MODES[1:]}
CLASSES = ["refused", "differs", "chance", "direct"]
# The guard's words for what it refuses.
REFUSAL = re.compile(r"\b(DENIED|NOTOKEN|WRONGTOKEN) ")


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


class Pin:
    """A line of the list."""

    def __init__(self, test, modes, kind, reason):
        self.only, space, self.test = test.rpartition(" ")
        names = modes.split(",")
        self.modes = {one for name in names for one in GROUPS.get(name, [name])}
        self.kind, self.reason = kind, reason
        if self.only not in ("", "resp2", "resp3") or not self.modes <= set(MODES) or kind not in CLASSES:
            sys.exit(f"not an id, its modes, a class and a reason: {self}")

    def __str__(self):
        modes = [mode for mode in MODES if mode in self.modes]
        names = [name for name, group in GROUPS.items() if group == modes] or modes
        return "\t".join([f"{self.only} {self.test}".strip(), ",".join(names), self.kind, self.reason])

    def holds(self, mode, protocol):
        return mode in self.modes and self.only in ("", f"resp{protocol}")


def read(path):
    """The comments and the pins of the list."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    comments = [line for line in lines if line.startswith("#")]
    return comments, [Pin(*line.split("\t")) for line in lines if line and not line.startswith("#")]


def regenerate(path, mode, new, fine):
    """Adds what fails in this mode to the list, and removes what passes."""
    comments, pins = read(path)
    for pin in pins:
        if pin.test in fine:
            pin.modes.discard(mode)
        elif pin.test in new:
            pin.modes.add(mode)
            del new[pin.test]
    for test, reason in new.items():
        reason = reason.partition(": ")[2] or reason
        pins.append(Pin(test, mode, "refused" if "denied" in reason.lower() else "differs", reason))
    pins = sorted((str(pin) for pin in pins if pin.modes))
    Path(path).write_text("\n".join(comments + pins) + "\n", encoding="utf-8")


def main():
    list_path, mode, guard_url, redis_url, protocol, *tests = sys.argv[1:]
    judge = Judge(redis_url)
    options = ["-p", "no:cacheprovider", "-q", "--no-header", "--tb=no", "-W", "ignore"]
    options += ["-o", "addopts=", "-o", "filterwarnings=", "-m", "not onlycluster", "--protocol", protocol]
    options += ["--redis-url", f"{guard_url}/0", "--redis-mod-url", f"{guard_url}/0"]
    status = pytest.main([*options, *tests], plugins=[judge])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(f"pytest ended with {status!r}")
    pins = [pin for pin in read(list_path)[1] if pin.holds(mode, protocol)]
    listed = {pin.test for pin in pins}
    chance = {pin.test for pin in pins if pin.kind == "chance"}
    passed = judge.passed - judge.failed
    new = {test: judge.reasons[test] for test in sorted(judge.failed - listed)}
    fine = sorted(passed & listed - chance)
    refused = {pin.test for pin in pins if pin.kind == "refused"} & judge.failed
    other = sorted(test for test in refused if not REFUSAL.search(judge.reasons[test]))
    for test, reason in new.items():
        print(f"NOT LISTED, FAILS: {test}\t{reason}")
    for test in fine:
        print(f"LISTED, PASSES: {test}")
    for test in other:
        print(f"LISTED AS REFUSED, FAILS OTHERWISE: {test}\t{judge.reasons[test]}")
    count = len(passed)
    print(f"{mode}, RESP{protocol}: {count} passed, {len(judge.failed)} failed ({len(new)} not listed)")
    if count < 300:
        sys.exit("too few tests ran")
    if os.environ.get("FENCE_REGENERATE") == "1":
        regenerate(list_path, mode, new, fine)
    elif new or fine or other:
        sys.exit(1)


if __name__ == "__main__":
    main()
