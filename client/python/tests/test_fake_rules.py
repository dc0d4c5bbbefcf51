"""The fake lock server refuses what the real one does: each test runs at both."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from servers import PATIENCE_S, Site, until

from fencepost.testing import FakeServer


class ByHand:
    """Requests as no client of the package sends them."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=f"{url}/v1/", trust_env=False, timeout=PATIENCE_S)
        self.close = self._http.close

    def post(self, path: str, **body: object) -> tuple[int, Any]:
        """The status, and the code of a refusal or a member that says more."""
        reply = self._http.post(path, json=body)
        found = reply.json()
        said = [found.get("code"), found.get("why"), found.get("reason")]
        return reply.status_code, " ".join(word for word in said if word)

    def acquire(self, lock: str, **body: object) -> tuple[int, Any]:
        return self.post(f"locks/{lock}/acquire", **body)

    def acquire_all(self, locks: list[str], **body: object) -> tuple[int, Any]:
        return self.post("acquire", locks=[{"lock": lock} for lock in locks], **body)

    def until_waiting(self, lock: str) -> None:
        show = f"locks/{lock}"
        until("the waiter", lambda: self._http.get(show).json()["queue_length"] == 1)


@pytest.fixture(params=["real", "fake"])
def by_hand(request: pytest.FixtureRequest, site: Site) -> Iterator[ByHand]:
    with FakeServer() as fake:
        made = ByHand(site.server if request.param == "real" else fake.url)
        yield made
        made.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


INVALID = (400, "invalid-request")
LOST = (410, "lease-lost released")
CONFLICT = (409, "lease-id-conflict")
HELD = (423, "lock-held")


def new_id() -> str:
    return str(uuid.uuid4())


@pytest.mark.parametrize("others", [[], ["b"]])
def test_a_waiter_that_is_released_is_not_granted(
    by_hand: ByHand, pool: ThreadPoolExecutor, name: str, others: list[str]
) -> None:
    first, second = new_id(), new_id()
    by_hand.acquire(name, lease_id=first)
    names = [name, *(f"{name}/{other}" for other in others)]
    wait = {"lease_id": second, "wait_ms": int(PATIENCE_S * 1000)}
    if others:
        waiting = pool.submit(by_hand.acquire_all, names, **wait)
    else:
        waiting = pool.submit(by_hand.acquire, name, **wait)
    by_hand.until_waiting(name)
    status, said = by_hand.post(f"locks/{names[-1]}/release", lease_id=second)
    assert status == 410 and said.startswith("lease-lost")
    assert waiting.result() == LOST
    assert by_hand.post(f"locks/{name}/release", lease_id=first)[0] == 200
    assert by_hand.acquire(names[-1], lease_id=second) == LOST
    assert by_hand.acquire(name)[0] == 200


def test_a_lease_id_is_of_one_owner_also_while_it_waits(
    by_hand: ByHand, pool: ThreadPoolExecutor, name: str
) -> None:
    held, waits = new_id(), new_id()
    by_hand.acquire(name, lease_id=held, owner="one")
    assert by_hand.acquire(name, lease_id=held, owner="other") == CONFLICT
    both = [name, f"{name}/b"]
    assert by_hand.acquire_all(both, lease_id=held, owner="one") == (410, "lease-lost superseded")
    wait_ms = int(PATIENCE_S * 1000)
    waiting = pool.submit(by_hand.acquire, name, lease_id=waits, owner="one", wait_ms=wait_ms)
    by_hand.until_waiting(name)
    for kind in ({}, {"wait_ms": 1000}, {"mode": "shared"}):
        assert by_hand.acquire(name, lease_id=waits, owner="other", **kind) == CONFLICT
    assert by_hand.acquire_all(both, lease_id=waits, owner="other") == CONFLICT
    by_hand.post(f"locks/{name}/release", lease_id=held)
    assert waiting.result()[0] == 200


