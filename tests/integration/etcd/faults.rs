//! The network to etcd at its worst: what was done and not answered is unknown, and the repeat with
//! the same id finds out.

use fence_protocol::Code;
use fence_protocol::wire::lock::EndReason;
use fence_tests::etcd_server::Etcd;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::lease_id;
use fence_tests::servers::Server;
use fence_tests::wait::{soon, until, until_true};
use serde_json::json;

use super::{LOCK_KEY, LONG_MS, answered, granted_soon, lock_server, setup, until_ready};

/// A lock server that reaches etcd through a proxy, and one that reaches it directly.
struct Site {
    etcd: Etcd,
    proxy: FaultProxy,
    hurt: Server,
    well: Server,
}

impl Site {
    async fn start() -> Self {
        let etcd = Etcd::start().await;
        let proxy = FaultProxy::before(&etcd.address()).await;
        let hurt = setup(&format!("etcd://{}", proxy.address())).start().await;
        let well = lock_server(&etcd).await;
        granted_soon(&hurt.locks(), "warm", LONG_MS).await;
        Self { etcd, proxy, hurt, well }
    }

    async fn heal(&self) {
        self.proxy.set(Fault::None);
        self.proxy.cut();
        until_ready(&self.hurt).await;
    }
}

/// The transaction ran, and its reply and all traffic after it were lost: the outcome is unknown,
/// and the retry gets that very grant, whichever server it reaches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_reply_was_lost_is_granted_once() {
    let site = Site::start().await;
    let locks = site.hurt.locks();
    let other = site.well.locks();
    for round in 0..3 {
        let lock = format!("lost/{round}");
        let ask = json!({"lease_id": lease_id(), "ttl_ms": LONG_MS, "owner": "me"});
        site.proxy.set(Fault::DropRepliesAfter(LOCK_KEY));
        let reply = soon("an answer", locks.acquire(&lock, ask.clone())).await;
        reply.problem(Code::OutcomeUnknown);
        // Else the fault did not strike after the grant.
        until_true("the grant", || async { other.show(&lock).await.holder.is_some() }).await;
        site.heal().await;
        let first = answered(|| other.acquire(&lock, ask.clone())).await.lease();
        let again = answered(|| locks.acquire(&lock, ask.clone())).await.lease();
        assert_eq!((first.token, first.lease_id), (again.token, again.lease_id));
        let thief = other.acquire(&lock, json!({"ttl_ms": LONG_MS})).await;
        thief.problem(Code::LockHeld);
        let ended = other.release(&lock, first.lease_id).await.expect(200);
        assert_eq!(ended.json()["token"], json!(first.token));
        let dead = answered(|| locks.acquire(&lock, ask.clone())).await;
        assert_eq!(dead.problem(Code::LeaseLost).extension("reason"), Some("released".to_owned()));
    }
}

/// A lost reply to a read is reported as not done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_reading_is_unavailable() {
    let site = Site::start().await;
    let locks = site.hurt.locks();
    let other = site.well.locks();
    site.proxy.set(Fault::DropReplies);
    let reply = soon("an answer", locks.0.get("/v1/locks/read")).await;
    reply.problem(Code::StoreUnavailable);
    site.heal().await;
    other.grant("read", LONG_MS).await;
}

