"""Runs a driver's own tests and compares what fails with a list, as in ../expected.py.

    suites.py EXPECTED MODE SUITE SKIPPED LEAST pytest ARG…    its tests run in pytest
    suites.py EXPECTED MODE SUITE SKIPPED LEAST go PACKAGE…    they run in `go test`

The environment names the server, as libpq's does. Modes are `direct` (PostgreSQL itself),
`credential`, `open` and `tls`: the port with a token, as a reader without one, and with a token over
TLS. A line of the list that begins with a suite's name and a blank goes for that suite alone. The
ids of skipped tests are written to the file SKIPPED, and at least LEAST tests must pass.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from expected import List, Outcomes  # noqa: E402

MODES = ["direct", "credential", "open", "tls"]
# The port's words for what it refuses.
REFUSAL = re.compile(r"is not served at this port|do not pass through the guard")


def run_pytest(args):
    import pytest

    outcomes = Outcomes()
    options = ["-p", "no:cacheprovider", "-qq", "-rN", "--no-header", "--tb=no", "-W", "ignore"]
    status = pytest.main([*options, "-o", "addopts=", "--timeout=120", *args], plugins=[outcomes])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(f"pytest ended with {status!r}")
    return outcomes


def run_go(packages):
    outcomes = Outcomes()
    command = ["go", "test", "-json", "-count=1", "-p=1", "-timeout=10m", *packages]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    said = {}
    for event in map(json.loads, lines):
        test = f"{event['Package']}.{event.get('Test', 'package')}".removeprefix("github.com/")
        if event["Action"] == "output":
            said.setdefault(test, []).append(event["Output"].strip())
        elif event["Action"] == "fail" and ("Test" in event or not outcomes.failed):
            outcomes.fail(test, " ".join(said[test]))
        elif "Test" in event and event["Action"] == "pass":
            outcomes.passed.add(test)
        elif "Test" in event and event["Action"] == "skip":
            outcomes.skipped.add(test)
    return outcomes


def main():
    list_path, mode, suite, skipped, least, runner, *args = sys.argv[1:]
    outcomes = {"pytest": run_pytest, "go": run_go}[runner](args)
    Path(skipped).write_text("\n".join(sorted(outcomes.skipped)) + "\n", encoding="utf-8")
    List(list_path, MODES, REFUSAL).compare(mode, suite, outcomes, int(least))


if __name__ == "__main__":
    main()
