"""Objects behind the guard. Every fenced operation takes a lease, and checks it first."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from . import timing, validation
from .attempts import SentChange, is_outcome_unknown, is_passing, jitter
from .core import Core
from .errors import FencepostError, Invalid
from .lease import Fence
from .transport import GUARANTEE, Failure, Refused, Reply, encoded

_OBJECT_TIMEOUT_MS = 60_000
_OBJECT_BYTES_MAX = 256 << 20
_ATTEMPTS = 3
_NO_GUARD = "answers, but not as a guard: it replied"
_CHECK = "Check the guard's URL"


@dataclass(frozen=True)
class Applied:
    """Outcome of a fenced operation.

    ``mark`` is the highest token that the guard has seen, ``guarantee`` is ``atomic`` or
    ``bounded``, and ``replayed`` says that an earlier attempt had been applied.
    """

    etag: str | None
    mark: int | None
    guarantee: str | None
    replayed: bool


@dataclass(frozen=True)
class Object:
    """An object as it was read."""

    body: bytes
    content_type: str | None
    applied: Applied

    @property
    def etag(self) -> str | None:
        """Tag for ``if_match``."""
        return self.applied.etag


def _path(key: str) -> str:
    segments = validation.object_key(key).split("/")
    return "/v1/objects/" + "/".join(encoded(segment) for segment in segments)


def _headers(fence: Fence) -> dict[str, str]:
    fence.check()
    headers = {"fencing-token": fence.grant.fencing_token}
    owner = fence.core.settings.owner
    # Only for people who inspect refusals; left out if a header cannot carry it.
    if owner.isascii() and owner.isprintable():
        headers["fence-owner"] = owner
    return headers


def _applied(reply: Reply) -> Applied:
    mark = reply.headers.get("fencing-mark", "")
    return Applied(
        etag=reply.headers.get("etag"),
        mark=int(mark) if mark.isascii() and mark.isdigit() and len(mark) <= 15 else None,
        guarantee=reply.headers.get(GUARANTEE),
        replayed=reply.headers.get("idempotency-replayed") == "true",
    )


def _of_guard(reply: Reply, *names: str) -> Reply:
    """Refuses a reply without these headers, which no guard sends: any web server has a 200."""
    for name in (GUARANTEE, *names):
        if name not in reply.headers:
            raise reply.foreign(f"{_NO_GUARD} {reply.status} without {name}", _CHECK)
    return reply


def _is_absent(failure: Failure) -> bool:
    """``True`` if a guard replied that there is no object: any other path is not found too."""
    if not isinstance(failure, Refused) or failure.problem.code != "not-found":
        return False
    return failure.problem.status == 404 and failure.is_of_guard


def _get_error(core: Core, key: str, failure: Failure) -> FencepostError:
    if not isinstance(failure, Refused) or failure.problem.code != "not-found":
        return failure.error(f"get {key}", changes=False)
    problem = failure.problem
    said = f"{core.guard.url} {_NO_GUARD} {problem.status}: {problem.detail} ({problem.code})"
    return Invalid(f"get {key}: {said}. {_CHECK}", problem=problem)


async def get(core: Core, key: str, fence: Fence | None) -> Object | None:
    """Reads an object; ``None`` if there is none. Without a lease it is read unfenced."""
    core.check()
    headers = {} if fence is None else _headers(fence)
    path = _path(key)
    try:
        reply = await core.guard.send(
            "GET", path, _OBJECT_TIMEOUT_MS, None, headers, _OBJECT_BYTES_MAX
        )
        reply = _of_guard(reply, "ETag")
    except Failure as failure:
        if _is_absent(failure):
            return None
        raise _get_error(core, key, failure) from None
    return Object(reply.body, reply.headers.get("content-type"), _applied(reply))


async def put(
    fence: Fence,
    key: str,
    value: bytes | str,
    *,
    if_match: str | None = None,
    if_absent: bool = False,
    content_type: str | None = None,
    op_id: str | None = None,
) -> Applied:
    """Writes an object; retried under one idempotency key while its outcome is unknown."""
    headers = _conditions(if_match, if_absent)
    kind = "application/octet-stream" if content_type is None else content_type
    headers["content-type"] = validation.header("content_type", kind)
    body = validation.body(value)
    return await _change(fence, "PUT", key, body, headers, op_id)


async def delete(
    fence: Fence, key: str, *, if_match: str | None = None, op_id: str | None = None
) -> Applied:
    """Deletes an object, if it exists; retried as ``put``."""
    return await _change(fence, "DELETE", key, None, _conditions(if_match, False), op_id)


def _conditions(if_match: str | None, if_absent: bool) -> dict[str, str]:
    if if_absent and if_match is not None:
        raise validation.refuse("if_match", if_match, "and if_absent exclude each other")
    if if_match is not None:
        return {"if-match": validation.header("if_match", if_match)}
    return {"if-none-match": "*"} if if_absent else {}


async def _change(
    fence: Fence,
    method: str,
    key: str,
    body: bytes | None,
    headers: dict[str, str],
    op_id: str | None,
) -> Applied:
    fence.core.check()
    what = f"{method.lower()} {key}"
    path = _path(key)
    headers["idempotency-key"] = f'"{validation.op_id(op_id)}"'
    sent = SentChange()
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            merged = {**headers, **_headers(fence)}
        except FencepostError as error:
            raise sent.refused_here(what, error) from None
        try:
            reply = await fence.core.guard.send(
                method, path, _OBJECT_TIMEOUT_MS, body, merged, _OBJECT_BYTES_MAX
            )
            return _applied(_of_guard(reply))
        except Failure as failure:
            is_unknown = is_outcome_unknown(failure) or (sent.is_unknown and is_passing(failure))
            if attempt == _ATTEMPTS or not is_unknown:
                raise sent.error(what, failure) from None
            sent.record(failure)
        await asyncio.sleep(timing.pause_ms(attempt, jitter()) / 1000)
    raise AssertionError("the last attempt returns or raises")
