"""The recipes and the integrations of frameworks: the loss of the lock ends the job."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import BackgroundTasks
from servers import PATIENCE_S, until
from test_redis import RedisSite

from fencepost import Client, Invalid

RECIPES = Path(__file__).resolve().parents[1] / "recipes"


class RecipeSite(RedisSite):
    """Servers, and a Redis that is also the broker of queues."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ["--allow-unfenced-reads"])
        self.broker = f"redis://127.0.0.1:{self.broker_port}"
        self.client = Client(self.server, self.guard, owner="operator", environment={})
        self.environment = {
            **os.environ,
            "FENCE_SERVER": self.server,
            "FENCE_GUARD": self.guard,
            "FENCE_OWNER": "recipe",
            "LOCK_TTL_S": "9",
            "BROKER": f"{self.broker}/0",
            "PYTHONPATH": os.pathsep.join([str(RECIPES), os.environ.get("PYTHONPATH", "")]),
        }

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *args],
            env=self.environment,
            cwd=self.folder.name,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def has_written(self, key: str, value: bytes) -> bool:
        found = self.client.get(key)
        return found is not None and found.body == value

    def stop(self) -> None:
        self.client.close()
        super().stop()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecipeSite]:
    folder = tmp_path_factory.mktemp("recipes")
    site = RecipeSite(folder)
    yield site
    site.stop()


def test_a_cron_job_runs_once_and_ends_with_its_lock(site: RecipeSite) -> None:
    first = site.start("-m", "cron_job", "600")
    until("the first part", lambda: site.has_written("cron/nightly", b"part 0"))
    second = site.start("-m", "cron_job")
    assert second.wait(PATIENCE_S) == 75
    site.client.revoke("cron/nightly", "test")
    # It would sleep for ten minutes.
    assert first.wait(PATIENCE_S) == 76
    done = site.start("-m", "cron_job")
    assert done.wait(PATIENCE_S) == 0
    for job in (first, second, done):
        assert job.stdout is not None
        job.stdout.close()


