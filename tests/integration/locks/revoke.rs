//! Revoking behind a seal: the guards refuse the holder before any other client is granted the
//! lock.

use std::sync::Arc;

use fence_protocol::wire::lock::{EndReason, LockState, RevokedReply};
use fence_protocol::{Code, LeaseId};
use fence_tests::api::{Locks, Reply};
use fence_tests::key_file::{KeyFile, lease_id};
use fence_tests::servers::Setup;
use fence_tests::wait::{soon, until, until_true};
use serde_json::{Value, json};

use super::guards::{FAR, raise, with_guards};
use super::site::{KINDS, Kind, Site, is_done, revoke, revoked, waiting};
use super::witness::Witness;

/// The mark that a guard answered with.
pub(crate) fn mark(reply: &RevokedReply, guard: usize) -> u64 {
    let seal = &reply.guards[guard];
    assert_eq!(seal.problem, None, "{reply:?}");
    seal.mark.expect("a mark").get()
}

fn problem(reply: &RevokedReply, guard: usize) -> &str {
    reply.guards[guard].problem.as_deref().unwrap_or_else(|| panic!("it was sealed: {reply:?}"))
}

async fn lost(reply: Reply, why: &str) {
    let problem = reply.problem(Code::LeaseLost);
    assert_eq!(problem.extension::<EndReason>("reason"), Some(EndReason::Revoked));
    assert_eq!(problem.extension::<String>("why").as_deref(), Some(why), "{problem}");
}

#[tokio::test]
async fn the_holders_writes_are_refused_before_the_next_is_granted() {
    let site = Site::new(Kind::Embedded, 2, &[]).await;
    let locks = site.locks();
    let first = locks.grant("job", 60_000).await;
    site.writes(0, &first).await;
    let next = waiting(&locks, "job");
    locks.queue_of("job", 1).await;
    let reply = revoked(&locks, "job").await;
    let ended = reply.ended.clone().expect("a lease");
    assert_eq!((ended.lease_id, ended.token), (first.lease_id, first.token));
    assert_eq!(ended.reason, EndReason::Revoked);
    let next = next.await.unwrap().lease();
    for guard in 0..2 {
        let mark = mark(&reply, guard);
        assert!(first.token.get() < mark && mark < next.token.get(), "{reply:?}");
        // The next one has not been at any guard yet.
        let fence = site.guards[guard].guard().fence("job").await;
        assert_eq!(fence.mark.map(u64::from), Some(mark));
        site.write(guard, &first).await.problem(Code::StaleToken);
    }
    for guard in 0..2 {
        site.writes(guard, &next).await;
    }
    lost(locks.renew("job", first.lease_id).await, "the worker hangs").await;
    lost(locks.release("job", first.lease_id).await, "the worker hangs").await;
}

/// State that the guard sees while it is being sealed: the holder still holds, and no other client
/// does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_revoked_before_the_guard_has_answered() {
    let guard = Witness::start().await;
    let server = with_guards("memory:", &[&guard.base]).in_process().await;
    let locks = server.locks();
    let first = locks.grant("job", 60_000).await;
    let next = waiting(&locks, "job");
    locks.queue_of("job", 1).await;
    guard.hold();
    let asking = locks.clone();
    let revoking = tokio::spawn(async move { revoked(&asking, "job").await });
    let seal = guard.asked().await;
    for _ in 0..20 {
        let holder = locks.show("job").await.holder.expect("a holder");
        assert_eq!(holder.lease_id, first.lease_id, "revoked before the guard was sealed");
    }
    assert!(!revoking.is_finished() && !next.is_finished());
    guard.answer();
    let reply = soon("the revocation", revoking).await.unwrap();
    assert_eq!(mark(&reply, 0), seal.token.get());
    assert_ne!(seal.lease, first.lease_id);
    assert!(next.await.unwrap().lease().token > seal.token);
}

