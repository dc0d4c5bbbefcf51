"""HTTP of the fake server: a thread a connection, on a free port of the loopback interface."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any, Union

from ..errors import Invalid
from .lock_table import Disconnected
from .replies import Refusal

#: Windows has no such flag.
_NO_WAIT = getattr(socket, "MSG_DONTWAIT", 0)

Body = Union[Mapping[str, Any], bytes, Iterator[bytes]]


@dataclass(frozen=True)
class HttpRequest:
    """A request that was read whole; header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    has_left: Callable[[], bool]

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; raises ``Invalid``."""
        try:
            value = json.loads(self.body or b"{}")
        except ValueError as error:
            raise Invalid(f"the body is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise Invalid("the body is no JSON object")
        return value


@dataclass(frozen=True)
class HttpReply:
    """A reply; a body of pieces ends with the connection."""

    status: int
    body: Body = b""
    headers: Mapping[str, str] | None = None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: HttpDoor

    def _handle(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(length)
        request = HttpRequest(self.command, self.path, headers, body, self._has_left)
        try:
            reply = self.server.reply(request)
        except Disconnected:
            self.close_connection = True
            return
        except Invalid as error:
            refusal = Refusal("invalid-request", str(error))
            reply = HttpReply(refusal.status, refusal.problem)
        except Refusal as refusal:
            reply = HttpReply(refusal.status, refusal.problem, refusal.headers)
        self._send(reply)

    do_GET = do_POST = do_PUT = do_DELETE = _handle

    def _send(self, reply: HttpReply) -> None:
        headers, body = dict(reply.headers or {}), reply.body
        if isinstance(body, Mapping):
            kind = "application/problem+json" if "code" in body else "application/json"
            headers["content-type"] = kind
            body = json.dumps(body).encode()
        pieces = [body] if isinstance(body, bytes) else body
        if isinstance(body, bytes) and reply.status not in (204, 304):
            headers["content-length"] = str(len(body))
        elif not isinstance(body, bytes):
            headers["connection"] = "close"
            self.close_connection = True
        with contextlib.suppress(OSError):
            self.send_response(reply.status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)
                self.wfile.flush()

    def _has_left(self) -> bool:
        """``True`` if the client has closed the connection."""
        try:
            if _NO_WAIT == 0 and not select.select([self.connection], [], [], 0)[0]:
                return False
            return not self.connection.recv(1, socket.MSG_PEEK | _NO_WAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def log_message(self, *_: object) -> None:
        """Logs nothing: a test prints what it wants to."""


class HttpDoor(socketserver.ThreadingTCPServer):
    """Listens from its beginning until ``close``."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, reply: Callable[[HttpRequest], HttpReply]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply = reply
        self._connections: set[socket.socket] = set()
        serving = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        serving.start()

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints an error, unless the client has left."""

        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Stops listening, and closes every connection."""
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
