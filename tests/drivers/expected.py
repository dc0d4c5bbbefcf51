"""Compares which tests of a foreign suite fail with a list.

The list has a line a test that fails: its id, the modes in which it does, a class and the reason,
with tabs between them. It is exact: a test that fails and is not listed, and one that is listed and
passes, are both errors. A word and a blank before the id limit a line to that variant of the suite.
Modes have commas between them; `guarded` is all but the first, `all` all of them.
Classes are `refused`, what our documents say is refused; `differs`, another reply than without a
guard, and why; `chance`, which passes or fails; and `direct`, what fails without a guard, too.

FENCE_REGENERATE=1 brings the list up to date with what happened; the reasons are for a human to read.
"""

import os
import sys
from pathlib import Path

CLASSES = ["refused", "differs", "chance", "direct"]


class Outcomes:
    """A plugin of pytest that notes how every test went."""

    def __init__(self):
        self.failed, self.passed, self.skipped, self.reasons = set(), set(), set(), {}

    def fail(self, test, reason):
        self.failed.add(test)
        self.reasons.setdefault(test, reason[:300])

    def pytest_runtest_logreport(self, report):
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            lines = (crash.message if crash else str(report.longrepr)).splitlines()
            self.fail(report.nodeid, lines[0] if lines else "")
        elif report.skipped:
            self.skipped.add(report.nodeid)
        elif report.passed and report.when == "call":
            self.passed.add(report.nodeid)


class Pin:
    """A line of the list."""

    def __init__(self, modes_of_list, test, modes, kind, reason):
        self.only, _, self.test = test.rpartition(" ")
        self.all, self.groups = modes_of_list, {"all": modes_of_list, "guarded": modes_of_list[1:]}
        names = modes.split(",")
        self.modes = {one for name in names for one in self.groups.get(name, [name])}
        self.kind, self.reason = kind, reason
        if not self.modes <= set(self.all) or kind not in CLASSES:
            sys.exit(f"not an id, its modes, a class and a reason: {self}")

    def __str__(self):
        modes = [mode for mode in self.all if mode in self.modes]
        names = [name for name, group in self.groups.items() if group == modes] or modes
        return "\t".join([f"{self.only} {self.test}".strip(), ",".join(names), self.kind, self.reason])


class List:
    """The list in a file; `refusal` finds our words for what is refused."""

    def __init__(self, path, modes, refusal):
        self.path, self.modes, self.refusal = Path(path), modes, refusal
        lines = self.path.read_text(encoding="utf-8").splitlines()
        self.comments = [line for line in lines if line.startswith("#")]
        lines = [line for line in lines if line and not line.startswith("#")]
        self.pins = [Pin(modes, *line.split("\t")) for line in lines]

    def compare(self, mode, variant, outcomes, least):
        """Prints what differs, and ends the program if anything does or fewer than `least` passed."""
        pins = [pin for pin in self.pins if mode in pin.modes and pin.only in ("", variant)]
        listed = {pin.test for pin in pins}
        chance = {pin.test for pin in pins if pin.kind == "chance"}
        passed = outcomes.passed - outcomes.failed
        reasons = outcomes.reasons
        new = {test: reasons[test] for test in sorted(outcomes.failed - listed)}
        fine = sorted(passed & listed - chance)
        refused = {pin.test for pin in pins if pin.kind == "refused"} & outcomes.failed
        other = sorted(test for test in refused if not self.refusal.search(reasons[test]))
        for test, reason in new.items():
            print(f"NOT LISTED, FAILS: {test}\t{reason}")
        for test in fine:
            print(f"LISTED, PASSES: {test}")
        for test in other:
            print(f"LISTED AS REFUSED, FAILS OTHERWISE: {test}\t{reasons[test]}")
        skipped = len(outcomes.skipped - outcomes.failed)
        counts = f"{len(passed)} passed, {len(outcomes.failed)} failed ({len(new)} not listed)"
        print(f"{variant}, {mode}: {counts}, {skipped} skipped")
        if len(passed) < least:
            sys.exit("too few tests ran")
        if os.environ.get("FENCE_REGENERATE") == "1":
            self.regenerate(mode, variant, new, fine)
        elif new or fine or other:
            sys.exit(1)

    def regenerate(self, mode, variant, new, fine):
        """Adds what fails in this mode to the list, and removes what passes."""
        for pin in self.pins:
            if pin.only not in ("", variant):
                continue
            if pin.test in fine:
                pin.modes.discard(mode)
            elif pin.test in new:
                pin.modes.add(mode)
                del new[pin.test]
        for test, reason in new.items():
            kind = "refused" if self.refusal.search(reason) else "differs"
            reason = reason.partition(": ")[2] or reason
            self.pins.append(Pin(self.modes, f"{variant} {test}", mode, kind, reason))
        pins = sorted(str(pin) for pin in self.pins if pin.modes)
        self.path.write_text("\n".join(self.comments + pins) + "\n", encoding="utf-8")
