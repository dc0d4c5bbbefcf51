"""The lock server's calls, one function each: no renewal, no deadline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import attempts, errors
from .errors import InternalError
from .secret import Secret
from .shown import LockPage, LockState, Revocation
from .timing import TTL_MS_MAX
from .transport import Endpoint, Failure, Refused, Unusable, encoded
from .validation import TOKEN_MAX

#: Longest time for which a release is retried, and time-out of each request.
RELEASE_PATIENCE_MS = 5_000
_REVOKE_TIMEOUT_MS = 30_000


@dataclass(frozen=True)
class Grant:
    """A lease as the server replied it; ``ttl_ms`` is what remained then. Its ``repr`` shows no
    credential."""

    lock: str
    lease_id: str
    token: int
    ttl_ms: int
    owner: str
    fencing_token: str = field(repr=False)
    fencing_credential: str = field(repr=False)
    mode: str
    waited_ms: int

    @classmethod
    def of(cls, reply: Mapping[str, Any], lock: str, lease_id: str) -> Grant:
        """Reads a reply about this lock and lease; raises ``Unusable`` for anything else."""
        try:
            grant = cls(
                str(reply["lock"]),
                str(reply["lease_id"]),
                whole(reply["token"], 1, TOKEN_MAX),
                whole(reply["ttl_ms"], 0, TTL_MS_MAX),
                str(reply["owner"]),
                Secret(reply["fencing_token"]),
                Secret(reply["fencing_credential"]),
                str(reply.get("mode", "exclusive")),
                whole(reply.get("waited_ms", 0), 0, TOKEN_MAX),
            )
        except (KeyError, TypeError, ValueError):
            # Its values may be credentials.
            names = ", ".join(sorted(reply))[:200]
            raise Unusable(
                InternalError(f"the reply about {lock} is no grant of a Fencepost server: {names}")
            ) from None
        if grant.lock != lock or grant.lease_id != lease_id:
            raise Unusable(
                InternalError(
                    f"the reply to a request about {lock} is about {grant.lock} {grant.lease_id}"
                )
            )
        return grant


def whole(value: Any, least: int, most: int) -> int:
    """Reads a whole number within bounds; raises ``ValueError`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError
    return value


def path(lock: str, verb: str = "") -> str:
    """The path of a lock at the lock server."""
    return f"/v1/locks/{encoded(lock)}{verb}"


async def acquire(
    server: Endpoint, lock: str, request: Mapping[str, Any], timeout_ms: int
) -> Grant:
    """Sends one acquire. Raises ``Failure``."""
    reply = await server.post(path(lock, "/acquire"), request, timeout_ms)
    return Grant.of(reply, lock, request["lease_id"])


async def acquire_all(server: Endpoint, request: Mapping[str, Any], timeout_ms: int) -> list[Grant]:
    """Sends one acquire of several locks. Raises ``Failure``."""
    reply = await server.post("/v1/acquire", request, timeout_ms)
    wishes: Sequence[Mapping[str, Any]] = request["locks"]
    leases = reply.get("leases")
    if not isinstance(leases, list) or len(leases) != len(wishes):
        names = ", ".join(sorted(reply))[:200]
        message = f"the reply to a request for {len(wishes)} locks has others: {names}"
        raise Unusable(InternalError(message))
    pairs = zip(wishes, leases)
    return [Grant.of(lease, wish["lock"], request["lease_id"]) for wish, lease in pairs]


async def renew(server: Endpoint, lock: str, lease_id: str, timeout_ms: int) -> Grant:
    """Sends one renewal. Raises ``Failure``."""
    reply = await server.post(path(lock, "/renew"), {"lease_id": lease_id}, timeout_ms)
    return Grant.of(reply, lock, lease_id)


def _was_released(failure: Failure) -> bool:
    """``True`` if the refusal shows that an earlier attempt released the lease."""
    if not isinstance(failure, Refused) or failure.problem.code != "lease-lost":
        return False
    return errors.end_reason(failure.problem) == "released"


async def release(server: Endpoint, lock: str, lease_id: str) -> None:
    """Releases a lease; retries for up to 5 s if no reply arrives."""

    async def send() -> dict[str, Any]:
        body = {"lease_id": lease_id}
        return await server.post(path(lock, "/release"), body, RELEASE_PATIENCE_MS)

    await attempts.until_settled(f"release {lock}", RELEASE_PATIENCE_MS, send, _was_released)


async def show(server: Endpoint, lock: str) -> LockState:
    """State, holder, queue and history of a lock."""
    try:
        return LockState.of(await server.get(path(lock)))
    except Failure as failure:
        raise failure.error(f"show {lock}", changes=False) from None


async def page(server: Endpoint, prefix: str, after: str | None, limit: int) -> LockPage:
    """A page of locks whose names begin with ``prefix``."""
    query = f"/v1/locks?limit={int(limit)}&prefix={encoded(prefix)}"
    if after is not None:
        query += f"&after={encoded(after)}"
    try:
        return LockPage.of(await server.get(query))
    except Failure as failure:
        raise failure.error("list locks", changes=False) from None


async def revoke(server: Endpoint, lock: str, reason: str, lease_id: str | None) -> Revocation:
    """Ends every live lease of a lock, or one. Sent once: an operator reads before a retry."""
    body = {"reason": reason, "lease_id": lease_id}
    try:
        reply = await server.post(path(lock, "/revoke"), body, _REVOKE_TIMEOUT_MS)
        return Revocation.of(reply)
    except Failure as failure:
        raise failure.error(f"revoke {lock}", changes=True) from None