/// A request that waits is granted, and the reply of the granting transaction is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiters_grant_whose_reply_was_lost_is_granted_once() {
    let site = Site::start().await;
    let locks = site.hurt.locks();
    let other = site.well.locks();
    let held = other.grant("handed", LONG_MS).await;
    let ask = json!({"lease_id": lease_id(), "ttl_ms": LONG_MS, "owner": "me", "wait_ms": LONG_MS});
    let own = locks.clone();
    let asked = ask.clone();
    let waiting = tokio::spawn(async move { own.acquire("handed", asked).await });
    other.queue_of("handed", 1).await;
    site.proxy.set(Fault::DropRepliesAfter(LOCK_KEY));
    other.release("handed", held.lease_id).await.expect(200);
    until_true("the waiter to be granted", || async {
        other.show("handed").await.holder.is_some()
    })
    .await;
    site.heal().await;
    let reply = soon("the waiter's answer", waiting).await.unwrap();
    // The reply is the grant or an unknown outcome; then the retry settles it.
    assert!(matches!(reply.status, 200 | 504), "{reply:?}");
    let again = soon("the repeat", other.acquire("handed", ask)).await.lease();
    assert!(again.token > held.token);
    if reply.status == 200 {
        assert_eq!(reply.lease().token, again.token);
    }
    let state = other.show("handed").await;
    assert_eq!((state.holder.unwrap().lease_id, state.queue_length), (again.lease_id, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_whose_reply_was_lost_is_unknown_and_can_be_repeated() {
    let site = Site::start().await;
    let locks = site.hurt.locks();
    let lease = granted_soon(&locks, "a", LONG_MS).await;
    site.proxy.set(Fault::DropRepliesAfter(LOCK_KEY));
    let reply = soon("an answer", locks.renew("a", lease.lease_id)).await;
    reply.problem(Code::OutcomeUnknown);
    site.heal().await;
    let renewed = answered(|| locks.renew("a", lease.lease_id)).await.lease();
    assert_eq!(renewed.token, lease.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_reply_was_lost_is_unknown_and_the_repeat_learns_it() {
    let site = Site::start().await;
    let locks = site.hurt.locks();
    let other = site.well.locks();
    let lease = granted_soon(&locks, "a", LONG_MS).await;
    site.proxy.set(Fault::DropRepliesAfter(LOCK_KEY));
    let reply = soon("an answer", locks.release("a", lease.lease_id)).await;
    reply.problem(Code::OutcomeUnknown);
    site.heal().await;
    let repeat = answered(|| locks.release("a", lease.lease_id)).await;
    let reason = repeat.problem(Code::LeaseLost).extension("reason");
    assert_eq!(reason, Some("released".to_owned()));
    let history = other.show("a").await.history;
    assert_eq!((history[0].lease_id, history[0].reason), (lease.lease_id, EndReason::Released));
}

/// A client that gave no id cannot retry, so no lease stays behind for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_without_an_id_leaves_no_lease() {
    let site = Site::start().await;
    let locks = site.hurt.locks();
    let other = site.well.locks();
    site.proxy.set(Fault::DropRepliesAfter(LOCK_KEY));
    let reply = soon("an answer", locks.acquire("one", json!({"ttl_ms": 600_000}))).await;
    assert!(matches!(reply.status, 503 | 504), "{}", reply.status);
    // It was granted all the same.
    until_true("the grant", || async { other.show("one").await.holder.is_some() }).await;
    site.heal().await;
    until_true("the lease to be rolled back", || async {
        other.show("one").await.holder.is_none()
    })
    .await;
}

/// If nothing listens, nothing was sent, and so it is certain that nothing was done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_etcd_is_unavailable_and_comes_back() {
    let mut site = Site::start().await;
    let locks = site.well.locks();
    let lease = granted_soon(&locks, "a", LONG_MS).await;
    site.etcd.kill();
    until_true("503", || async {
        let reply = locks.renew("a", lease.lease_id).await;
        assert!(matches!(reply.status, 503 | 504), "{reply:?}");
        if reply.status == 503 {
            reply.problem(Code::StoreUnavailable);
            assert!(!reply.header("retry-after").is_empty());
        }
        reply.status == 503
    })
    .await;
    until_true("readyz to fail", || async { locks.0.get("/readyz").await.status == 503 }).await;
    locks.0.get("/livez").await.expect(200);
    site.etcd.start_again().await;
    until_ready(&site.well).await;
    let renewed = answered(|| locks.renew("a", lease.lease_id)).await.lease();
    assert_eq!(renewed.token, lease.token);
}

/// A connection that is accepted and closed may have delivered the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_connections_are_no_answer() {
    let site = Site::start().await;
    let locks = site.hurt.locks();
    let lease = granted_soon(&locks, "a", LONG_MS).await;
    site.proxy.set(Fault::Refuse);
    let reply = soon("an answer", locks.renew("a", lease.lease_id)).await;
    assert!(matches!(reply.status, 503 | 504), "{reply:?}");
    let reply = soon("an answer", locks.0.get("/v1/locks/a")).await;
    reply.problem(Code::StoreUnavailable);
    site.heal().await;
    let renewed = answered(|| locks.renew("a", lease.lease_id)).await.lease();
    assert_eq!(renewed.token, lease.token);
}

/// A silent etcd and a paused one cost their callers a bounded time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_etcd_is_unknown_in_bounded_time() {
    let site = Site::start().await;
    let locks = site.hurt.locks();
    let lease = granted_soon(&locks, "a", LONG_MS).await;
    site.proxy.set(Fault::Blackhole);
    let reply = soon("an answer", locks.renew("a", lease.lease_id)).await;
    assert!(matches!(reply.status, 503 | 504), "{reply:?}");
    site.heal().await;
    let renewed = answered(|| locks.renew("a", lease.lease_id)).await.lease();
    assert_eq!(renewed.token, lease.token);
    site.etcd.process().pause();
    let reply = soon("an answer", locks.renew("a", lease.lease_id)).await;
    assert!(matches!(reply.status, 503 | 504), "{reply:?}");
    site.etcd.process().resume();
    until_ready(&site.hurt).await;
    let renewed = answered(|| locks.renew("a", lease.lease_id)).await.lease();
    assert_eq!(renewed.token, lease.token);
}

