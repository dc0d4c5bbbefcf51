"""``fencepost.testing``: it keeps the contract of the real servers, and a test can use it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from scenario_player import Player, hosted, scenarios
from servers import PATIENCE_S, until

import fencepost
from fencepost import Client, LeaseLost, token
from fencepost.locks import Grant
from fencepost.redis import LeasePool
from fencepost.testing import FakeServer
from fencepost.transport import Unusable


class _Plain(BaseHTTPRequestHandler):
    """A web server that is no Fencepost."""

    def do_GET(self) -> None:
        page = b"<html>Welcome to another program</html>"
        self.send_response(200)
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def plain() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Plain)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_every_scenario_without_a_fault_passes(plain: str) -> None:
    meant = scenarios()
    assert len(meant) > 40
    failed = {}
    with hosted() as driver, hosted("--sync") as rival, ThreadPoolExecutor(12) as pool:

        def play(name: str) -> None:
            Player((driver, rival), plain).play(meant[name])

        playing = {name: pool.submit(play, name) for name in meant}
        for name, done in playing.items():
            if done.exception() is not None:
                failed[name] = done.exception()
    assert failed == {}


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


def test_a_lease_is_lost_when_the_test_says_so(server: FakeServer) -> None:
    with server.client(owner="one") as client:
        with pytest.raises(LeaseLost) as lost:
            with client.lock("a", ttl=600) as lease:
                server.lose(lease)
                assert lease.lost.is_set() and not lease.is_live
        assert lost.value.ended_by == "revoked"
        assert client.show("a").history[0].why == "by the test"

    async def work() -> None:
        async with server.async_client() as client:
            with pytest.raises(LeaseLost):
                async with client.lock("a", ttl=600) as lease:
                    server.lose(lease)
                    await asyncio.sleep(600)

    asyncio.run(work())


def test_an_expired_holder_writes_in_vain(server: FakeServer) -> None:
    with server.client() as client:
        old = client.lock("a", ttl=600).acquire()
        old.put("a", "old")
        server.expire("a")
        with client.lock("a", ttl=600) as new:
            new.put("a", "new")
            with pytest.raises(fencepost.Stale) as refused:
                old.put("a", "late")
            assert refused.value.mark == new.token
        assert server.value("a") == b"new" and server.value("b") is None
        assert [event.data["token"] for event in client.show("a").refusals] == [old.token]
        with pytest.raises(fencepost.Invalid, match="token-required"):
            client.get("a")
    with FakeServer(lock_of=lambda key: key.split("/")[0], allow_unfenced_reads=True) as other:
        with other.client() as client, client.lock("a") as lease:
            lease.put("a/part", "1")
            found = client.get("a/part")
            assert found is not None and found.body == b"1"


def test_waiters_get_it_in_order_and_a_release_ends_no_other_lease(server: FakeServer) -> None:
    alice, bob, carol = (server.client(owner=owner) for owner in ("alice", "bob", "carol"))
    with alice, bob, carol, ThreadPoolExecutor(2) as pool:
        old = alice.lock("a", ttl=600).acquire()
        waiting = []
        for client in (bob, carol):
            request = client.lock("a", ttl=600, wait=PATIENCE_S)
            waiting.append(pool.submit(request.acquire))
            until("the waiter", lambda: alice.show("a").queue_length == len(waiting))
        server.expire("a")
        with pytest.raises(LeaseLost):
            old.release()
        holder = alice.show("a").holder
        assert holder is not None and holder.owner == "bob"
        second = waiting[0].result()
        second.release()
        assert old.token < second.token < waiting[1].result().token


def test_what_is_not_renewed_expires(server: FakeServer) -> None:
    with httpx.Client(base_url=f"{server.url}/v1/", trust_env=False) as by_hand:

        def post(path: str, **body: object) -> Any:
            # A client would renew.
            return by_hand.post(path, json={"owner": "gone", **body}).json()

        def token_of_a_session() -> int | None:
            # Another one, if the first has expired by now.
            session = post("sessions", ttl_ms=300)["session_id"]
            return post("locks/b/acquire", session_id=session).get("token")

        tokens = [post("locks/a/acquire", ttl_ms=300)["token"]]
        tokens.append(until("a lease of a session", token_of_a_session))
    with server.client() as client:
        for lock in ("a", "b"):
            with client.lock(lock, wait=PATIENCE_S) as lease:
                assert lease.token > max(tokens)
        assert client.show("a").history[-1].reason == "expired"
        assert client.show("b").history[-1].reason == "session-ended"


def test_a_client_of_the_environment_finds_it(server: FakeServer) -> None:
    with Client(environment=server.environment) as client, client.lock("a") as lease:
        assert [each.lock for each in client.locks()] == ["a"] and lease.token == 1
    server.close()
    with Client(environment=server.environment) as client:
        with pytest.raises(fencepost.Unavailable):
            client.lock("a", patience=0).acquire()


def test_no_representation_shows_a_credential(server: FakeServer) -> None:
    with server.client(token="s3cret-word") as client:
        request = client.lock("a", ttl=600)
        lease = request.acquire()
        leases, session = client.lock_all(["b", "c"]), client.session()
        parsed = token.parse(lease.fencing_token)
        pool, core = LeasePool(lease, port=1), client._background.core()
        shown = [client, client.settings, request, lease, lease._fence, lease._fence.grant, leases]
        shown += [session, session._held, core, core.locks, client.show("a"), client.locks(), pool]
        shown += [pool.credentials, pool.make_connection(), lease.put("a", "1"), lease.get("a")]
        signature = lease.fencing_token.split("sig=:")[1][:16]
        secrets = [lease.fencing_token, lease.fencing_credential[:40], signature, "s3cret-word"]
        texts = [repr(parsed), *(f"{each} {each!r}" for each in shown)]
        reply = {"lock": "a", "token": 0, "fencing_token": lease.fencing_token}
        with pytest.raises(Unusable) as refused:
            Grant.of(reply, "a", lease.lease_id)
        texts.append(str(refused.value))
        assert [text for text in texts if any(secret in text for secret in secrets)] == []
