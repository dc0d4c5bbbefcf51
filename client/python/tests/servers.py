"""The programs under test, started on free ports, and a proxy that spoils replies."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, Callable
from urllib.parse import urlsplit

from fencepost import clock

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(os.environ.get("FENCE_BIN") or ROOT / "target" / "debug")


class Program:
    """A server of the repository, and its address."""

    def __init__(self, name: str, *args: str) -> None:
        self.log: IO[str] = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [BIN / name, *args], stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        assert self._process.stdout is not None
        ports = 2 if "--redis-listen" in args else 1
        lines = list(itertools.islice(self._process.stdout, ports))
        found = dict(re.findall(r"listening on (\w+)(://\S+)", "".join(lines)))
        if len(found) < ports:
            raise RuntimeError(f"{name}: {lines} {self.lines()}")
        self.url = "http" + found["http"]
        self.redis_port = urlsplit("redis" + found.get("redis", "")).port

    def lines(self) -> str:
        """What the program has logged so far."""
        self.log.seek(0)
        return self.log.read()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self.log.close()


class Site:
    """A lock server and a guard with one key file, in memory."""

    def __init__(self, guard: Sequence[str] = ("--store", "memory:")) -> None:
        self.folder = tempfile.TemporaryDirectory()
        keys = Path(self.folder.name) / "keys.txt"
        keys.write_text(f"k1:{secrets.token_hex(32)}\n")
        common = ["--listen", "127.0.0.1:0", "--token-key-file", str(keys)]
        self.programs = [Program("lock-server", *common, "--store", "memory:")]
        self.programs.append(Program("fenced-store", *common, *guard))
        self.server, self.guard = (program.url for program in self.programs)
        self.port = self.programs[1].redis_port

    def stop(self) -> None:
        for program in self.programs:
            program.stop()
        self.folder.cleanup()


def _patience_s() -> float:
    variable = "FENCE_TEST_PATIENCE"
    text = os.environ.get(variable, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = 0
    if not 0 < factor <= 1_000:
        raise ValueError(f"{variable}={text}: expected a number above 0, at most 1000")
    return 45.0 * factor


#: Longest wait for a condition: a limit for a broken SDK, not what a busy machine may take.
PATIENCE_S = _patience_s()


def until(what: str, condition: Callable[[], Any]) -> Any:
    """Awaits a condition; its value."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        # Before the look: a pause of the machine after it has shown nothing.
        is_last = time.monotonic() > deadline
        value = condition()
        if value:
            return value
        if is_last:
            raise AssertionError(f"not within {PATIENCE_S} s: {what}")
        time.sleep(0.005)


class Fault:
    """What happens to requests: ``drop-reply``, ``hold-reply``, ``delay-reply``, ``refuse``, or
    ``forge-reply``, which replaces status and body."""

    def __init__(
        self, part: str, effect: str, times: int, delay_s: float, status: int, content: bytes
    ) -> None:
        self.part, self.effect, self.times, self.delay_s = part, effect, times, delay_s
        self.status, self.content = status, content
        self.healed = threading.Event()


class FaultProxy:
    """An HTTP proxy before a server that records requests and spoils replies."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self.requests: list[tuple[str, dict[str, Any]]] = []
        #: Moment of the first request, by the clock of the SDK.
        self.first_at_ms: int | None = None
        self._faults: list[Fault] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                proxy._handle(self)

            do_GET = do_PUT = do_DELETE = do_POST

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        serve = self._server.serve_forever
        threading.Thread(target=serve, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def fault(
        self,
        part: str,
        effect: str,
        times: int = 1,
        delay_s: float = 0,
        status: int = 200,
        content: bytes = b"",
    ) -> Fault:
        """Spoils the next requests whose path contains ``part``."""
        fault = Fault(part, effect, times, delay_s, status, content)
        self._faults.append(fault)
        return fault

    def bodies(self, part: str) -> list[dict[str, Any]]:
        """Bodies of the requests whose path contains ``part``."""
        return [body for path, body in self.requests if part in path]

    def _taken(self, path: str) -> Fault | None:
        for fault in self._faults:
            if fault.part in path and fault.times > 0 and not fault.healed.is_set():
                fault.times -= 1
                return fault
        return None

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("content-length") or 0)
        if self.first_at_ms is None:
            self.first_at_ms = clock.now_ms()
        body = handler.rfile.read(length)
        is_json = handler.headers.get("content-type") == "application/json"
        self.requests.append((handler.path, json.loads(body) if is_json and body else {}))
        fault = self._taken(handler.path)
        effect = fault.effect if fault is not None else ""
        if effect == "refuse":
            handler.close_connection = True
            return
        connection = HTTPConnection(self._upstream.hostname or "", self._upstream.port)
        headers = {name: value for name, value in handler.headers.items() if name != "Host"}
        connection.request(handler.command, handler.path, body or None, headers)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        if fault is not None and effect == "delay-reply":
            fault.healed.wait(fault.delay_s)
        if fault is not None and effect == "hold-reply":
            fault.healed.wait(PATIENCE_S)
        if effect == "drop-reply":
            handler.close_connection = True
            return
        status = reply.status
        if fault is not None and effect == "forge-reply":
            status, content = fault.status, fault.content
            del reply.headers["content-length"]
        with contextlib.suppress(OSError):
            handler.send_response(status)
            for name, value in reply.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "date"):
                    handler.send_header(name, value)
            if "content-length" not in reply.headers:
                handler.send_header("content-length", str(len(content)))
            handler.end_headers()
            handler.wfile.write(content)

    def stop(self) -> None:
        for fault in self._faults:
            fault.healed.set()
        self._server.shutdown()
        self._server.server_close()
