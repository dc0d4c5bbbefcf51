"""HTTP: one request, one reply, and a precise failure when there is no reply."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from . import errors
from .errors import FencepostError, InternalError, Invalid, OutcomeUnknown, Problem, Unavailable
from .secret import Secret, SecretBytes

T = TypeVar("T")

#: Longest JSON body that is read, in bytes.
JSON_BYTES_MAX = 4 << 20
#: Header of each reply of a guard about an object.
GUARANTEE = "Fencing-Guarantee"
#: Time-out of a call that waits for nothing, in ms.
CALL_TIMEOUT_MS = 10_000
_TIMEOUT = {"timeout": httpx.Timeout(None, connect=3.0).as_dict()}
#: Idle time-out of pooled connections. Shorter than the servers' (75 s), so that a request does not
#: use a connection that the server is closing.
_POOL_IDLE_S = 60.0
_CREDENTIALS = ("fencing_token", "fencing_credential")
_CHECK = "Check that the address is that of a Fencepost server"


class Failure(Exception):
    """Reason why there is no successful reply; becomes an error of the caller by ``error``."""

    def error(self, what: str, changes: bool) -> FencepostError:
        """The error of a call; one that ``changes`` something may have an unknown outcome."""
        return InternalError(f"{what}: {self}")


class NotSent(Failure):
    """No connection could be made, so the request was not sent."""

    def error(self, what: str, changes: bool) -> FencepostError:
        return Unavailable(f"{what}: cannot reach {self}")


class NoReply(Failure):
    """The request was sent, and no readable reply arrived."""

    def error(self, what: str, changes: bool) -> FencepostError:
        if changes:
            return OutcomeUnknown(f"{what}: no reply, so the outcome is unknown: {self}")
        return Unavailable(f"{what}: no reply: {self}")


class Refused(Failure):
    """The server replied with an error, and with its ``Retry-After`` in seconds.

    ``is_of_guard`` says that the reply has a guard's header.
    """

    def __init__(
        self, problem: Problem, retry_after: float | None, is_of_guard: bool = False
    ) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.retry_after = retry_after
        self.is_of_guard = is_of_guard

    @property
    def is_held(self) -> bool:
        """``True`` if another lease holds the lock, also by a word of a newer server."""
        return errors.class_of(self.problem) is errors.Contended

    def error(self, what: str, changes: bool) -> FencepostError:
        return errors.from_problem(what, self.problem, self.retry_after)


class Unusable(Failure):
    """The client cannot use the reply."""

    def __init__(self, cause: FencepostError) -> None:
        super().__init__(str(cause))
        self.cause = cause

    def error(self, what: str, changes: bool) -> FencepostError:
        return type(self.cause)(f"{what}: {self.cause}", outcome=self.cause.stated_outcome)


@dataclass(frozen=True)
class Reply:
    """A successful reply, read whole."""

    status: int
    headers: httpx.Headers
    body: bytes = field(repr=False)
    url: str

    def json(self) -> dict[str, Any]:
        """The body as a JSON object."""
        try:
            value = json.loads(self.body, object_hook=_hidden)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self.foreign(f"replied {self.status} without JSON")
        return value

    def foreign(self, what: str, check: str = _CHECK) -> Unusable:
        """The failure of a reply that no Fencepost server sends."""
        return _foreign(self.url, what, self.body, check)


def _hidden(value: dict[str, Any]) -> dict[str, Any]:
    """Hides the credentials of a grant."""
    for name in _CREDENTIALS:
        if isinstance(value.get(name), str):
            value[name] = Secret(value[name])
    return value


def _foreign(url: str, what: str, body: bytes, check: str = _CHECK) -> Unusable:
    has_credential = any(name.encode() in body for name in _CREDENTIALS)
    start = Secret() if has_credential else body[:200].decode("utf-8", "replace")
    message = f"{url} {what}: {start!r}. {check}"
    return Unusable(Invalid(message, outcome="unknown"))


def encoded(text: str) -> str:
    """A lock name, a key or a prefix as one segment of a path or a query."""
    return quote(text, safe="")


def retrieved(task: asyncio.Future[Any]) -> None:
    """Marks the outcome of a task as seen, where nothing awaits it any more."""
    if not task.cancelled():
        task.exception()


async def within(timeout_s: float, work: Coroutine[Any, Any, T]) -> T:
    """Awaits ``work`` for so long, then cancels it and raises ``asyncio.TimeoutError``.

    Unlike ``asyncio.wait_for`` before Python 3.12 it never swallows a cancellation.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    except BaseException:
        task.cancel()
        task.add_done_callback(retrieved)
        raise
    if done:
        return task.result()
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and task.exception() is None:
        return task.result()
    raise asyncio.TimeoutError