/// A guard that is dead or stalled is reported, and the lock passes on all the same.
#[tokio::test]
async fn a_guard_that_cannot_be_sealed_is_reported() {
    let mut site = Site::new(Kind::Embedded, 3, &[]).await;
    let locks = site.locks();
    let first = locks.grant("job", 60_000).await;
    site.guards[1].process.kill();
    site.guards[2].process.pause();
    let reply = revoked(&locks, "job").await;
    assert_eq!(reply.ended.as_ref().map(|ended| ended.lease_id), Some(first.lease_id));
    assert!(mark(&reply, 0) > first.token.get());
    let dead = problem(&reply, 1);
    let stalled = problem(&reply, 2);
    assert!(dead.contains("refused"), "{dead}");
    assert!(stalled.contains("no reply within 2000 ms"), "{stalled}");
    assert_eq!(reply.guards[1].guard, site.guards[1].base);
    let next = locks.grant("job", 60_000).await;
    site.write(0, &first).await.problem(Code::StaleToken);
    site.guards[2].process.resume();
    // The seal that was on its way must not shut the next holder out.
    site.writes(2, &next).await;
}

#[tokio::test]
async fn a_guard_that_cannot_be_sealed_refuses_the_revocation_where_that_is_wished() {
    let site = Site::with_socket(Kind::Embedded, 2, &["--revoke-unsealed", "refuse"]).await;
    let locks = site.locks();
    let first = locks.grant("job", 60_000).await;
    site.guards[1].process.pause();
    let refused = locks.revoke("job", "the worker hangs").await;
    let problem = refused.problem(Code::GuardUnsealed);
    assert!(problem.detail.contains(&site.guards[1].base), "{problem}");
    let guards: Value = problem.extension("guards").expect("what each guard said");
    assert!(guards[0]["mark"].is_u64() && guards[1]["problem"].is_string(), "{guards}");
    // Nothing was revoked; the guard that was sealed says no all the same, and the reply says
    // so.
    locks.renew("job", first.lease_id).await.expect(200);
    site.write(0, &first).await.problem(Code::StaleToken);
    assert!(problem.hint.contains("sealed"), "{problem}");
    site.guards[1].process.resume();
    site.guards[1].guard().0.get("/livez").await.expect(200);
    let reply = revoked(&locks, "job").await;
    assert!(mark(&reply, 0) == mark(&reply, 1), "{reply:?}");
    lost(locks.renew("job", first.lease_id).await, "the worker hangs").await;
}

/// Shared leases: one of several goes without a seal, all of them behind one.
#[tokio::test]
async fn one_lease_of_several_is_not_sealed_and_all_of_them_are() {
    let site = Site::new(Kind::Embedded, 1, &["--revoke-unsealed", "refuse"]).await;
    let locks = site.locks();
    let body = json!({"ttl_ms": 60_000, "mode": "shared"});
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(locks.acquire("readers", body.clone()).await.lease());
    }
    // Readers share the guard as long as the lower tokens come first.
    for lease in &leases {
        site.writes(0, lease).await;
    }
    let body = json!({"reason": "the worker hangs", "lease_id": leases[1].lease_id});
    let reply: RevokedReply = revoke(&locks, "readers", body).await.expect(200).read();
    assert_eq!(reply.ended.as_ref().map(|ended| ended.lease_id), Some(leases[1].lease_id));
    assert!(reply.others.is_empty());
    assert!(problem(&reply, 0).contains("other leases"), "{reply:?}");
    site.writes(0, &leases[2]).await;
    lost(locks.renew("readers", leases[1].lease_id).await, "the worker hangs").await;
    let reply = revoked(&locks, "readers").await;
    let ended: Vec<LeaseId> =
        reply.ended.iter().chain(&reply.others).map(|ended| ended.lease_id).collect();
    assert_eq!(ended, [leases[0].lease_id, leases[2].lease_id]);
    assert!(mark(&reply, 0) > leases[2].token.get());
    site.write(0, &leases[2]).await.problem(Code::StaleToken);
    assert_eq!(locks.show("readers").await.state, LockState::Free);
}

/// The only lease of a lock is sealed, however it is named.
#[tokio::test]
async fn the_only_lease_is_sealed_by_its_name_too() {
    let site = Site::new(Kind::Embedded, 1, &[]).await;
    let locks = site.locks();
    let first = locks.grant("job", 60_000).await;
    let body = json!({"reason": "gone", "lease_id": first.lease_id});
    let reply: RevokedReply = revoke(&locks, "job", body.clone()).await.expect(200).read();
    assert!(mark(&reply, 0) > first.token.get());
    site.write(0, &first).await.problem(Code::StaleToken);
    // It has ended, and the next holder is left alone.
    let next = locks.grant("job", 60_000).await;
    lost(revoke(&locks, "job", body).await, "gone").await;
    site.writes(0, &next).await;
    locks.renew("job", next.lease_id).await.expect(200);
}

