"""Replies of the fake server: problems as those of the real ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TITLES: Mapping[str, tuple[int, str]] = {
    "invalid-request": (400, "Correct the value that the detail names; nothing was changed."),
    "malformed-token": (400, "Send the fencing_token of the grant once and unchanged."),
    "bad-signature": (401, "Use the fencing_token that the lock server returned."),
    "wrong-lock": (403, "Acquire the lock that the detail names and present its token."),
    "not-found": (404, "Check the path."),
    "session-unknown": (404, "Stop the work that its leases protected; create a new session."),
    "lease-id-conflict": (409, "Use a fresh UUID as lease_id for every acquire."),
    "takeover-refused": (409, "Acquire without takeover; stop if it was itself taken over."),
    "lock-kind-conflict": (409, "Use one name for one kind: leases, or permits of one size."),
    "session-conflict": (409, "Use a session of the same owner."),
    "token-collision": (409, "Stop. An operator must find out why a token was issued twice."),
    "lease-lost": (410, "Stop the work that the lease protected; acquire again."),
    "session-ended": (410, "Stop the work that its leases protected; create a new session."),
    "stale-token": (412, "Stop the work: the lock has passed on. Acquire again."),
    "precondition-failed": (412, "Read the object again before you decide."),
    "op-id-reused": (422, "Use a fresh Idempotency-Key for every operation."),
    "lock-held": (423, "Try again after Retry-After, or wait in the queue with wait_ms."),
    "token-required": (428, "Acquire the lock that the detail names and send its token."),
}


class Refusal(Exception):
    """A refusal, with the members of its problem and further headers."""

    def __init__(
        self, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(detail)
        self.status, hint = _TITLES[code]
        self.headers = dict(headers or {})
        if code == "lock-held":
            self.headers["retry-after"] = "1"
        self.problem = {
            "type": f"urn:fencepost:{code}",
            "title": detail,
            "status": self.status,
            "detail": detail,
            "code": code,
            "hint": hint,
            "retryable": code == "lock-held",
            **members,
        }
