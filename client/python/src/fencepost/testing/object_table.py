"""The guard of the fake server: objects in memory, behind the fence of their lock."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets
import threading
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Protocol

from .. import token
from ..errors import Invalid
from ..token import FencingToken
from .replies import Refusal

_OPERATIONS_MAX = 64

Headers = dict[str, str]


class Signer:
    """Signs tokens with a key of this process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def header(self, lock: str, number: int, lease_id: str) -> str:
        """The value of the ``Fencing-Token`` header."""
        unsigned = FencingToken(number, lock, lease_id)
        return str(replace(unsigned, key_id="fake", signature=self._sign(unsigned)))

    def checked(self, header: str) -> FencingToken:
        """The token of a header that this signer made; raises ``Refusal``."""
        try:
            found = token.parse(header)
        except Invalid as error:
            raise Refusal("malformed-token", str(error)) from None
        unsigned = replace(found, key_id=None, signature=None)
        if not hmac.compare_digest(found.signature or "", self._sign(unsigned)):
            raise Refusal("bad-signature", f"the token of lock {found.lock} is not of this server")
        return found

    def _sign(self, unsigned: FencingToken) -> str:
        return b64encode(hmac.digest(self._key, str(unsigned).encode(), "sha256")).decode()


class Reporter(Protocol):
    """Receives refused operations, as a lock server does."""

    def __call__(self, found: FencingToken, mark: int, operation: str, owner: str) -> None: ...


@dataclass
class Fence:
    """The highest token that was seen for a lock, and its last named operations."""

    mark: int = 0
    lease_id: str = ""
    operations: OrderedDict[str, tuple[str, int, str | None]] = field(default_factory=OrderedDict)


@dataclass(frozen=True)
class StoredObject:
    """An object, with its tag."""

    body: bytes
    content_type: str
    etag: str


class ObjectTable:
    """All objects. Each operation checks its token and takes effect in one step."""

    def __init__(
        self, lock_of: Callable[[str], str], signer: Signer, is_read_free: bool, report: Reporter
    ) -> None:
        self._lock_of = lock_of
        self._signer = signer
        self._is_read_free = is_read_free
        self._report = report
        self._mutex = threading.Lock()
        self._objects: dict[str, StoredObject] = {}
        self._fences: dict[str, Fence] = {}
        self._tags = itertools.count(1)

    def value(self, key: str) -> bytes | None:
        """The bytes of an object; ``None`` if there is none."""
        with self._mutex:
            found = self._objects.get(key)
            return None if found is None else found.body

    def handle(
        self, method: str, key: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Headers, bytes]:
        """Does one operation; raises ``Refusal``."""
        with self._mutex:
            header = headers.get("fencing-token")
            if header is None and method == "GET" and self._is_read_free:
                return self._read(key, headers, {})
            lock = self._lock_of(key)
            if header is None:
                detail = f"object {key} needs a token of lock {lock}, and none was sent"
                raise Refusal("token-required", detail, headers=_GUARANTEE, lock=lock)
            try:
                found = self._signer.checked(header)
            except Refusal as refusal:
                refusal.headers.update(_GUARANTEE)
                raise
            if found.lock != lock:
                detail = f"object {key} needs a token of lock {lock}; the one sent is of"
                members = {"lock": lock, "presented_lock": found.lock}
                raise Refusal(
                    "wrong-lock", f"{detail} lock {found.lock}", headers=_GUARANTEE, **members
                )
            fence = self._fences.setdefault(lock, Fence())
            self._admit(fence, found, f"{method} {key}", headers)
            marked = {"fencing-mark": str(fence.mark)}
            if method == "GET":
                return self._read(key, headers, marked)
            return self._change(method, key, headers, body, fence, marked)

    def _admit(
        self, fence: Fence, found: FencingToken, operation: str, headers: Mapping[str, str]
    ) -> None:
        """Raises the mark, or ``Refusal`` for a token below it."""
        if found.token > fence.mark:
            fence.mark, fence.lease_id = found.token, found.lease
        if found.token == fence.mark and found.lease == fence.lease_id:
            return
        code = "stale-token" if found.token < fence.mark else "token-collision"
        self._report(found, fence.mark, operation, headers.get("fence-owner", ""))
        members: dict[str, Any] = {"outcome": "not-applied"}
        named = fence.operations.get(headers.get("idempotency-key", ""))
        if named is not None and named[1] != 412:
            members = {"outcome": "applied", "etag": named[2]}
        raise Refusal(
            code,
            f"{operation}: token {found.token} of lock {found.lock} is below the mark {fence.mark}",
            headers={**_GUARANTEE, "fencing-mark": str(fence.mark)},
            presented=found.token,
            mark=fence.mark,
            lock=found.lock,
            min_token=fence.mark,
            **members,
        )

    def _read(
        self, key: str, headers: Mapping[str, str], marked: Headers
    ) -> tuple[int, Headers, bytes]:
        found = self._objects.get(key)
        sent = {**_GUARANTEE, **marked}
        if found is None:
            raise Refusal("not-found", f"there is no object {key}", headers=sent)
        sent["etag"] = found.etag
        if _matches(headers.get("if-none-match"), found):
            return 304, sent, b""
        return 200, {**sent, "content-type": found.content_type}, found.body

    def _change(
        self,
        method: str,
        key: str,
        headers: Mapping[str, str],
        body: bytes,
        fence: Fence,
        marked: Headers,
    ) -> tuple[int, Headers, bytes]:
        sent = {**_GUARANTEE, **marked}
        kind = headers.get("content-type", "application/octet-stream")
        conditions = [headers.get("if-match"), headers.get("if-none-match")]
        digest = hashlib.sha256(repr((method, key, kind, conditions, body)).encode()).hexdigest()
        name = headers.get("idempotency-key")
        if name is not None and name in fence.operations:
            known, status, etag = fence.operations[name]
            if known != digest:
                detail = f"{method} {key}: its Idempotency-Key named another operation"
                raise Refusal("op-id-reused", detail, headers=sent, outcome="not-applied")
            sent["idempotency-replayed"] = "true"
        else:
            status, etag = self._apply(method, key, kind, conditions, body)
            if name is not None:
                fence.operations[name] = (digest, status, etag)
                while len(fence.operations) > _OPERATIONS_MAX:
                    fence.operations.popitem(last=False)
        if etag is not None:
            sent["etag"] = etag
        if status == 412:
            detail = f"{method} {key}: the condition does not hold, the object's tag is {etag}"
            members = {"etag": etag, "outcome": "not-applied"}
            raise Refusal("precondition-failed", detail, headers=sent, **members)
        return status, sent, b""

    def _apply(
        self, method: str, key: str, kind: str, conditions: list[str | None], body: bytes
    ) -> tuple[int, str | None]:
        """The status and the tag of a change; 412 if its condition does not hold."""
        found = self._objects.get(key)
        if_match, if_none_match = conditions
        if (if_match is not None and not _matches(if_match, found)) or _matches(
            if_none_match, found
        ):
            return 412, None if found is None else found.etag
        if method == "DELETE":
            self._objects.pop(key, None)
            return 204, None
        etag = f'"{hashlib.sha256(body).hexdigest()[:16]}-{next(self._tags)}"'
        self._objects[key] = StoredObject(body, kind, etag)
        return 201 if found is None else 204, etag


_GUARANTEE = {"fencing-guarantee": "atomic"}


def _matches(condition: str | None, found: StoredObject | None) -> bool:
    """``True`` if a condition names the object that is there."""
    if condition is None or found is None:
        return False
    return condition.strip() == "*" or found.etag in [tag.strip() for tag in condition.split(",")]