/// Nothing to revoke: no guard is sealed, and no token is used up.
#[tokio::test]
async fn an_idle_lock_is_not_sealed() {
    let site = Site::new(Kind::Embedded, 1, &[]).await;
    site.locks().revoke("job", "unused").await.problem(Code::NotFound);
    let unknown = json!({"reason": "unused", "lease_id": lease_id()});
    let reply = revoke(&site.locks(), "job", unknown).await;
    assert!(matches!(reply.status, 404 | 410), "{reply:?}");
    assert_eq!(site.guards[0].guard().fence("job").await.mark, None);
    assert_eq!(site.locks().grant("job", 60_000).await.token.get(), 1);
}

/// A service that answers, and refuses nothing, is not sealed.
#[tokio::test]
async fn guards_that_do_not_guard_are_reported() {
    let keys = KeyFile::new("k1", 7);
    let observing = Setup::fenced_store("memory:").keys(&keys.path()).args(&["--mode", "observe"]);
    let observing = observing.start().await;
    let strange = KeyFile::new("k1", 8);
    let strange = Setup::fenced_store("memory:").keys(&strange.path()).start().await;
    let guards = [observing.base.as_str(), strange.base.as_str()];
    let server = with_guards("memory:", &guards).keys(&keys.path()).in_process().await;
    server.locks().grant("job", 60_000).await;
    let reply = revoked(&server.locks(), "job").await;
    assert!(problem(&reply, 0).contains("only observes"), "{reply:?}");
    assert!(problem(&reply, 1).contains("bad-signature"), "{reply:?}");
}

/// A guard has seen a token above the counter: the holder is shut out already, and the next one
/// must not be.
#[tokio::test]
async fn the_next_token_is_above_a_mark_that_was_met() {
    let guard = Setup::fenced_store("memory:").start().await;
    let server = with_guards("memory:", &[&guard.base]).in_process().await;
    let lock = "witness";
    let first = server.locks().grant(lock, 60_000).await;
    raise(&guard, FAR).await;
    let reply = revoked(&server.locks(), lock).await;
    assert_eq!(mark(&reply, 0), FAR);
    assert!(reply.ended.is_some_and(|ended| ended.lease_id == first.lease_id));
    let next = server.locks().grant(lock, 60_000).await;
    assert!(next.token.get() > FAR);
    let write = guard.guard().put(lock, &next.fencing_token, "data").await;
    assert!(is_done(&write), "{write:?}");
}

/// The client that asked for it may go: what was begun is brought to its end.
#[tokio::test]
async fn a_revocation_is_finished_without_its_client() {
    const TRIES: usize = 5;
    let site = Site::new(Kind::Embedded, 1, &[]).await;
    for number in 0..TRIES {
        if is_revoked_without_its_client(&site, format!("job/{number}")).await {
            return;
        }
    }
    panic!("each of {TRIES} revocations was over before its client went");
}

/// Revokes a lock by a client that goes; `false` where the client had its reply before.
async fn is_revoked_without_its_client(site: &Site, lock: String) -> bool {
    let locks = site.locks();
    let first = locks.grant(&lock, 60_000).await;
    site.guards[0].process.pause();
    let asking = locks.clone();
    let named = lock.clone();
    let asked = tokio::spawn(async move { revoked(&asking, &named).await });
    until_true("the request to be there", || async {
        let metrics = locks.0.get("/metrics").await;
        let text = String::from_utf8_lossy(&metrics.body).into_owned();
        // This one, and the one for the metrics; unless it waited for the guard long enough.
        asked.is_finished()
            || text.lines().any(|line| line == "fencepost_http_requests_in_flight 2")
    })
    .await;
    asked.abort();
    let outcome = asked.await;
    until_true("the end of the lease", || async {
        locks.show(&lock).await.state == LockState::Free
    })
    .await;
    site.guards[0].process.resume();
    lost(locks.renew(&lock, first.lease_id).await, "the worker hangs").await;
    outcome.is_err_and(|error| error.is_cancelled())
}