def test_values_out_of_range_are_refused(by_hand: ByHand, name: str) -> None:
    lease_id = new_id()
    for ttl_ms, expected in ((100, 200), (3_600_000, 200), (99, 400), (3_600_001, 400)):
        assert by_hand.acquire(f"{name}/{ttl_ms}", ttl_ms=ttl_ms)[0] == expected
        assert by_hand.post("sessions", owner="one", ttl_ms=ttl_ms)[0] == expected
    by_hand.acquire(name, lease_id=lease_id)
    assert by_hand.post(f"locks/{name}/renew", lease_id=lease_id, ttl_ms=3_600_001) == INVALID
    for least, expected in ((1, 200), (10**9, 200), (10**14, 400), (10**15 - 1, 400)):
        lock = f"{name}/least/{least}"
        assert by_hand.acquire(lock, min_token=least)[0] == expected
        several = [{"lock": f"{lock}/b", "min_token": least}]
        assert by_hand.post("acquire", locks=several)[0] == expected
    assert by_hand.acquire_all([name, name]) == INVALID


def test_a_takeover_says_of_what_and_by_whom(by_hand: ByHand, name: str) -> None:
    lease_id = new_id()
    own = {"owner": "one", "incarnation": "2"}
    for wrong in (
        {"owner": "one", "takeover": True},
        {"incarnation": "2", "takeover": True},
        {"owner": "one", "incarnation": "", "takeover": True},
        {**own, "takeover": True, "takeover_of": lease_id},
        {**own, "takeover": True, "mode": "shared"},
        {"takeover_of": lease_id},
        {**own, "lease_id": lease_id, "takeover_of": lease_id},
    ):
        assert by_hand.acquire(name, **wrong) == INVALID
    for wrong in ({**own, "takeover": True}, {**own, "takeover_of": lease_id}):
        assert by_hand.acquire_all([name], **wrong) == INVALID


@pytest.mark.parametrize("wait_ms", [0, 50])
def test_a_takeover_takes_or_waits(by_hand: ByHand, name: str, wait_ms: int) -> None:
    def refused(why: str) -> tuple[int, str]:
        return 409, f"takeover-refused {why}"

    may_wait = wait_ms > 0
    own = {"owner": "one", "incarnation": "2", "wait_ms": wait_ms}
    for at, (holder, by_self, by_id) in enumerate(
        [
            ({"owner": "one"}, HELD if may_wait else refused("no-incarnation"), (200, "")),
            (
                {"owner": "other", "incarnation": "1"},
                HELD if may_wait else refused("other-owner"),
                refused("other-owner"),
            ),
            ({"owner": "one", "incarnation": "1"}, (200, ""), (200, "")),
            ({"owner": "one", "incarnation": "2"}, HELD, (200, "")),
            ({"owner": "one", "incarnation": "1", "mode": "shared"}, HELD, HELD),
        ]
    ):
        for takeover, expected in (("self", by_self), ("id", by_id), ("another id", HELD)):
            lock, lease_id = f"{name}/{at}/{takeover.replace(' ', '-')}", new_id()
            by_hand.acquire(lock, lease_id=lease_id, **holder)
            wish: dict[str, object] = {"takeover": True}
            if takeover != "self":
                wish = {"takeover_of": lease_id if takeover == "id" else new_id()}
            assert by_hand.acquire(lock, **own, **wish) == expected, (holder, takeover)
    # The incarnation that lost a lease takes nothing back by itself.
    lock, taker = f"{name}/back", new_id()
    by_hand.acquire(lock, owner="one", incarnation="1")
    by_hand.acquire(lock, **own, takeover=True, lease_id=taker)
    back = {"owner": "one", "incarnation": "1", "wait_ms": wait_ms}
    assert by_hand.acquire(lock, **back, takeover=True) == refused("was-taken-over")
    assert by_hand.acquire(lock, **back, takeover_of=taker) == (200, "")