class Endpoint:
    """One server. Its connections are pooled, and belong to one event loop."""

    def __init__(self, url: str, bearer: str | None, tls: ssl.SSLContext | None) -> None:
        self.url = url
        self._has_replied = False
        self._headers = {"accept-encoding": "identity", "user-agent": "fencepost-python"}
        if bearer is not None:
            self._headers["authorization"] = Secret(f"Bearer {bearer}")
        # The client of httpx would log each request, follow proxies and keep cookies.
        self._http = httpx.AsyncHTTPTransport(
            # Of an http:// address nothing is verified; a context without CAs trusts no server.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if tls is None else tls,
            # A proxy of the environment would see the bearer token and the fencing token.
            trust_env=False,
            limits=httpx.Limits(
                max_connections=None,
                max_keepalive_connections=100,
                keepalive_expiry=_POOL_IDLE_S,
            ),
        )

    async def close(self) -> None:
        """Closes the pooled connections."""
        await self._http.aclose()

    def _request(
        self, method: str, path: str, headers: Mapping[str, str], content: bytes | None = None
    ) -> httpx.Request:
        url, merged = f"{self.url}{path}", {**self._headers, **headers}
        return httpx.Request(method, url, headers=merged, content=content, extensions=_TIMEOUT)

    async def post(self, path: str, body: Mapping[str, Any], timeout_ms: int) -> dict[str, Any]:
        """Posts JSON and reads JSON."""
        return (await self.send("POST", path, timeout_ms, content=_compact(body))).json()

    async def get(self, path: str, timeout_ms: int = CALL_TIMEOUT_MS) -> dict[str, Any]:
        """Gets JSON."""
        return (await self.send("GET", path, timeout_ms)).json()

    async def send(
        self,
        method: str,
        path: str,
        timeout_ms: int,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        bytes_max: int = JSON_BYTES_MAX,
    ) -> Reply:
        """Sends a request once and reads the whole reply; raises ``Failure``.

        Cancel-safe, but the outcome of a change is then unknown.
        """
        merged = dict(headers or {})
        if content is not None:
            merged.setdefault("content-type", "application/json")
        request = self._request(method, path, merged, content)
        try:
            return await within(timeout_ms / 1000, self._exchange(request, bytes_max))
        except asyncio.TimeoutError:
            raise NoReply(f"{self.url} did not reply within {timeout_ms} ms") from None

    async def _exchange(self, request: httpx.Request, bytes_max: int) -> Reply:
        response = await self._response(request)
        try:
            body = await self._read(response, bytes_max)
        finally:
            await response.aclose()
        if not response.is_success:
            raise self._refusal(response, body)
        return Reply(response.status_code, response.headers, body, self.url)

    async def _response(self, request: httpx.Request) -> httpx.Response:
        """Sends a request and awaits the head of its reply."""
        try:
            response = await self._http.handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            hint = "Check that the server runs and that the address is right"
            raise NotSent(f"{self.url}: {_causes(error)}. {hint}") from None
        except (httpx.TransportError, OSError) as error:
            text = _causes(error)
            # The server refuses a client's certificate behind the handshake, and before it reads a
            # request: on the first connection that is certain.
            if not self._has_replied and "alert" in text and "certificate" in text:
                raise NotSent(f"{self.url}: the server wants another certificate: {text}") from None
            if self.url.startswith("http://") and isinstance(error, httpx.RemoteProtocolError):
                text += " (if this port speaks TLS, write https://)"
            raise NoReply(f"{self.url}: {text}") from None
        self._has_replied = True
        return response

    async def _read(self, response: httpx.Response, bytes_max: int) -> bytes:
        body = SecretBytes()
        try:
            async for chunk in response.aiter_raw():
                body += chunk
                # An error report shows what a frame has.
                del chunk
                if len(body) > bytes_max:
                    raise NoReply(f"the reply of {self.url} is longer than {bytes_max} bytes")
        except (httpx.TransportError, OSError) as error:
            raise NoReply(f"{self.url}: {_causes(error)}") from None
        return bytes(body)

    def _refusal(self, response: httpx.Response, body: bytes) -> Refused:
        """Parses an error reply; a body that is no problem becomes one made from the status."""
        retry_after = response.headers.get("retry-after", "").strip()
        is_number = retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 6
        seconds = float(retry_after) if is_number else None
        try:
            raw = json.loads(body)
            problem = Problem(
                response.status_code,
                str(raw["code"]),
                str(raw["detail"]),
                str(raw["hint"]),
                bool(raw["retryable"]),
                raw,
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            start = body[:200].decode("utf-8", "replace")
            problem = Problem(
                response.status_code,
                "unknown",
                f"{self.url} replied {response.status_code} without a problem body: {start!r}",
                "Check that the address is that of a Fencepost server.",
                False,
            )
        if response.headers.get("idempotency-replayed") == "true":
            raw = {**problem.raw, errors.REPLAYED: True}
            problem = Problem(
                problem.status, problem.code, problem.detail, problem.hint, problem.retryable, raw
            )
        return Refused(problem, seconds, GUARANTEE in response.headers)

    async def open_stream(self, path: str, last_event_id: str | None) -> EventBody:
        """Opens a stream of events, which may have no end; the caller bounds the opening."""
        headers = {"accept": "text/event-stream"}
        if last_event_id is not None:
            headers["last-event-id"] = last_event_id
        response = await self._response(self._request("GET", path, headers))
        kind = response.headers.get("content-type", "nothing")
        if not response.is_success or not kind.startswith("text/event-stream"):
            try:
                body = await self._read(response, JSON_BYTES_MAX)
            finally:
                await response.aclose()
            if not response.is_success:
                raise self._refusal(response, body)
            raise _foreign(self.url, f"replied with content type {kind}, not events", body)
        return EventBody(response)


class EventBody:
    """The open body of a stream of events."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks: AsyncIterator[bytes] = response.aiter_raw()

    async def chunk(self, timeout_s: float) -> bytes | None:
        """The next piece; ``None`` at the end. Raises ``NoReply`` if the connection breaks."""
        try:
            return await within(timeout_s, self._next())
        except asyncio.TimeoutError:
            raise NoReply(f"the server was silent for {timeout_s:g} s") from None

    async def _next(self) -> bytes | None:
        try:
            return await self._chunks.__anext__()
        except StopAsyncIteration:
            return None
        except (httpx.TransportError, OSError) as error:
            raise NoReply(f"the connection broke: {_causes(error)}") from None

    async def close(self) -> None:
        """Closes the connection."""
        await self._response.aclose()


def _compact(body: Mapping[str, Any]) -> bytes:
    present = {name: value for name, value in body.items() if value is not None}
    return json.dumps(present, ensure_ascii=False, separators=(",", ":")).encode()


def _causes(error: BaseException) -> str:
    """Formats an error with its causes, in one line."""
    texts = [str(error) or type(error).__name__]
    cause = error.__cause__ or error.__context__
    while cause is not None and len(texts) < 4:
        if str(cause) and str(cause) not in texts[-1]:
            texts.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    return ": ".join(texts)
