#!/usr/bin/env python3
"""Passes the output of cargo's tests through, and ends it with wall times, failed tests and counts.

The output of each failed test is written to target/test-logs/TEST/output, beside the logs of its servers.

usage: … 2>&1 | tests/summary.py FILE

A line `== NAME` begins a phase of tests/run. Of a test binary the harness prints its own time; of a
module of the integration tests, modules run side by side, the time from its first result to its last
is shown. FILE receives "PASSED FAILED".
"""
import pathlib
import re
import signal
import sys
import time

PHASE = re.compile(r"== (.+)$")
LOGS = pathlib.Path(__file__).parent.parent / "target" / "test-logs"
BINARY = re.compile(r"\s+(?:Running (unittests )?(\S+) \(\S*/([\w-]+)-[0-9a-f]+\)|Doc-tests (\w+))")
OUTPUT = re.compile(r"---- (\S+) stdout ----$")
RESULT = re.compile(r"test (\S+)(?: - .+)? \.\.\. (?:.*\b)?(ok|FAILED)\b")
TOTAL = re.compile(r"test result: .* (\d+) passed; (\d+) failed;.* finished in ([\d.]+)s")
SIMULATION = re.compile(r"simulation: (\d+) passed, (\d+) failed")


def main() -> None:
    # Ctrl-C ends cargo; the summary of what ran is still printed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    phases, binaries, modules, failures, ran = [], [], {}, [], []
    passed = failed = 0
    binary, chosen, output = "", "", None
    for line in sys.stdin:
        sys.stdout.write(line)
        sys.stdout.flush()
        now = time.monotonic()
        output = output_file(line, output)
        if found := PHASE.match(line):
            phases.append((found[1], now))
            ran.append(0)
        elif found := BINARY.match(line):
            binary = found[3] or f"{found[4]}, examples in its documentation"
            chosen = target(found)
        elif found := RESULT.match(line):
            if found[2] == "FAILED":
                failures.append(f"{binary}: {found[1]}\n    {logs(found[1])}\n    tests/run {chosen} -- --exact {found[1]}")
            if binary == "integration":
                module = found[1].split("::")[0]
                key = (len(binaries), module)
                modules.setdefault(key, [now, now, 0])
                modules[key][1] = now
                modules[key][2] += 1
        elif found := TOTAL.match(line):
            count(ran, found)
            passed += int(found[1])
            failed += int(found[2])
            if int(found[1]) + int(found[2]) > 0:
                binaries.append((binary, int(found[1]) + int(found[2]), float(found[3])))
        elif found := SIMULATION.match(line):
            count(ran, found)
            passed += int(found[1])
            failed += int(found[2])
            if int(found[2]) > 0:
                failures.append("simulation: the seeds above")
    for (name, _), tests in zip(phases, ran):
        if tests == 0:
            failed += 1
            failures.append(f"{name}: no test ran")
    report(phases, time.monotonic(), binaries, modules)
    if failures:
        print("\ntests that failed, where their output and logs are, and how to run them alone:")
        for name in failures:
            print(f"  {name}")
    with open(sys.argv[1], "w") as file:
        file.write(f"{passed} {failed}\n")


def target(found) -> str:
    """The arguments of cargo that choose a test binary."""
    if found[4]:
        return "--doc"
    if not found[1]:
        return f"--test {found[3]}"
    return "--lib" if found[2].endswith("lib.rs") else "--bins"


def logs(test: str) -> str:
    return f"target/test-logs/{test.replace('::', '.')}"


def output_file(line, output):
    """Copies the harness's report of a failed test, which ends at the next or at the list of names."""
    found = OUTPUT.match(line)
    if output and (found or line == "failures:\n"):
        output.close()
        output = None
    if found:
        folder = LOGS.parent.parent / logs(found[1])
        folder.mkdir(parents=True, exist_ok=True)
        output = open(folder / "output", "w")
    if output:
        output.write(line)
    return output


def count(ran, found) -> None:
    if ran:
        ran[-1] += int(found[1]) + int(found[2])


def report(phases, end, binaries, modules) -> None:
    if not phases:
        return
    print("\nwall time, seconds:")
    for (name, begin), (_, next_begin) in zip(phases, phases[1:] + [("", end)]):
        print(f"{next_begin - begin:8.1f}  {name}")
    print(f"{end - phases[0][1]:8.1f}  all")
    print("by test binary:")
    for name, tests, seconds in sorted(binaries, key=lambda row: -row[2]):
        print(f"{seconds:8.1f}  {name} ({tests} tests)")
    if modules:
        print("by module of the integration tests, from its first result to its last:")
        for (_, name), (first, last, tests) in sorted(modules.items(), key=lambda row: row[1][0] - row[1][1]):
            print(f"{last - first:8.1f}  {name} ({tests} tests)")


main()
