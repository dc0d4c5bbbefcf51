"""Driver of the SDK for the scenarios of ``tests/sdk``: JSON lines in, JSON lines out.

Without an argument it drives ``AsyncClient``; with ``--sync``, ``Client``, a thread a request.
With ``--host SOCKET`` it forks a driver for each connection to that path.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable
from typing import Any, Callable

import fencepost
from fencepost import timing, token

IS_SYNC = "--sync" in sys.argv
Json = dict[str, Any]


class BodyError(Exception):
    """The error of the work itself."""


class Unsupported(Exception):
    """An operation that this variant cannot have."""


_writing = threading.Lock()


def write(line: Json) -> None:
    with _writing:
        print(json.dumps(line), flush=True)


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def seconds(request: Json, name: str) -> Any:
    value = request.get(name)
    return value / 1000 if isinstance(value, (int, float)) else value


def given(**options: Any) -> Json:
    return {name: value for name, value in options.items() if value is not None}


class Driver:
    """The named things of the requests, and an operation a method."""

    def __init__(self) -> None:
        self.clients: dict[str, Any] = {}
        self.leases: dict[str, Any] = {}
        self.sessions: dict[str, Any] = {}
        self.streams: dict[str, Any] = {}
        self.under_way: dict[int, Any] = {}

    def client_of(self, request: Json) -> Any:
        return self.clients[request["client"]]

    def held(self, request: Json) -> Any:
        name = request["lease"]
        if name not in self.leases:
            raise fencepost.Invalid(f"there is no lease {name}")
        return self.leases[name]

    def keep(self, name: str, lease: Any) -> Json:
        def report(lost: fencepost.LeaseLost) -> None:
            write({"event": "lost", "lease": name, "reason": lost.reason, "end": lost.ended_by})

        self.leases[name] = lease
        lease.on_lost(report)
        return {
            "token": lease.token,
            "lease_id": lease.lease_id,
            "lock": lease.lock,
            "remaining_ms": int(lease.remaining * 1000),
            "fencing_token": lease.fencing_token,
            "fencing_credential": lease.fencing_credential,
        }

    async def client(self, request: Json) -> Json:
        kind = fencepost.Client if IS_SYNC else fencepost.AsyncClient
        names = "server guard owner incarnation token ca_file insecure_http config".split()
        options = given(**{name: request.get(name) for name in names})
        options.update(
            given(
                auth_file=request.get("token_file"),
                client_cert=request.get("cert"),
                client_key=request.get("key"),
            )
        )
        self.clients[request["client"]] = kind(**options, environment=request.get("env") or {})
        return {}

    def request_of(self, request: Json) -> Any:
        names = "mode size metadata min_token takeover takeover_of".split()
        options = given(
            ttl=seconds(request, "ttl_ms"),
            wait=seconds(request, "wait_ms"),
            progress_within=seconds(request, "progress_within_ms"),
            max_hold=seconds(request, "max_hold_ms"),
            **{name: request.get(name) for name in names},
        )
        return self.client_of(request).lock(request["name"], **options)

    async def lock(self, request: Json) -> Json:
        if request.get("session") is None:
            return self.keep(request["lease"], await settled(self.request_of(request).acquire()))
        options = given(
            wait=seconds(request, "wait_ms"),
            mode=request.get("mode"),
            size=request.get("size"),
            metadata=request.get("metadata"),
        )
        session = self.session_of(request)
        return self.keep(request["lease"], await settled(session.lock(request["name"], **options)))

    async def lock_all(self, request: Json) -> Json:
        options = given(ttl=seconds(request, "ttl_ms"), wait=seconds(request, "wait_ms"))
        locking = self.client_of(request).lock_all(request["names"], **options)
        leases = await settled(locking)
        self.leases[request["lease"]] = leases
        found = []
        for lease in leases:
            self.keep(f"{request['lease']}:{lease.lock}", lease)
            found.append({"name": lease.lock, "token": lease.token, "lease_id": lease.lease_id})
        return {"leases": found}

    async def cancel(self, request: Json) -> Json:
        task = self.under_way.get(request["target"])
        if IS_SYNC:
            raise Unsupported
        if task is not None:
            task.cancel()
        return {}

    async def run(self, request: Json) -> Json:
        asking = self.request_of(request)
        time_s = request.get("body_ms", 0) / 1000
        body = request["body"]
        if IS_SYNC:
            with asking as lease:
                if body == "fail":
                    raise BodyError("the work failed")
                if body == "block":
                    time.sleep(time_s)
                elif lease.lost.wait(time_s):
                    lease.check()
            return {"body": "finished"}
        async with asking:
            if body == "fail":
                raise BodyError("the work failed")
            if body == "block":
                time.sleep(time_s)
            else:
                await asyncio.sleep(time_s)
        return {"body": "finished"}

    async def check(self, request: Json) -> Json:
        lease = self.held(request)
        lease.check()
        return {"remaining_ms": int(lease.remaining * 1000)}

    async def progress(self, request: Json) -> Json:
        self.held(request).progress()
        return {}

    async def release(self, request: Json) -> Json:
        await settled(self.held(request).release())
        return {}

    async def put(self, request: Json) -> Json:
        names = "if_match if_absent op_id".split()
        options = given(**{name: request.get(name) for name in names})
        value = request["value"]
        return {
            "etag": (await settled(self.held(request).put(request["key"], value, **options))).etag
        }

    async def get(self, request: Json) -> Json:
        found = await settled(self.held(request).get(request["key"]))
        if found is None:
            return {"value": None, "etag": None}
        return {"value": found.body.decode(), "etag": found.etag}

    async def delete(self, request: Json) -> Json:
        await settled(self.held(request).delete(request["key"]))
        return {}

    async def block_loop(self, request: Json) -> Json:
        time.sleep(request["ms"] / 1000)
        return {}

    async def fork_check(self, request: Json) -> Json:
        lease = self.held(request)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            found = "live"
            try:
                lease.check()
            except fencepost.LeaseLost as error:
                found = "lost" if error.reason == "forked" else str(error)
            os.write(writing, found.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            found = pipe.read()
        os.waitpid(child, 0)
        return {"parent": "live" if lease.is_live else "lost", "child": found}

    def session_of(self, request: Json) -> Any:
        return self.sessions[request["session"]]

    async def session(self, request: Json) -> Json:
        beginning = self.client_of(request).session(**given(ttl=seconds(request, "ttl_ms")))
        session = await settled(beginning)
        self.sessions[request["session"]] = session
        return {"session_id": session.session_id}

    async def session_check(self, request: Json) -> Json:
        self.session_of(request).check()
        return {}

    async def session_end(self, request: Json) -> Json:
        return {"leases": await settled(self.session_of(request).end())}

    async def campaign(self, request: Json) -> Json:
        options = given(ttl=seconds(request, "ttl_ms"))
        election = self.client_of(request).election(request["name"], **options)
        lease = await settled(election.campaign(seconds(request, "wait_ms")))
        return {"token": self.keep(request["leadership"], lease)["token"]}

    async def leader(self, request: Json) -> Json:
        leader = await settled(self.client_of(request).election(request["name"]).leader())
        if leader is None:
            return {"owner": None, "token": None}
        return {"owner": leader.owner, "token": leader.token}

    async def resign(self, request: Json) -> Json:
        await settled(self.leases[request["leadership"]].release())
        return {}

    async def events(self, request: Json) -> Json:
        name = request["stream"]
        stream = await settled(self.client_of(request).events(request.get("prefix") or ""))

        def item(event: fencepost.Event) -> None:
            write({"event": "item", "stream": name, "kind": event.kind, "lock": event.lock})

        async def read() -> None:
            async for event in stream:
                item(event)

        def read_here() -> None:
            for event in stream:
                item(event)

        reading: Any = None
        if IS_SYNC:
            threading.Thread(target=read_here, daemon=True).start()
        else:
            reading = asyncio.ensure_future(read())
        self.streams[name] = (stream, reading)
        return {}

    async def events_close(self, request: Json) -> Json:
        stream, reading = self.streams.pop(request["stream"])
        await settled(stream.close())
        if reading is not None:
            reading.cancel()
        return {}

    async def show(self, request: Json) -> Json:
        shown = await settled(self.client_of(request).show(request["name"]))
        return {"state": shown.state, "owner": shown.holder.owner if shown.holder else None}

    async def revoke(self, request: Json) -> Json:
        await settled(self.client_of(request).revoke(request["name"], request["reason"]))
        return {}

    async def window(self, request: Json) -> Json:
        window = timing.Window.of(request["sent_at_ms"], request["ttl_ms"])
        return {
            "renew_at": window.renew_at_ms,
            "deadline": window.deadline_ms,
            "kill_by": window.kill_by_ms,
            "expires_at": window.expires_at_ms,
        }

    async def pause(self, request: Json) -> Json:
        return {"ms": timing.pause_ms(request["attempt"], request["random"])}

    async def credential(self, request: Json) -> Json:
        return {"credential": token.join(request["tokens"])}

    async def parse_token(self, request: Json) -> Json:
        parsed = token.parse(request["header"])
        return {"token": parsed.token, "lock": parsed.lock, "lease": parsed.lease}


async def handle(driver: Driver, request: Json) -> None:
    reply: Json = {"id": request["id"]}
    operation: Callable[[Json], Awaitable[Json]] | None = getattr(driver, request["op"], None)
    if not IS_SYNC:
        driver.under_way[request["id"]] = asyncio.current_task()
    try:
        if operation is None:
            raise Unsupported
        reply["ok"] = await operation(request)
    except Unsupported:
        reply["unsupported"] = True
    except asyncio.CancelledError:
        reply["error"] = error_of("cancelled", None, "cancelled")
    except BodyError as error:
        reply["error"] = error_of("body", None, error)
    except fencepost.FencepostError as error:
        reply["error"] = error_of(error.kind, error, error)
    except Exception as error:
        reply["error"] = error_of("internal", None, repr(error))
        if not isinstance(error, KeyError):
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    driver.under_way.pop(request["id"], None)
    write(reply)


def error_of(kind: str, error: fencepost.FencepostError | None, message: object) -> Json:
    lost = error if isinstance(error, fencepost.LeaseLost) else None
    return {
        "kind": kind,
        "code": error.code if error else None,
        "reason": lost.reason if lost else None,
        "end": lost.ended_by if lost else None,
        "retryable": error.retryable if error else False,
        "message": str(message),
    }


def requests() -> Any:
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "quit":
            write({"id": request["id"], "ok": {}})
            return
        yield request


async def main() -> None:
    driver = Driver()
    loop = asyncio.get_running_loop()
    lines = requests()
    tasks = set()
    while True:
        request = await loop.run_in_executor(None, next, lines, None)
        if request is None:
            return
        task = loop.create_task(handle(driver, request))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def main_sync() -> None:
    driver = Driver()
    for request in requests():
        work = threading.Thread(
            target=lambda r=request: asyncio.run(handle(driver, r)), daemon=True
        )
        work.start()


def host(path: str) -> None:
    """Forks for each connection, and returns in the driver, which talks over it."""
    # They are loaded by the first request otherwise, in each driver.
    for module in ("anyio._backends._asyncio", "httpcore"):
        importlib.import_module(module)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    os.setsid()
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    os.dup2(os.open(sys.stdin.readline().strip(), os.O_WRONLY | os.O_APPEND), 2)
    print(os.getpid(), flush=True)


if "--host" in sys.argv:
    host(sys.argv[sys.argv.index("--host") + 1])
if IS_SYNC:
    main_sync()
else:
    asyncio.run(main())
os._exit(0)
