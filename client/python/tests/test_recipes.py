"""The recipes run, and the loss of the lock ends their job."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import PATIENCE_S, until
from test_redis import RedisSite

from fencepost import Client

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
celery_task.client.close()
pay = celery_task.pay
assert pay.delay("1").get(timeout={PATIENCE_S}) == "paid"
long = pay.delay("2", 600)
print("sent", flush=True)
sys.stdin.readline()
try:
    long.get(timeout={PATIENCE_S})
except Exception as error:
    print(type(error).__name__, error)
"""
    sender = subprocess.Popen(
        [sys.executable, "-c", code],
        env=site.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    until("the long task", lambda: site.has_written("orders/2", b"paying"))
    assert site.has_written("orders/1", b"paid")
    site.client.revoke("orders/2", "test")
    output, _ = sender.communicate("\n", PATIENCE_S)
    assert "LeaseLost" in output and "revoked" in output, output
    assert site.has_written("orders/2", b"paying")
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

    recipe = application(site, monkeypatch, "fastapi_app")

    async def work() -> None:
        transport = httpx.ASGITransport(recipe.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as http:
            assert (await http.post("/orders/5")).json()["token"] > 0
            slow = asyncio.ensure_future(http.post("/orders/6?seconds=600"))
            loop = asyncio.get_running_loop()
            while not await loop.run_in_executor(None, site.has_written, "orders/6", b"paying"):
                pass
            await loop.run_in_executor(None, site.client.revoke, "orders/6", "test")
            reply = await asyncio.wait_for(slow, PATIENCE_S)
            assert reply.status_code == 503 and "revoked" in reply.json()["detail"]
            assert reply.headers["retry-after"] == "1"
        await recipe.client.close()

    asyncio.run(work())


@pytest.mark.usefixtures("soon_renewed")
def test_a_django_request_holds_its_lock_and_fails_with_it(
    site: RecipeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.conf import settings

    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["*"],
        MIDDLEWARE=["django_middleware.LockMiddleware"],
    )
    import django
    from django.http import HttpRequest, HttpResponse
    from django.test import Client as Browser
    from django.urls import path

    django.setup()
    recipe = application(site, monkeypatch, "django_middleware")

    def pay(request: HttpRequest, order: str) -> HttpResponse:
        request.lease.put(f"orders/{order}", "paying")
        if order == "8":
            site.client.revoke("orders/8", "test")
            assert request.lease.lost.wait(PATIENCE_S)
            request.lease.put(f"orders/{order}", "late")
        return HttpResponse(str(request.lease.token))

    global urlpatterns  # noqa: PLW0603
    urlpatterns = [path("orders/<order>", pay)]
    browser = Browser()
    assert int(browser.post("/orders/7").content) > 0
    lost = browser.post("/orders/8")
    assert lost.status_code == 503 and "lost" in lost.json()["detail"]
    recipe.client.close()


urlpatterns: list[Any] = []
