"""``Client`` over a real lock server and guard."""

from __future__ import annotations

import gc
import math
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from servers import PATIENCE_S, FaultProxy, Site, until

import fencepost
from fencepost import Client, Invalid, LeaseLost, clock, locks


def client(server: str, guard: str, **options: Any) -> Client:
    return Client(server, guard, environment={}, **options)


def is_free(direct: Client, name: str) -> bool:
    return bool(direct.show(name).state == "free")


def test_a_stale_write_is_refused(direct: Client, faulty: Client, name: str) -> None:
    old = faulty.lock(name, ttl=600).acquire()
    old.put(name, "old")
    # Its holder does not notice: the next renewal is minutes away.
    direct.revoke(name, "test")
    with direct.lock(name, ttl=60) as new:
        assert new.token > old.token
        new.put(name, "new")
        with pytest.raises(fencepost.Stale) as refused:
            old.put(name, "late")
        assert refused.value.mark == new.token and not refused.value.retryable
        found = new.get(name)
        assert found is not None and found.body == b"new"
        new.delete(name)
        assert new.get(name) is None


def test_an_acquire_whose_reply_is_lost_is_repeated_with_its_id(
    faulty: Client, proxy: FaultProxy, name: str
) -> None:
    proxy.fault("/acquire", "drop-reply", times=2)
    with faulty.lock(name, ttl=60, patience=PATIENCE_S) as lease:
        bodies = proxy.bodies("/acquire")
        assert len(bodies) == 3
        assert {body["lease_id"] for body in bodies} == {lease.lease_id}


def test_the_deadline_counts_from_before_the_send(
    faulty: Client, proxy: FaultProxy, name: str
) -> None:
    proxy.fault("/acquire", "delay-reply", delay_s=0.3)
    with faulty.lock(name, ttl=60) as lease:
        # A request cannot arrive before it is sent.
        assert proxy.first_at_ms is not None
        assert lease._trust.window.deadline_ms <= proxy.first_at_ms + 48_000
        assert proxy.bodies("/renew") == []


def test_a_grant_that_arrives_worn_is_renewed_before_it_is_used(
    faulty: Client, proxy: FaultProxy, name: str
) -> None:
    grant, renewal = proxy.fault("/acquire", "hold-reply"), proxy.fault("/renew", "hold-reply")
    with ThreadPoolExecutor(1) as threads:
        acquiring = threads.submit(faulty.lock(name, ttl=2, patience=PATIENCE_S).acquire)
        until("the request", lambda: proxy.first_at_ms)
        assert proxy.first_at_ms is not None
        worn_ms = proxy.first_at_ms + 801
        until("half of the trusted time", lambda: clock.now_ms() > worn_ms)
        grant.healed.set()
        until("the renewal", lambda: proxy.bodies("/renew"))
        assert not acquiring.done()
        renewal.healed.set()
        lease = acquiring.result(PATIENCE_S)
    assert lease._trust.window.sent_at_ms > worn_ms


def test_a_waiter_that_is_interrupted_leaves_nothing_held(
    direct: Client, faulty: Client, proxy: FaultProxy, name: str
) -> None:
    hold = proxy.fault("/acquire", "hold-reply")

    def interrupt() -> None:
        until("the grant", lambda: direct.show(name).state == "held")
        # A process that is stopped right now has no thread but this for a signal to the process.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        faulty.lock(name, ttl=60, wait=PATIENCE_S).acquire()
    thread.join()
    until("the release", lambda: is_free(direct, name))
    (acquired,) = proxy.bodies("/acquire")
    assert proxy.bodies("/release")[0]["lease_id"] == acquired["lease_id"]
    hold.healed.set()


def test_the_error_of_the_body_is_not_masked(
    direct: Client, faulty: Client, proxy: FaultProxy, name: str
) -> None:
    with pytest.raises(ZeroDivisionError):
        with faulty.lock(name, ttl=600) as lease:
            direct.revoke(name, "test")
            proxy.fault("/release", "refuse", times=1)
            assert lease.is_live
            raise ZeroDivisionError


@pytest.mark.usefixtures("soon_renewed")
def test_the_error_of_a_body_that_lost_its_lease_is_not_masked(direct: Client, name: str) -> None:
    with pytest.raises(ZeroDivisionError):
        with direct.lock(name, ttl=60) as lease:
            direct.revoke(name, "test")
            assert lease.lost.wait(PATIENCE_S)
            raise ZeroDivisionError


@pytest.mark.usefixtures("soon_renewed")
def test_a_lost_lease_is_raised_by_its_block(direct: Client, name: str) -> None:
    calls: list[LeaseLost] = []
    with pytest.raises(LeaseLost) as lost:
        with direct.lock(name, ttl=60, on_lost=calls.append) as lease:
            direct.revoke(name, "test")
            assert lease.lost.wait(PATIENCE_S)
            with pytest.raises(LeaseLost):
                lease.put(name, "late")
    assert lost.value.reason == "ended" and lost.value.ended_by == "revoked"
    assert lost.value.lost and not lost.value.retryable
    assert [call.ended_by for call in calls] == ["revoked"]


