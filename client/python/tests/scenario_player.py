"""Plays the scenarios of ``tests/sdk`` that cause no fault at a ``FakeServer``."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servers import PATIENCE_S, ROOT, until

from fencepost.testing.http_door import HttpDoor, HttpReply, HttpRequest
from fencepost.testing.server import FakeServer

FOLDER = ROOT / "tests" / "sdk" / "scenarios"
DRIVER = Path(__file__).with_name("scenario_driver.py")
#: Steps that only the proxy of the Rust tests can do, and the real programs.
FAULTS = {"fault", "heal", "cut", "kill", "restart"}
OF_CLIENT = set("client lock lock_all run session campaign leader events show revoke".split())
OF_LEASE = set("lock lock_all run check release progress put get delete fork_check".split())

Json = dict[str, Any]


def scenarios() -> dict[str, Json]:
    """The scenarios without a fault, by name; one of TLS needs a server that speaks it."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
    return {
        name: scenario
        for name, scenario in found.items()
        if not FAULTS & steps_of(scenario["steps"]) and "servers" not in scenario
    }


def steps_of(steps: list[Json]) -> set[str]:
    return {word for step in steps for word in step} | {
        word for step in steps if "each" in step for word in steps_of(step["do"])
    }


class RecordingServer(FakeServer):
    """Records its requests, except those of the rival, which has another port."""

    def __init__(self) -> None:
        self.seen: list[tuple[HttpRequest, Json]] = []
        super().__init__()
        self.direct = HttpDoor(super()._reply)

    def close(self) -> None:
        super().close()
        self.direct.close()

    def _reply(self, request: HttpRequest) -> HttpReply:
        is_json = request.headers.get("content-type") == "application/json" and request.body
        self.seen.append((request, request.json() if is_json else {}))
        return super()._reply(request)

    def of(self, server: str) -> list[tuple[HttpRequest, Json]]:
        """The requests to the guard, or those to the lock server."""
        is_guard = server == "guard"
        return [each for each in self.seen if each[0].path.startswith("/v1/objects") == is_guard]


