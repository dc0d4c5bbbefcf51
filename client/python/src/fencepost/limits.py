"""Limits of a lease: longest hold, progress and warnings. Pure rules.

Renewal keeps a lease for as long as its process lives, even if the work in it hangs. These limits
tie the lease to the work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .clock import Reading
from .errors import DEADLINE, Invalid, LostReason
from .timing import Window


@dataclass(frozen=True)
class Limits:
    """Limits that the caller set, in milliseconds."""

    progress_within_ms: int | None = None
    max_hold_ms: int | None = None
    warn_before_ms: int | None = None

    def check(self) -> None:
        """Refuses a warning that would come at the start."""
        for name, limit in (
            ("progress_within", self.progress_within_ms),
            ("max_hold", self.max_hold_ms),
        ):
            if limit is not None and self.warn_before_ms is not None:
                if self.warn_before_ms >= limit:
                    raise Invalid(
                        f"warn_before of {self.warn_before_ms} ms must be less than {name}, which"
                        f" is {limit} ms: the warning would come at the start"
                    )


#: A moment in ms at which the lease will be lost, and the reason.
End = tuple[int, LostReason]


@dataclass(frozen=True)
class Hold:
    """State of a held lease with respect to its limits."""

    limits: Limits
    began_ms: int
    progressed: Reading

    @classmethod
    def begin(cls, limits: Limits, now: Reading) -> Hold:
        """Starts a hold, which counts as progress."""
        return cls(limits, now.at_ms, now)

    def progress(self, now: Reading) -> Hold:
        """The hold after the work has reported progress."""
        return replace(self, progressed=now)

    def _limit_ends(self, now: Reading) -> list[End]:
        ends: list[End] = []
        if self.limits.max_hold_ms is not None:
            limit = self.limits.max_hold_ms
            ends.append((self.began_ms + limit, LostReason("held-too-long", limit_ms=limit)))
        if self.limits.progress_within_ms is not None:
            limit = self.limits.progress_within_ms
            # In suspend the work could not report. Neither the deadline nor the longest hold stops.
            slept_ms = max(0, now.suspended_ms - self.progressed.suspended_ms)
            moment = self.progressed.at_ms + limit + slept_ms
            ends.append((moment, LostReason("no-progress", limit_ms=limit)))
        return ends

    def next_end(self, window: Window, now: Reading) -> End:
        """The loss that comes next if nothing is renewed or reported."""
        ends = [(window.deadline_ms, DEADLINE), *self._limit_ends(now)]
        return min(ends, key=lambda end: end[0])

    def warn_at(self, window: Window, now: Reading, warned: set[End]) -> tuple[int, End] | None:
        """Moment of the next warning, and the end that it is about; each end once.

        Every renewal moves the deadline. To warn only of renewals that fail, that warning comes no
        earlier than when half of the trusted time has passed.
        """
        before = self.limits.warn_before_ms
        if before is None:
            return None
        deadline = (window.deadline_ms, DEADLINE)
        due = [(max(deadline[0] - before, window.worn_at_ms), deadline)]
        due += [(end[0] - before, end) for end in self._limit_ends(now)]
        due = [(moment, end) for moment, end in due if end not in warned]
        return min(due, key=lambda warning: warning[0]) if due else None