/// The connection, and with it the watch, breaks again and again under those who wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_lose_no_waiter() {
    let site = Site::start().await;
    let locks = site.hurt.locks();
    let other = site.well.locks();
    let first = other.grant("a", LONG_MS).await;
    let own = locks.clone();
    let waiting = tokio::spawn(async move {
        own.acquire("a", json!({"wait_ms": LONG_MS, "ttl_ms": LONG_MS})).await
    });
    other.queue_of("a", 1).await;
    for _ in 0..3 {
        site.proxy.cut();
        until_true("a renewal", || async { locks.renew("a", first.lease_id).await.status == 200 })
            .await;
    }
    // The event that the watch would have reported happens while nothing passes.
    site.proxy.set(Fault::Refuse);
    other.release("a", first.lease_id).await.expect(200);
    site.proxy.set(Fault::None);
    let next = soon("the waiter", waiting).await.unwrap().lease();
    assert!(next.token > first.token);
}

/// A queue position was created, and its reply lost; the caller gets an unknown outcome, and the
/// position holds no other waiter up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_position_whose_reply_was_lost_holds_no_waiter_up() {
    let site = Site::start().await;
    let locks = site.hurt.locks();
    let other = site.well.locks();
    let held = other.grant("a", LONG_MS).await;
    // So that the server knows of the holder, and takes the place at once.
    let wish = json!({"ttl_ms": LONG_MS});
    answered(|| locks.acquire("a", wish.clone())).await.problem(Code::LockHeld);
    site.proxy.set(Fault::DropRepliesAfter(LOCK_KEY));
    let ask = json!({"lease_id": lease_id(), "ttl_ms": LONG_MS, "wait_ms": LONG_MS});
    let reply = soon("an answer", locks.acquire("a", ask)).await;
    assert!(matches!(reply.status, 503 | 504), "{reply:?}");
    // Else the fault did not strike after the place.
    other.queue_of("a", 1).await;
    site.heal().await;
    other.queue_of("a", 0).await;
    other.release("a", held.lease_id).await.expect(200);
    other.grant("a", LONG_MS).await;
}

/// A waiter times out while etcd is unreachable: its position goes when etcd is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_position_that_could_not_be_removed_is_removed_later() {
    let site = Site::start().await;
    let locks = site.hurt.locks();
    let other = site.well.locks();
    let held = other.grant("a", LONG_MS).await;
    let own = locks.clone();
    let waiting = tokio::spawn(async move {
        own.acquire("a", json!({"ttl_ms": LONG_MS, "wait_ms": 10_000})).await
    });
    other.queue_of("a", 1).await;
    site.proxy.set(Fault::Blackhole);
    let reply = soon("an answer", waiting).await.unwrap();
    assert!(matches!(reply.status, 503 | 504), "{reply:?}");
    site.heal().await;
    other.queue_of("a", 0).await;
    other.release("a", held.lease_id).await.expect(200);
    other.grant("a", LONG_MS).await;
}

/// etcd's lease outlives the fencepost lease, so a server that did not grant one reports a cautious
/// TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_elsewhere_gets_no_longer_ttl_than_there_is() {
    let etcd = Etcd::start().await;
    let first = lock_server(&etcd).await;
    let second = lock_server(&etcd).await;
    for round in 0..3 {
        let lock = format!("short/{round}");
        let (granted, again, asked) = until("a retry before the lease has ended", || async {
            let ask = json!({"lease_id": lease_id(), "ttl_ms": 2_100, "owner": "me"});
            let granted = first.locks().acquire(&lock, ask.clone()).await;
            if granted.status != 200 {
                return None;
            }
            // A part of its time is over.
            tokio::time::sleep(std::time::Duration::from_millis(1_050)).await;
            // From here on the reported time counts at the latest, however late the reply is read.
            let asked = tokio::time::Instant::now();
            let again = second.locks().acquire(&lock, ask).await;
            (again.status == 200).then(|| (granted.lease(), again.lease(), asked))
        })
        .await;
        let until = asked + std::time::Duration::from_millis(again.ttl_ms);
        assert_eq!(again.token, granted.token);
        let next = json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS});
        let next = first.locks().acquire(&lock, next).await.lease();
        let early = until.saturating_duration_since(tokio::time::Instant::now());
        // Clocks of three processes, in whole milliseconds.
        assert!(early.as_millis() < 200, "{} was granted {early:?} early", next.token);
    }
}
