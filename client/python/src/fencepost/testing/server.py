"""The fake server: its routes, and what a test does to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Callable
from urllib.parse import parse_qs, unquote, urlsplit

from .. import clock, validation
from ..aio import AsyncClient, AsyncLease
from ..client import Client, Lease
from ..errors import Invalid, ended
from ..token import FencingToken, credential_of
from . import records
from .http_door import HttpDoor, HttpReply, HttpRequest
from .lock_table import LockTable
from .object_table import ObjectTable, Signer
from .records import Asked, GrantedLease, Json, Wish
from .replies import Refusal

#: Longest silence of a stream of events, in seconds.
_COMMENT_S = 10.0


class FakeServer:
    """Lock server and guard at one address, from their creation until ``close``.

    ``lock_of`` names the lock of an object's key, by default the key itself;
    ``allow_unfenced_reads`` is the guard's flag of this name.
    """

    def __init__(
        self,
        *,
        lock_of: Callable[[str], str] | None = None,
        allow_unfenced_reads: bool = False,
    ) -> None:
        self._signer = Signer()
        self._locks = LockTable()
        self._objects = ObjectTable(
            lock_of or (lambda key: key), self._signer, allow_unfenced_reads, self._report
        )
        self._door = HttpDoor(self._reply)

    @property
    def url(self) -> str:
        """The address of both."""
        return self._door.url

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables by which a client finds the server."""
        return {"FENCE_SERVER": self.url, "FENCE_GUARD": self.url}

    def client(self, **options: Any) -> Client:
        """A client of this server, which reads no settings of the process."""
        return Client(self.url, self.url, environment={}, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        """As ``client``, for asyncio."""
        return AsyncClient(self.url, self.url, environment={}, **options)

    def value(self, key: str) -> bytes | None:
        """The bytes of an object; ``None`` if there is none."""
        return self._objects.value(key)

    def expire(self, lock: str) -> None:
        """Ends the live leases of a lock, whose holders do not notice before they renew."""
        self._locks.expire(validation.lock_name(lock))

    def lose(self, lease: Lease | AsyncLease, why: str = "by the test") -> None:
        """Revokes a lease, whose holder notices at once."""
        try:
            self._locks.revoke(lease.lock, why, lease.lease_id)
        finally:
            lease._trust.lose(ended("revoked"))

    def close(self) -> None:
        """Stops the server, and closes every connection."""
        self._door.close()

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _report(self, found: FencingToken, mark: int, operation: str, owner: str) -> None:
        event = {
            "kind": "refused",
            "lock": found.lock,
            "lease_id": found.lease,
            "token": found.token,
            "mark": mark,
            "text": operation,
        }
        with self._locks.changed:
            self._locks.publish({**event, "owner": owner} if owner else event)

    def _reply(self, request: HttpRequest) -> HttpReply:
        """Finds the route of a request."""
        parts = urlsplit(request.path)
        steps = [unquote(step) for step in parts.path.split("/")[1:]]
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        first, area, *rest = [*steps, "", ""]
        rest = rest[: len(steps) - 2]
        if first in ("livez", "readyz"):
            return HttpReply(200, b"ok\n")
        if first == "v1" and area == "objects" and request.method in ("GET", "PUT", "DELETE"):
            key = validation.object_key("/".join(rest))
            found = self._objects.handle(request.method, key, request.headers, request.body)
            return HttpReply(found[0], found[2], found[1])
        if first == "v1":
            route = f"{request.method} {area}"
            if route == "POST acquire":
                return self._acquire_all(request)
            if route == "GET events":
                return self._events(request, query)
            if area == "sessions":
                return self._session(request, rest)
            if area == "locks":
                return self._lock(request, rest, query)
        raise Refusal("not-found", f"there is nothing at {request.method} {parts.path}")

    def _lock(self, request: HttpRequest, rest: list[str], query: Mapping[str, str]) -> HttpReply:
        if request.method == "GET" and not rest:
            limit = int(query.get("limit", "100"))
            page = self._locks.page(query.get("prefix", ""), query.get("after", ""), limit)
            return HttpReply(200, page)
        verb = rest[-1] if request.method == "POST" and len(rest) > 1 else ""
        name = validation.lock_name("/".join(rest[:-1] if verb else rest))
        if request.method == "GET":
            return HttpReply(200, self._locks.show(name))
        body = request.json()
        if verb == "acquire":
            leases = self._locks.acquire([Wish.of(name, body)], Asked.of(body), request.has_left)
            return HttpReply(200, self._lease(leases[0]))
        if verb not in ("renew", "release", "revoke"):
            raise Refusal("not-found", f"there is nothing at {request.method} {request.path}")
        lease_id = validation.identifier("lease_id", body.get("lease_id"))
        if verb == "revoke":
            why = validation.text("reason", body.get("reason"))
            return HttpReply(200, self._locks.revoke(name, why, lease_id))
        if lease_id is None:
            raise validation.refuse("lease_id", lease_id, "is required")
        if verb == "release":
            return HttpReply(200, self._locks.release(name, lease_id))
        ttl_ms = body.get("ttl_ms")
        renewed_ms = None if ttl_ms is None else records.ttl_ms(ttl_ms)
        return HttpReply(200, self._lease(self._locks.renew(name, lease_id, renewed_ms)))

    def _acquire_all(self, request: HttpRequest) -> HttpReply:
        body = request.json()
        parts = body.get("locks")
        if not isinstance(parts, list) or not 1 <= len(parts) <= validation.LOCKS_MAX:
            raise validation.refuse("locks", parts, f"must be 1 to {validation.LOCKS_MAX} locks")
        wishes = [Wish.of(part.get("lock"), {**body, **part}) for part in parts]
        names = [wish.lock for wish in wishes]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise Invalid(f"lock {twice} is named twice: one request has one lease of each lock")
        leases = self._locks.acquire(wishes, Asked.of(body, True), request.has_left)
        return HttpReply(200, {"leases": [self._lease(lease) for lease in leases]})

    def _lease(self, lease: GrantedLease) -> Json:
        wish, asked = lease.wish, lease.asked
        header = self._signer.header(wish.lock, lease.token, asked.lease_id)
        mode = {} if wish.mode == "exclusive" else {"mode": wish.mode}
        return {
            "lock": wish.lock,
            "lease_id": asked.lease_id,
            **mode,
            "token": lease.token,
            "ttl_ms": max(0, lease.expires_at - clock.now_ms()),
            "owner": asked.owner,
            "waited_ms": lease.waited_ms,
            "fencing_credential": credential_of(header),
            "fencing_token": header,
        }

    def _session(self, request: HttpRequest, rest: list[str]) -> HttpReply:
        method, sessions = request.method, self._locks.sessions
        with self._locks.changed:
            self._locks.settle()
            if method == "POST" and not rest:
                return HttpReply(200, sessions.begin(request.json()))
            if method == "POST" and rest[1:] == ["heartbeat"]:
                return HttpReply(200, sessions.heartbeat(rest[0]))
            if method == "GET" and len(rest) == 1:
                return HttpReply(200, sessions.show(rest[0]))
            if method == "DELETE" and len(rest) == 1:
                reply = sessions.end(rest[0])
                self._locks.settle()
                return HttpReply(200, reply)
        raise Refusal("not-found", f"there is nothing at {method} {request.path}")

    def _events(self, request: HttpRequest, query: Mapping[str, str]) -> HttpReply:
        prefix, lock = query.get("prefix", ""), query.get("lock")
        last = request.headers.get("last-event-id", "")
        is_resumed = last.isdigit()
        with self._locks.changed:
            begin = int(last) if is_resumed else self._locks.events.last

        def is_meant(event: Mapping[str, Any]) -> bool:
            name = event.get("lock")
            if lock is not None:
                return bool(name == lock)
            return not prefix or (isinstance(name, str) and name.startswith(prefix))

        pieces = self._followed(begin, is_resumed, is_meant, request.has_left)
        return HttpReply(200, pieces, {"content-type": "text/event-stream"})

    def _followed(
        self,
        at: int,
        is_resumed: bool,
        is_meant: Callable[[Mapping[str, Any]], bool],
        has_left: Callable[[], bool],
    ) -> Iterator[bytes]:
        yield b":\n\n" if is_resumed else _event(at, {"kind": "ready", "ms_ago": 0})
        said_at = clock.now_ms()
        while not has_left():
            with self._locks.changed:
                found = self._locks.events.after(at, clock.now_ms())
                if not found:
                    self._locks.changed.wait(0.05)
                    self._locks.settle()
            for number, event in found:
                at = number
                if is_meant(event):
                    said_at = clock.now_ms()
                    yield _event(number, event)
            if clock.now_ms() - said_at > _COMMENT_S * 1000:
                said_at = clock.now_ms()
                yield b":\n\n"


def _event(number: int, event: Mapping[str, Any]) -> bytes:

    text = json.dumps(event)
    return f"id: {number}\nevent: {event['kind']}\ndata: {text}\n\n".encode()
