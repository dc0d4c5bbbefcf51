"""What ``Client`` shows, says and refuses, over a real lock server and guard."""

from __future__ import annotations

import threading

import pytest
from servers import PATIENCE_S, FaultProxy, Site, until

import fencepost
from fencepost import Client, Invalid, LockState


def test_a_lock_is_shown_with_types(direct: Client, name: str) -> None:
    assert direct.show(name) == LockState(
        name, "free", None, (), 0, None, None, 0, (), (), (), (), raw={}
    )
    permit = {"mode": "permit", "size": 2, "ttl": 60}
    with direct.lock(name, metadata={"job": 7}, **permit) as first, direct.lock(name, **permit):
        next_one = direct.lock(name, wait=PATIENCE_S, **permit)
        kept: list[fencepost.Lease] = []
        waiting = threading.Thread(target=lambda: kept.append(next_one.acquire()))
        waiting.start()
        until("a waiter", lambda: direct.show(name).queue)
        shown = direct.show(name)
        assert shown.state == "held" and shown.lease_count == shown.size == 2
        assert shown.holder is not None and shown.holder.token == first.token
        assert shown.holder.metadata == {"job": 7} and shown.holder.lease_id == first.lease_id
        assert shown.holder.mode == "permit" and shown.holder.ttl_ms == 60_000
        assert [each.owner for each in shown.also_held] == ["direct"]
        assert [each.mode for each in shown.queue] == ["permit"] and shown.queue_length == 1
        assert {"granted"} <= {event.kind for event in shown.events}
        assert shown.raw["state"] == "held"
        first.release()
        waiting.join()
    revoked = direct.revoke(name, "by the test")
    assert [lease.reason for lease in revoked.leases] == ["revoked"] and not revoked.delay_lifted
    ended = direct.show(name).history
    assert ended[0].why == "by the test" and ended[-1].reason == "released"
    assert ended[-1].token == first.token and revoked.raw["lock"] == name
    with pytest.raises(Invalid, match="not held"):
        direct.revoke(name, "again")


def test_held_locks_are_listed_page_by_page(direct: Client, name: str) -> None:
    with direct.lock_all([f"{name}/{part}" for part in "abc"]) as leases:
        page = direct.locks(f"{name}/", limit=2)
        assert [each.token for each in page] == [lease.token for lease in leases][:2]
        rest = direct.locks(f"{name}/", after=page.next_after)
        assert [each.lock for each in rest] == [f"{name}/c"] and rest.next_after is None
        assert rest.locks[0].owner == "direct" and rest.locks[0].expires_in_ms <= 15_000


@pytest.mark.parametrize(
    "content", [b"{}", b'{"lock":1}', b'{"lock":"a","state":"held","queue_length":true}']
)
def test_a_reply_that_shows_no_lock_is_one_error(
    faulty: Client, proxy: FaultProxy, name: str, content: bytes
) -> None:
    proxy.fault("/v1/locks", "forge-reply", content=content)
    with pytest.raises(fencepost.InternalError, match="the reply of the server has no"):
        faulty.show(name)


def test_a_value_of_another_type_is_not_sent(
    direct: Client, guard_proxy: FaultProxy, name: str
) -> None:
    other = Client(direct.settings.server, guard_proxy.url, environment={})
    with other, other.lock(name, ttl=60) as lease:
        for wrong in ({"x": 1}, 5):
            with pytest.raises(Invalid, match="write bytes or str"):
                lease.put(name, wrong)  # type: ignore[arg-type]
    assert guard_proxy.requests == []


def test_only_a_guard_says_that_an_object_is_absent(
    site: Site, direct: Client, faulty: Client, guard_proxy: FaultProxy, name: str
) -> None:
    with direct.lock(name, ttl=60) as lease:
        assert lease.get(name) is None
    # A lock server, and a guard under a path too many, have no such path.
    for guard in (site.server, f"{site.server}/x", f"{site.guard}/x"):
        with Client(site.server, guard, environment={}) as other, other.lock(name) as lease:
            with pytest.raises(Invalid, match="answers, but not as a guard") as refused:
                lease.get(name)
            assert guard in str(refused.value) and "Check the guard's URL" in str(refused.value)
            assert (refused.value.code, refused.value.status) == ("not-found", 404)
    content = b'{"code":"not-found","detail":"d","hint":"h","retryable":false}'
    with faulty.lock(name, ttl=60) as lease:
        guard_proxy.fault("/v1/objects", "forge-reply", status=503, content=content)
        with pytest.raises(Invalid, match="not as a guard: it replied 503: d"):
            lease.get(name)
        # An object has a tag.
        guard_proxy.fault("/v1/objects", "forge-reply", content=b"<html>")
        with pytest.raises(Invalid, match="not as a guard: it replied 200 without ETag: '<html>'"):
            lease.get(name)
        assert lease.get(name) is None


def test_requests_are_not_logged_at_info(
    direct: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with direct.lock(name, ttl=60) as lease:
        lease.put(name, "1")
    assert caplog.records == []
