"""Texts of error replies in the words of this package: the servers speak of HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Words of requests, which a caller of this package does not send.
HTTP_WORDS = (
    "Retry-After",
    "wait_ms",
    "lease_id",
    "Authorization",
    "Idempotency-Key",
    "Fencing-Token",
    "Allow header",
    "Host",
    "content-type",
    "http-api",
    "/v1/",
)
_HINTS: Mapping[str, str] = {
    "lock-held": "Wait in the queue, or for longer, with wait; or try again later.",
    "unauthorized": "Give the client a bearer token of the access file: token or auth_file.",
    "malformed-token": "Present the fencing_token of the lease once and unchanged.",
    "token-required": "Acquire the lock that the detail names, and use its lease.",
    "not-found": "Check that the addresses are those of Fencepost servers.",
    "method-not-allowed": "Check that the address is that of a Fencepost server.",
    "lease-id-conflict": "Acquire the lock again.",
    "quarantine-conflict": "Read the lanes of the guard again before you decide.",
    "lease-lost": "Stop the work that the lease protected; acquire the lock again.",
    "unsupported-media-type": "Check that no proxy on the way changes requests.",
    "misdirected-request": "Use an address, localhost or a --host-name of the server in its URL.",
    "op-id-reused": "Use a fresh op_id for every operation, and repeat it unchanged.",
    "limit-reached": "Wait until some of what the detail counts has ended.",
    "store-unavailable": "Try again later; nothing was changed.",
    "draining": "Try again later.",
    "quarantined": "Try again later: an earlier write may still be applied.",
    "not-leader": "Use the guard that leads, or try again later.",
    "guard-unsealed": "Try again later; an operator must check the guards in the detail.",
    "shutting-down": "Use another server, or this one later.",
    "outcome-unknown": "Repeat it under the same lease, or read the state first.",
}
_NAMES: Mapping[str, str] = {
    "Idempotency-Key": "op_id",
    "Authorization header": "bearer token",
}


def hint_of(code: str, hint: str) -> str:
    """The hint of the server, or that of this package where it speaks of HTTP."""
    return _HINTS.get(code, hint) if any(word in hint for word in HTTP_WORDS) else hint


def detail_of(detail: str) -> str:
    """The detail of the server, with the names of this package's arguments."""
    for name, own in _NAMES.items():
        detail = detail.replace(name, own)
    return detail


def holder_of(problem: Mapping[str, Any]) -> str | None:
    """The holder in the reply to an acquire; ``None`` if the reply has no whole one."""
    holder = problem.get("holder")
    if not isinstance(holder, dict):
        return None
    owner, token, left_ms = (holder.get(name) for name in ("owner", "token", "expires_in_ms"))
    if not isinstance(owner, str) or not isinstance(token, int) or not isinstance(left_ms, int):
        return None
    held = f"{owner} holds it with token {token}"
    name = problem.get("lock")
    if isinstance(name, str):
        held = f"{owner} holds {name} with token {token}"
    return f"{held} for another {left_ms / 1000:.1f} s unless it is renewed"