def test_check_looks_at_the_clock_itself(direct: Client, name: str) -> None:
    lease = direct.lock(name, ttl=1).acquire()
    resumed = threading.Event()
    # The thread that renews is stopped: nothing but the clock can say that time has passed.
    direct._background.core().loop.call_soon_threadsafe(resumed.wait)
    until("the deadline", lambda: not lease.is_live)
    assert not resumed.is_set()
    with pytest.raises(LeaseLost) as lost:
        lease.check()
    assert lost.value.reason == "deadline" and lease.remaining == 0
    with pytest.raises(LeaseLost):
        lease.put(name, "late")
    resumed.set()
    # The renewal that runs now does not bring it back.
    until("the renewal thread", lambda: direct.drained(PATIENCE_S))
    assert not lease.is_live


def test_a_child_has_no_lease_of_its_parent(faulty: Client, proxy: FaultProxy, name: str) -> None:
    lease = faulty.lock(name, ttl=60).acquire()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(math.ceil(PATIENCE_S))
        words = []
        for use in (lease.check, lease.release, lambda: lease.put(name, "child")):
            try:
                use()
                words.append("used")
            except LeaseLost as error:
                words.append(error.reason)
        try:
            with faulty.lock(f"{name}/child", ttl=60) as own:
                words.append("own" if own.is_live else "none")
        except BaseException as error:
            words.append(repr(error))
        del lease
        os.write(writing, " ".join(words).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "forked forked forked own"
    os.waitpid(child, 0)
    assert lease.is_live
    assert [body["lease_id"] for body in proxy.bodies("/release")].count(lease.lease_id) == 0
    lease.release()


def test_a_release_that_comes_too_late_is_no_loss_if_the_work_ended_in_time(
    direct: Client, faulty: Client, proxy: FaultProxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "RELEASE_PATIENCE_MS", int(PATIENCE_S * 1_000))
    # Every attempt is refused until the lease has expired at the server.
    refusal = proxy.fault("/release", "refuse", times=1_000)

    def watch() -> None:
        until("a release", lambda: proxy.bodies("/release"))
        until("the expiry", lambda: is_free(direct, name))
        refusal.healed.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with faulty.lock(name, ttl=4):
        pass
    watcher.join()
    assert len(proxy.bodies("/release")) > 1


def test_a_lease_is_used_neither_twice_nor_after_its_release(
    faulty: Client, proxy: FaultProxy, guard_proxy: FaultProxy, name: str
) -> None:
    request = faulty.lock(name, ttl=60)
    with request as lease:
        with pytest.raises(Invalid, match="reentrant"):
            request.__enter__()
    sent = len(proxy.requests)
    for use in (lease.check, lease.release, lambda: lease.put(name, "x"), lease.__enter__):
        with pytest.raises(Invalid, match="released"):
            use()
    assert len(proxy.requests) == sent and guard_proxy.requests == []
    reentrant = faulty.lock(name, ttl=60, reentrant=True)
    with reentrant as outer, reentrant as inner:
        assert inner is outer
    assert is_free(faulty, name)


def test_a_decorated_function_holds_the_lock(direct: Client, name: str) -> None:
    @direct.lock(name, ttl=60)
    def job(value: int) -> tuple[int, str]:
        """Its name stays."""
        return value, direct.show(name).state

    assert job(7) == (7, "held") and job(8) == (8, "held")
    assert is_free(direct, name) and job.__doc__ == "Its name stays."


def test_threads_share_a_client_and_wait_in_turn(direct: Client, name: str) -> None:
    def add() -> None:
        with direct.lock(name, ttl=60, wait=2 * PATIENCE_S) as lease:
            found = lease.get(name)
            lease.put(name, str(int(found.body) + 1 if found else 1))

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with direct.lock(name) as lease:
        found = lease.get(name)
        assert found is not None and found.body == b"8"
    renewing = [thread for thread in threading.enumerate() if "fencepost" in thread.name]
    assert len(renewing) <= 4, "one a client, and never one a lease"


def test_a_contended_lock_says_who_holds_it(direct: Client, name: str) -> None:
    with direct.lock(name, ttl=60) as lease:
        with pytest.raises(fencepost.Contended) as refused:
            direct.lock(name).acquire()
        assert refused.value.holder is not None and refused.value.holder["token"] == lease.token
        assert refused.value.retryable and refused.value.retry_after is not None
        assert refused.value.waited == 0 and "no wait was asked for" in str(refused.value)
        with pytest.raises(fencepost.Contended, match=r"waited \d+\.\d s") as refused:
            direct.lock(name, wait=0.3).acquire()
        assert refused.value.waited == 0.3
        with pytest.raises(fencepost.Contended, match=r"waited \d+\.\d s") as refused:
            direct.election(name).campaign(wait=0.3)
        assert refused.value.waited is not None and refused.value.waited >= 0.3


def test_kinds_of_lock_and_several_at_once(direct: Client, name: str) -> None:
    with direct.lock(name, mode="shared"), direct.lock(name, mode="shared"):
        with pytest.raises(fencepost.Contended):
            direct.lock(name).acquire()
    jobs = f"{name}/jobs"
    with direct.lock(jobs, mode="permit", size=1):
        with pytest.raises(fencepost.Contended):
            direct.lock(jobs, mode="permit", size=1).acquire()
    names = [f"{name}/{part}" for part in ("b", "a")]
    with direct.lock_all(names, ttl=60) as leases:
        assert [lease.lock for lease in leases] == names
        assert leases.fencing_credential.count(".") == 1
        leases.on(names[0]).put(names[0], "1")
        with pytest.raises(fencepost.Contended):
            direct.lock(names[1]).acquire()
    assert all(is_free(direct, each) for each in names)
    for bad in ([], ["a", "a"], "text"):
        with pytest.raises(Invalid):
            direct.lock_all(bad)


@pytest.mark.usefixtures("soon_renewed")
def test_a_session_notices_the_end_of_one_lease(direct: Client, name: str) -> None:
    with direct.session(ttl=60) as session:
        kept, lost = session.lock(f"{name}/a"), session.lock(f"{name}/b")
        direct.revoke(lost.lock, "test")
        assert lost.lost.wait(PATIENCE_S)
        with pytest.raises(LeaseLost) as error:
            lost.put(lost.lock, "late")
        assert error.value.ended_by == "revoked"
        kept.put(kept.lock, "live")
        assert session.is_live
    with pytest.raises(Invalid):
        session.lock(name)
    assert is_free(direct, kept.lock)


def test_a_takeover_needs_a_stable_owner(site: Site, direct: Client, name: str) -> None:
    first = client(site.server, site.guard, owner="worker", incarnation="1")
    held = first.lock(name, ttl=60).acquire()
    second = client(site.server, site.guard, owner="worker", incarnation="2")
    with second.lock(name, ttl=60, takeover=True) as lease:
        assert lease.token > held.token
        with pytest.raises(fencepost.TakeoverRefused) as refused:
            first.lock(name, takeover=True).acquire()
        assert refused.value.why == "was-taken-over"
    nameless = client(site.server, site.guard)
    with pytest.raises(Invalid, match="owner"):
        nameless.lock(name, takeover=True).acquire()
    for each in (first, second, nameless):
        each.close()


def test_conditions_and_repeated_writes(faulty: Client, guard_proxy: FaultProxy, name: str) -> None:
    with faulty.lock(name, ttl=60) as lease:
        guard_proxy.fault("/v1/objects", "drop-reply")
        written = lease.put(name, "1", if_absent=True)
        assert written.replayed and len(guard_proxy.requests) == 2
        with pytest.raises(fencepost.PreconditionFailed) as refused:
            lease.put(name, "2", if_absent=True)
        assert refused.value.etag == written.etag
        assert lease.put(name, "2", if_match=written.etag).etag != written.etag
        with pytest.raises(Invalid):
            lease.put("a//b", "3")


def test_limits_of_the_work_end_the_lease(direct: Client, name: str) -> None:
    with pytest.raises(LeaseLost) as lost:
        with direct.lock(name, ttl=60, max_hold=0.3) as lease:
            assert lease.lost.wait(PATIENCE_S)
    assert lost.value.reason == "held-too-long"
    with direct.lock(name, ttl=60, wait=PATIENCE_S, progress_within=60) as lease:
        lease.progress()
    with direct.lock(name, ttl=60, progress_within=0.3) as lease:
        until("no progress", lambda: not lease.is_live)
        with pytest.raises(LeaseLost, match="no progress"):
            lease.progress()
        lease._trust._is_over = True  # The block is not the subject.


def test_the_end_of_a_limit_is_warned_of(direct: Client, name: str) -> None:
    warnings: list[tuple[str, float]] = []
    limits: dict[str, Any] = {"max_hold": 60, "warn_before": 59.9}
    limits["on_warning"] = lambda reason, left_s: warnings.append((reason, left_s))
    with direct.lock(name, ttl=60, **limits):
        until("the warning", lambda: warnings)
    ((reason, left_s),) = warnings
    assert reason.startswith("it was held") and left_s <= 59.9


def test_an_election_has_one_leader_who_resigns(direct: Client, name: str) -> None:
    election = direct.election(name, ttl=60, metadata={"at": "here"})
    assert election.leader() is None
    changes = election.observe()
    assert next(changes) is None
    with election.campaign(wait=PATIENCE_S) as office:
        leader = next(changes)
        assert leader is not None and leader.token == office.token
        assert leader.owner == "direct" and leader.metadata == {"at": "here"}
        with pytest.raises(fencepost.Contended):
            election.campaign(wait=0)
    assert next(changes) is None
    changes.close()  # type: ignore[attr-defined]


def test_events_arrive_in_order(direct: Client, name: str) -> None:
    with direct.events(name) as events:
        with direct.lock(name):
            pass
        kinds = []
        for event in events:
            kinds.append(event.kind)
            if event.kind == "released":
                break
    assert kinds == ["ready", "granted", "released"] and events.last_id is not None


def test_a_lease_that_is_dropped_is_released(direct: Client, name: str) -> None:
    lease = direct.lock(name, ttl=60).acquire()
    assert lease.is_live
    del lease
    until("the release", lambda: is_free(direct, name))
    other = Client(direct.settings.server, environment={})
    kept = other.lock(name, ttl=60).acquire()
    assert other.close(PATIENCE_S) and is_free(direct, name)
    with pytest.raises(Invalid, match="closed"):
        other.lock(name).acquire()
    del kept


def test_the_close_of_a_client_is_a_loss_to_the_work_of_its_leases(
    site: Site, direct: Client, name: str
) -> None:
    other = client(site.server, site.guard, owner="other")
    losses: list[LeaseLost] = []
    with pytest.raises(LeaseLost) as lost:
        with other.lock(name, ttl=60, on_lost=losses.append) as lease:
            assert other.close(PATIENCE_S) and is_free(direct, name)
            assert lease.lost.wait(PATIENCE_S) and not lease.is_live
    assert [loss.ended_by for loss in losses] == ["released"] == [lost.value.ended_by]


def test_a_lease_keeps_its_session(direct: Client, name: str) -> None:
    names = [f"{name}/a", f"{name}/b"]
    first, second = direct.lock_all(names, ttl=60)
    third = direct.session(ttl=60).lock(f"{name}/c")
    gc.collect()
    first.check(), second.check(), third.check()
    session = third._bound_to
    lost, trust = third.lost, third._trust
    third._bound_to = None
    del session
    gc.collect()
    assert lost.wait(PATIENCE_S), "a dropped session has ended, and its lease is lost"
    assert trust.loss() is not None
    first.release(), second.release()


def test_the_handler_of_a_signal_may_ask_about_a_lease(direct: Client, name: str) -> None:
    asked = 0

    def handler(*_: object) -> None:
        nonlocal asked
        asked += lease.is_live

    with direct.lock(name, ttl=60) as lease:
        before = signal.signal(signal.SIGALRM, handler)
        # The signal comes within the critical section of the thread that it interrupts.
        with lease._trust._lock:
            signal.raise_signal(signal.SIGALRM)
            lease.check()
        signal.signal(signal.SIGALRM, before)
    assert asked == 1


@pytest.mark.usefixtures("soon_renewed")
@pytest.mark.parametrize(
    ("status", "content"),
    [
        (200, b"[" * 100_000),
        (200, b'{"ttl_ms": 1e999}'),
        (200, b'{"ttl_ms": 1' + b"0" * 400 + b"}"),
        (503, b"[" * 100_000),
        (503, b"\xff"),
    ],
)
def test_an_odd_reply_to_a_renewal_is_followed_by_the_next(
    faulty: Client, proxy: FaultProxy, name: str, status: int, content: bytes
) -> None:
    with faulty.lock(name, ttl=60) as lease:
        proxy.fault("/renew", "forge-reply", status=status, content=content)
        until("a renewal behind the odd one", lambda: len(proxy.bodies("/renew")) > 1)
        deadline = lease._trust.window.deadline_ms
        until("its success", lambda: lease._trust.window.deadline_ms > deadline)
        assert lease.is_live


def test_no_proxy_of_the_environment_sees_a_request(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, proxy.url)
    with Client(
        "http://locks.invalid:7420", environment={}, token="secret", insecure_http=True
    ) as far:
        with pytest.raises(fencepost.Unavailable, match="cannot reach"):
            far.lock("a", patience=0).acquire()
    assert proxy.requests == []


def test_a_server_that_is_no_fencepost_is_one_clear_error(site: Site) -> None:
    # The guard has no route of locks; the text names the address.
    with client(site.guard, site.guard) as wrong:
        with pytest.raises(Invalid, match="not-found"):
            wrong.lock("a").acquire()
    with client("http://127.0.0.1:9", site.guard) as nowhere:
        with pytest.raises(fencepost.Unavailable, match=r"cannot reach http://127\.0\.0\.1:9"):
            nowhere.lock("a", patience=0).acquire()