def test_a_celery_task_holds_its_lock_and_ends_with_it(site: RecipeSite) -> None:
    options = ["--pool=prefork", "--concurrency=2", "--loglevel=error", "--without-mingle"]
    options += ["--without-gossip", "--without-heartbeat"]
    worker = site.start("-m", "celery", "-A", "celery_task", "worker", *options)
    code = f"""
import sys, celery_task
pay = celery_task.pay
assert pay.delay(order="1").get(timeout={PATIENCE_S}) == "paid"
long = pay.delay("2", 600)
sys.stdin.readline()
second = pay.delay("2")
print(long.id, flush=True)
sys.stdin.readline()
try:
    long.get(timeout={PATIENCE_S})
except Exception as error:
    print(type(error).__name__, error)
assert second.get(timeout={PATIENCE_S}) == "paid"
"""
    sender = subprocess.Popen(
        [sys.executable, "-c", code],
        env=site.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    begun = until("the long task", lambda: site.client.get("orders/2"))
    assert site.has_written("orders/1", b"paid")
    assert sender.stdin is not None and sender.stdout is not None
    sender.stdin.write("\n")
    sender.stdin.flush()
    # A task knows the number of its attempt, by which a store can refuse an earlier one.
    assert begun.body.decode() == f"paying, attempt 0 of {sender.stdout.readline().strip()}"
    tasks = [event.data["lease_id"] for event in site.client.show("orders/2").events]
    assert len(set(tasks)) == 1
    site.client.revoke("orders/2", "test")
    output, _ = sender.communicate("\n", 3 * PATIENCE_S)
    assert "LeaseLost" in output and "revoked" in output, output
    assert site.has_written("orders/2", b"paid"), "the other one was retried"
    worker.terminate()
    worker.communicate(timeout=PATIENCE_S)


def test_an_rq_job_holds_its_lock_and_ends_with_it(site: RecipeSite) -> None:
    from redis import Redis
    from rq import Queue

    queue = Queue(connection=Redis.from_url(f"{site.broker}/1"))
    short, long = queue.enqueue("rq_job.pay", "3"), queue.enqueue("rq_job.pay", "4", 600)
    worker = site.start("-m", "rq.cli", "worker", "--burst", "--url", f"{site.broker}/1")
    until("the long job", lambda: site.has_written("orders/4", b"paying"))
    site.client.revoke("orders/4", "test")
    output, _ = worker.communicate(timeout=PATIENCE_S)
    assert short.return_value() == "paid", output
    result = long.latest_result()
    assert result is not None and "LeaseLost" in (result.exc_string or ""), output


def application(site: RecipeSite, monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    """A recipe imported with the settings of its site."""
    monkeypatch.syspath_prepend(str(RECIPES))
    for variable, value in site.environment.items():
        if variable.startswith(("FENCE_", "LOCK_")):
            monkeypatch.setenv(variable, value)
    sys.modules.pop(name, None)
    return __import__(name)


@pytest.mark.usefixtures("soon_renewed")
def test_a_fastapi_request_holds_its_lock_and_ends_with_it(
    site: RecipeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx
    from fastapi.responses import StreamingResponse

    recipe = application(site, monkeypatch, "fastapi_app")

    held_here = recipe.locked(recipe.client, "orders/{order}", ttl=9)

    @recipe.app.post("/swallow/{order}")
    async def swallow(order: str, lease: Any = held_here) -> int:
        await lease.put(f"orders/{order}", "paying")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        return 1

    late: list[str] = []

    @recipe.app.post("/later/{order}")
    async def later(order: str, tasks: BackgroundTasks, lease: Any = held_here) -> Any:
        async def write(when: str) -> None:
            with pytest.raises(Invalid, match="was released"):
                await lease.put(f"orders/{order}", when)
            late.append(when)

        async def body() -> Any:
            await write("body")
            yield b"body"

        tasks.add_task(write, "task")
        return StreamingResponse(body())

    def until_written(key: str) -> None:
        until(f"a write of {key}", lambda: site.has_written(key, b"paying"))

    async def work() -> None:
        loop = asyncio.get_running_loop()
        transport = httpx.ASGITransport(recipe.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as http:
            assert (await http.post("/orders/5")).json()["token"] > 0
            assert (await http.post("/orders/a b")).status_code == 404
            # Both come after the release.
            assert (await http.post("/later/11")).text == "body" and late == ["body", "task"]
            for path, key in (("/orders/6?seconds=600", "6"), ("/swallow/9", "9")):
                slow = asyncio.ensure_future(http.post(path))
                await loop.run_in_executor(None, until_written, f"orders/{key}")
                if key == "6":
                    held = await http.post("/orders/6")
                    assert held.status_code == 503 and held.json()["code"] == "lock-held"
                    assert int(held.headers["retry-after"]) >= 1
                await loop.run_in_executor(None, site.client.revoke, f"orders/{key}", "test")
                reply = await asyncio.wait_for(slow, PATIENCE_S)
                assert reply.status_code == 503 and "revoked" in reply.json()["detail"], reply.text
        await recipe.client.close()

    asyncio.run(work())


@pytest.mark.usefixtures("soon_renewed")
def test_a_django_request_holds_its_lock_and_fails_with_it(site: RecipeSite) -> None:
    from django.conf import settings

    client = Client(site.server, site.guard, environment={})
    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["*"],
        MIDDLEWARE=["fencepost.django.LockMiddleware"],
        FENCEPOST_LOCKS=[
            (r"/named/(?P<order>\w+)", "orders/{order}"),
            ("/orders/(.*)", "orders/{}"),
        ],
        FENCEPOST_CLIENT=client,
        FENCEPOST_WAIT=0.1,
    )
    import django
    from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
    from django.test import Client as Browser
    from django.urls import path

    django.setup()

    def pay(request: HttpRequest, order: str) -> Any:
        if order == "11":
            return StreamingHttpResponse(late(request.lease))
        if request.method == "GET":
            return HttpResponse(str(hasattr(request, "lease")))
        request.lease.put(f"orders/{order}", "paying")
        if order in ("8", "10"):
            site.client.revoke(f"orders/{order}", "test")
            assert request.lease.lost.wait(PATIENCE_S)
        if order == "8":
            request.lease.put(f"orders/{order}", "late")
        return HttpResponse(str(request.lease.token))

    def late(lease: Any) -> Iterator[str]:
        with pytest.raises(Invalid, match="was released"):
            lease.put("orders/11", "late")
        yield "body"

    global urlpatterns  # noqa: PLW0603
    urlpatterns = [path(f"{part}/<order>", pay) for part in ("orders", "named", "other")]
    browser = Browser()
    assert int(browser.post("/orders/7").content) > 0 and int(browser.post("/named/7").content) > 0
    assert browser.get("/orders/7").content == b"False"
    with pytest.raises(AttributeError, match="lease"):
        browser.post("/other/7")
    # The site may be mounted under a prefix, which is no part of a pattern.
    assert int(browser.post("/orders/7", SCRIPT_NAME="/shop").content) > 0
    unnamed = browser.post("/orders/a b")
    assert unnamed.status_code == 404 and "lock name" in unnamed.json()["detail"]
    # A streamed body comes after the release.
    assert b"".join(browser.post("/orders/11").streaming_content) == b"body"
    for order in ("8", "10"):
        lost = browser.post(f"/orders/{order}")
        assert lost.status_code == 503 and "lost" in lost.json()["detail"]
    with site.client.lock("orders/7"):
        held = browser.post("/named/7")
        assert held.status_code == 503 and held.json()["code"] == "lock-held"
    client.close()


urlpatterns: list[Any] = []