@contextlib.contextmanager
def hosted(*options: str) -> Iterator[str]:
    """A process that forks a driver for each connection to this path."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "host")
        words = [sys.executable, str(DRIVER), *options, "--host", path]
        host = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert host.stdout is not None and host.stdout.readline() == "ready\n"
        try:
            yield path
        finally:
            host.kill()
            host.wait()
            host.stdout.close()


class Driver:
    """A driver of the SDK, in a process of its own."""

    def __init__(self, host: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(host)
        self._lines = self._socket.makefile("r")
        self.errors = tempfile.NamedTemporaryFile("r+")
        self._socket.sendall(f"{self.errors.name}\n".encode())
        self.pid = int(self._lines.readline())
        self._last = 0
        self._replies: dict[int, queue.Queue[Json]] = {}
        self.events: list[Json] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._lines:
                message = json.loads(line)
                if "id" in message:
                    self._replies[message["id"]].put(message)
                else:
                    self.events.append(message)

    def send(self, request: Json) -> int:
        self._last += 1
        self._replies[self._last] = queue.Queue()
        self._socket.sendall(json.dumps({**request, "id": self._last}).encode() + b"\n")
        return self._last

    def reply(self, number: int) -> Json:
        try:
            return self._replies[number].get(timeout=PATIENCE_S)
        except queue.Empty:
            self.errors.seek(0)
            raise AssertionError(f"no reply: {self.errors.read()}") from None

    def is_pending(self, number: int) -> bool:
        return self._replies[number].empty()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._socket.close()
        self.errors.close()


class Differs(Exception):
    """A value is not as expected."""


class Variables(dict[str, Any]):
    """Variables of a scenario, bound by what is found."""

    def fill(self, value: Any) -> Any:
        if isinstance(value, str):
            if re.fullmatch(r"\$\w+", value):
                return self[value[1:]]
            return re.sub(r"\$\{(\w+)\}", lambda name: str(self[name.group(1)]), value)
        if isinstance(value, list):
            return [self.fill(each) for each in value]
        if isinstance(value, dict):
            return {name: self.fill(each) for name, each in value.items()}
        return value

    def match(self, expected: Any, found: Any) -> None:
        """Raises ``Differs``."""
        if isinstance(expected, str) and re.fullmatch(r"\$\w+", expected):
            expected = self.setdefault(expected[1:], found)
            if expected != found:
                raise Differs(f"{found!r} is not {expected!r}")
        elif isinstance(expected, dict):
            ((word, value),) = expected.items() if len(expected) == 1 else (("", None),)
            if word in WORDS:
                if not WORDS[word](self, value, found):
                    raise Differs(f"{found!r} is not {expected}")
                return
            for name, each in expected.items():
                self.match(each, found.get(name) if isinstance(found, dict) else None)
        elif isinstance(expected, list):
            if not isinstance(found, list) or len(found) != len(expected):
                raise Differs(f"{found!r} is not {expected!r}")
            for each, one in zip(expected, found):
                self.match(each, one)
        elif self.fill(expected) != found:
            raise Differs(f"{found!r} is not {expected!r}")

    def matches(self, expected: Any, found: Any) -> bool:
        try:
            Variables(self).match(expected, found)
        except Differs:
            return False
        return True


WORDS: dict[str, Any] = {
    "any": lambda _, value, found: found is not None,
    "not": lambda names, value, found: not names.matches(value, found),
    "one_of": lambda names, value, found: any(names.matches(each, found) for each in value),
    "contains": lambda names, value, found: names.fill(value) in (found or ""),
    "above": lambda names, value, found: found is not None and found > names.fill(value),
    "below": lambda names, value, found: found is not None and found < names.fill(value),
    "at_least": lambda names, value, found: found is not None and found >= names.fill(value),
    "at_most": lambda names, value, found: found is not None and found <= names.fill(value),
}


class Player:
    """One scenario under way."""

    def __init__(self, hosts: tuple[str, str], plain: str) -> None:
        self._hosts = hosts
        self._stack = contextlib.ExitStack()
        self.server = RecordingServer()
        self._stack.callback(self.server.close)
        self._drivers: dict[str, Driver] = {}
        self._started: dict[str, tuple[Driver, int]] = {}
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        url = self.server.url
        self.names = Variables(server=url, guard=url, plain=plain, dir=folder)

    def play(self, scenario: Json) -> None:
        with self._stack:
            for name, text in scenario.get("files", {}).items():
                Path(self.names["dir"], name).write_text(text)
            if not scenario.get("bare"):
                self._client("driver", "tester")
            for at, step in enumerate(scenario["steps"], 1):
                try:
                    self._step(step)
                except Differs as error:
                    raise AssertionError(f"step {at}, {step}: {error}") from None

    def _driver(self, by: str) -> Driver:
        if by not in self._drivers:
            self._drivers[by] = driver = Driver(self._hosts[by == "rival"])
            self._stack.callback(driver.close)
            if by == "rival":
                self._client("rival", "rival")
        return self._drivers[by]

    def _client(self, by: str, owner: str) -> None:
        url = self.server.direct.url if by == "rival" else self.server.url
        self._send(by, {"op": "client", "server": url, "guard": url, "owner": owner}, None)

    def _begin(self, by: str, request: Json) -> tuple[Driver, int]:
        request = self.names.fill(request)
        if request["op"] in OF_CLIENT:
            request.setdefault("client", "c")
        if request["op"] in OF_LEASE:
            request.setdefault("lease", "a")
        if request["op"] == "cancel":
            request["target"] = self._started[request["target"]][1]
        driver = self._driver(by)
        return driver, driver.send(request)

    def _send(self, by: str, request: Json, expect: Json | None) -> None:
        driver, number = self._begin(by, request)
        self._check(driver.reply(number), expect)

    def _check(self, reply: Json, expect: Json | None) -> None:
        self.names.match(expect or {"ok": {"any": True}}, reply)

    def _step(self, step: Json) -> None:
        driver = self._driver("driver")
        expect = step.get("expect")
        if "send" in step:
            self._send("driver", step["send"], expect)
        elif "rival" in step:
            self._send("rival", step["rival"], expect)
        elif "start" in step:
            self._started[step["as"]] = self._begin(step.get("by", "driver"), step["start"])
        elif "await" in step:
            by, number = self._started[step["await"]]
            if step.get("pending") or step.get("expect") == "pending":
                assert by.is_pending(number), step
            else:
                self._check(by.reply(number), expect)
        elif "event" in step:
            is_it = self.names.matches
            event = until(
                f"{step} among {driver.events}",
                lambda: next((each for each in driver.events if is_it(step["event"], each)), None),
            )
            driver.events.remove(event)
            self.names.match(step["event"], event)
        elif "no_event" in step:
            assert not any(self.names.matches(step["no_event"], each) for each in driver.events)
        elif "requests" in step:
            self._requests(step["requests"])
        elif "queue" in step:
            wanted = step["queue"]
            locks = self.server._locks
            until(f"{step}", lambda: locks.show(wanted["name"])["queue_length"] == wanted["length"])
        elif "stop" in step or "continue" in step:
            os.killpg(driver.pid, signal.SIGSTOP if "stop" in step else signal.SIGCONT)
        else:
            for values in step["each"]:
                self.names.update(values)
                for inner in step["do"]:
                    self._step(inner)

    def _requests(self, count: Json) -> None:
        def found() -> list[Json]:
            part = self.names.fill(count.get("path", ""))
            meant = []
            for request, body in list(self.server.of(count.get("server", "lock"))):
                names = Variables(self.names)
                try:
                    names.match(count.get("body", {}), body)
                    names.match(count.get("headers", {}), dict(request.headers))
                except Differs:
                    continue
                if part in request.path and count.get("method", request.method) == request.method:
                    self.names.update(names)
                    meant.append(body)
            return meant

        least = count.get("at_least", count.get("exactly", 0))
        until(f"{least} requests as {count}", lambda: len(found()) >= least)
        assert len(found()) <= count.get("at_most", count.get("exactly", 1 << 30)), count
        for member, number in count.get("distinct", {}).items():
            assert len({str(body.get(member)) for body in found()}) == number, count