/// The holder goes while the guards are sealed, and another comes: it is revoked too, behind a seal
/// that is above its own token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_comes_in_between_is_revoked_behind_a_seal_of_its_own() {
    let guard = Witness::start().await;
    let server = with_guards("memory:", &[&guard.base]).in_process().await;
    let locks = server.locks();
    let first = locks.grant("job", 60_000).await;
    guard.hold();
    let asking = locks.clone();
    let revoking = tokio::spawn(async move { revoked(&asking, "job").await });
    let seal = guard.asked().await;
    locks.release("job", first.lease_id).await.expect(200);
    let second = locks.grant("job", 60_000).await;
    assert!(second.token > seal.token, "the seal would shut it out");
    guard.answer();
    let again = guard.asked().await;
    assert!(again.token > second.token);
    locks.renew("job", second.lease_id).await.expect(200);
    guard.answer();
    let reply = soon("the revocation", revoking).await.unwrap();
    assert_eq!(reply.ended.as_ref().map(|ended| ended.lease_id), Some(second.lease_id));
    assert_eq!(mark(&reply, 0), again.token.get());
    lost(locks.renew("job", second.lease_id).await, "the worker hangs").await;
}

/// Another client comes to share the lock while one of its leases is revoked by name: only leases
/// from before the seal would be shut out by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_shares_the_lock_later_is_above_the_seal() {
    let guard = Witness::start().await;
    let server = with_guards("memory:", &[&guard.base]).in_process().await;
    let locks = server.locks();
    let shared = json!({"ttl_ms": 60_000, "mode": "shared"});
    let first = locks.acquire("readers", shared.clone()).await.lease();
    guard.hold();
    let asking = locks.clone();
    let lease = first.lease_id;
    let revoking = tokio::spawn(async move {
        revoke(&asking, "readers", json!({"reason": "gone", "lease_id": lease})).await
    });
    let seal = guard.asked().await;
    let second = locks.acquire("readers", shared).await.lease();
    assert!(second.token > seal.token);
    guard.answer();
    let reply: RevokedReply = soon("the revocation", revoking).await.unwrap().expect(200).read();
    assert_eq!(mark(&reply, 0), seal.token.get());
    locks.renew("readers", second.lease_id).await.expect(200);
    lost(locks.renew("readers", first.lease_id).await, "gone").await;
}

/// Holders come and go while the lock is revoked again and again. A holder that is refused by the
/// guard while its lease is live has to learn that it was revoked: none is shut out and left to
/// believe.
async fn holder(locks: Locks, guard: fence_tests::api::Guard, rounds: usize) {
    for round in 0..rounds {
        let body = json!({"ttl_ms": 600_000, "wait_ms": 60_000, "lease_id": lease_id()});
        let lease = locks.acquire("busy", body).await.lease();
        let write = guard.put("busy", &lease.fencing_token, "data").await;
        assert!(is_done(&write) || write.status == 412, "{write:?}");
        if is_done(&write) && round % 2 == 0 {
            let reply = locks.release("busy", lease.lease_id).await;
            assert!(matches!(reply.status, 200 | 410), "{reply:?}");
            continue;
        }
        let lost = until("the end of the lease", || async {
            let reply = locks.renew("busy", lease.lease_id).await;
            (reply.status == 410).then_some(reply)
        });
        assert_eq!(lost.await.json()["reason"], "revoked");
        guard.put("busy", &lease.fencing_token, "late").await.problem(Code::StaleToken);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_holder_is_sealed_out_and_left_to_believe() {
    for kind in KINDS {
        let site = Arc::new(Site::new(kind, 1, &[]).await);
        let holders: Vec<_> = (0..4)
            .map(|_| tokio::spawn(holder(site.locks(), site.guards[0].guard(), 40)))
            .collect();
        let mut ended = 0;
        while !holders.iter().all(tokio::task::JoinHandle::is_finished) {
            let reply = site.locks().revoke("busy", "again").await;
            assert!(matches!(reply.status, 200 | 404 | 503), "{reply:?}");
            ended += usize::from(reply.status == 200);
        }
        for holder in holders {
            holder.await.unwrap();
        }
        assert!(ended >= 80, "{kind:?}: only {ended} were revoked");
        // The next holder is not shut out by a seal that came late.
        let last = site.locks().grant("busy", 60_000).await;
        site.writes(0, &last).await;
    }
}
