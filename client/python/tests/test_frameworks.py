"""Rules of the integrations of frameworks, at a server in memory."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import celery
import celery.exceptions
import pytest
from packaging.requirements import Requirement
from servers import ROOT

from fencepost import Client, Contended, Invalid, LeaseLost
from fencepost.celery import LockedTask
from fencepost.errors import DEADLINE, lease_lost
from fencepost.frameworks import name_of
from fencepost.interrupting import _Interruption, interrupting
from fencepost.rq import locked
from fencepost.testing import FakeServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with FakeServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with server.client() as client:
        yield client


def test_a_name_is_made_of_the_arguments() -> None:
    assert name_of("orders/{order}", order=7, other=8) == "orders/7"
    assert name_of("{}/{}", "a", "b") == name_of(lambda a, b: f"{a}/{b}", "a", "b") == "a/b"
    with pytest.raises(Invalid, match="needs 'order', which the call does not have"):
        name_of("orders/{order}")
    with pytest.raises(Invalid, match="lock name"):
        name_of("orders/{order}", order="..")


def test_the_loss_of_an_outer_lock_ends_an_inner_block(server: FakeServer, client: Client) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    reached = []
    with pytest.raises(LeaseLost, match="outer"):
        with interrupting(client.lock("outer", ttl=600)) as outer:
            with interrupting(client.lock("inner", ttl=600)):
                server.lose(outer)
                signal.pause()
                reached.append("behind the loss")
    assert reached == [] and signal.getsignal(signal.SIGUSR2) is before
    assert [client.show(name).state for name in ("outer", "inner")] == ["free", "free"]


def test_a_loss_behind_the_block_sends_no_signal() -> None:
    # Its default action would be the end of this process.
    interruption = _Interruption(signal.SIGUSR2, signal.SIG_DFL)
    interruption.end()
    noticed = threading.Thread(target=interruption.interrupt, args=[lease_lost("a", DEADLINE)])
    noticed.start()
    noticed.join()


def test_another_thread_is_not_interrupted(client: Client) -> None:
    found: list[BaseException] = []

    def work() -> None:
        try:
            with interrupting(client.lock("a")):
                pass
        except Invalid as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "main thread" in str(found[0]) and client.show("a").state == "free"


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, client: Client) -> celery.Celery:
    monkeypatch.setattr(LockedTask, "fence_client", client)
    return celery.Celery("test", broker="memory://", set_as_current=False)


def test_a_task_has_its_lease_and_its_own_request(app: celery.Celery, client: Client) -> None:
    @app.task(base=LockedTask, bind=True, lock="orders/{order}/{part}")
    def pay(task: LockedTask, order: str, part: str = "all") -> tuple[str, str, str]:
        task.lease.put(task.lease.lock, "paid")
        return task.lease.lock, task.request.id, client.show(task.lease.lock).state

    for args, kwargs, lock in ((("1",), {}, "1/all"), ((), {"order": "2", "part": "x"}, "2/x")):
        found = pay.apply(args, kwargs, task_id="an-id").get()
        assert found == (f"orders/{lock}", "an-id", "held"), found
    assert pay("3")[0] == "orders/3/all" and client.show("orders/3/all").state == "free"
    with pytest.raises(Invalid, match="no task holds"):
        _ = pay.lease
    with pytest.raises(TypeError):
        pay("1", "2", "3")


def test_a_task_is_retried_if_its_own_lock_is_held(app: celery.Celery, client: Client) -> None:
    attempts = []
    retries = []

    class Counted(LockedTask):
        abstract = True

        def on_retry(self, error: Exception, *_: object) -> None:
            retries.append(str(error))

    @app.task(base=Counted, bind=True, lock="own", max_retries=3)
    def work(task: LockedTask) -> None:
        attempts.append(task.request.retries)
        client.lock("other").acquire()

    other = client.lock("other").acquire()
    with client.lock("own"):
        # An eager task is retried at once.
        with pytest.raises(Contended, match="own"):
            work.apply().get()
    assert attempts == [] and len(retries) == 3 and "own" in retries[0], retries
    with pytest.raises(Contended, match="other"):
        work.apply().get()
    assert attempts == [0] and len(retries) == 3, "the error of the work itself"
    other.release()


def test_a_task_of_another_thread_gets_the_loss_by_its_writes(
    app: celery.Celery, server: FakeServer
) -> None:
    @app.task(base=LockedTask, bind=True, lock="a", lock_interrupts=False)
    def work(task: LockedTask) -> None:
        server.lose(task.lease)
        task.lease.put("a", "late")

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work.apply().result))
    thread.start()
    thread.join()
    assert isinstance(found[0], LeaseLost) and server.value("a") is None


def test_a_job_gets_its_lease_first(server: FakeServer, client: Client) -> None:
    @locked("orders/{order}", wait=0)
    def pay(lease: Any, order: str, amount: int = 1) -> tuple[str, int]:
        """Its name stays."""
        if amount == 0:
            server.lose(lease)
            signal.pause()
        return lease.lock, amount

    assert pay("1", amount=2) == ("orders/1", 2) and pay.__doc__ == "Its name stays."
    with client.lock("orders/1"), pytest.raises(Contended):
        pay(order="1")
    with pytest.raises(LeaseLost):
        pay("1", 0)


def test_what_an_extra_needs_is_what_the_tests_have() -> None:
    text = (ROOT / "client" / "python" / "pyproject.toml").read_text()
    section = text.split("[project.optional-dependencies]\n")[1].split("\n\n")[0]
    extras = dict(line.split(" = ") for line in section.splitlines())
    assert set(extras) == {"redis", "fastapi", "django", "celery", "rq", "pytest"}
    for name, wanted in extras.items():
        requirement = Requirement(wanted.strip('[]"'))
        assert requirement.name == name
        assert requirement.specifier.contains(metadata.version(name))
    assert os.path.exists(ROOT / "client" / "python" / "src" / "fencepost" / "py.typed")
