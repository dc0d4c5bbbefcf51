//! Grants whose reply is lost while their id is retried: the grant that was reported stays.

use std::time::Duration;

use fence_protocol::Code;
use fence_tests::api::{Locks, Reply};
use fence_tests::etcd_server::Etcd;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::lease_id;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until_true};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{LOCK_KEY, LONG_MS, answered, granted_soon, lock_server, until_ready};

/// A lock server that reaches etcd through a proxy, or through two that are two members to it, and
/// one that reaches it directly.
struct Site {
    proxy: FaultProxy,
    beside: FaultProxy,
    hurt: Server,
    well: Server,
    _etcd: Etcd,
}

impl Site {
    async fn start(members: usize) -> Self {
        let etcd = Etcd::start().await;
        let proxy = FaultProxy::before(&etcd.address()).await;
        let beside = FaultProxy::before(&etcd.address()).await;
        let both = [proxy.address(), beside.address()];
        let url = format!("etcd://{}", both[..members].join(","));
        // With two members there is a reply to every request, and a busy machine may be slow.
        let timeout = ["3s", "6s"][members - 1];
        let setup = Setup::lock_server(&url).args(&["--store-timeout", timeout]);
        let hurt = setup.start().await;
        let well = lock_server(&etcd).await;
        granted_soon(&hurt.locks(), "warm", LONG_MS).await;
        Self { proxy, beside, hurt, well, _etcd: etcd }
    }

    /// The first of two members loses its answers from the moment on that these words pass. It is
    /// the one that is asked first.
    async fn lose_at_the_first(&self, words: &'static str) {
        self.beside.set(Fault::Refuse);
        let locks = self.hurt.locks();
        answered(|| locks.0.get("/v1/locks/warm")).await.expect(200);
        self.beside.set(Fault::None);
        self.proxy.set(Fault::DropRepliesAfter(words));
    }

    async fn heal(&self) {
        self.proxy.set(Fault::None);
        self.proxy.cut();
        until_ready(&self.hurt).await;
    }

    /// Sends a request to the cut-off server, whose grant is made without a reply.
    async fn granted_unseen(&self, lock: &str, ask: &Value) -> JoinHandle<Reply> {
        self.proxy.set(Fault::DropRepliesAfter(LOCK_KEY));
        let asking = asking(&self.hurt.locks(), lock, ask);
        until_true("the grant", || async { self.well.locks().show(lock).await.holder.is_some() })
            .await;
        asking
    }

    /// Asserts that the lease is this caller's still, also after a moment, and of no other.
    async fn stays(&self, lock: &str, token: u64, ask: &Value) {
        let other = self.well.locks();
        for _ in 0..5 {
            let holder = other.show(lock).await.holder.expect("a holder");
            assert_eq!(json!(holder.lease_id), ask["lease_id"]);
            other.acquire(lock, json!({"ttl_ms": LONG_MS})).await.problem(Code::LockHeld);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let again = other.acquire(lock, ask.clone()).await.lease();
        assert_eq!(again.token.get(), token);
    }
}

fn asking(locks: &Locks, lock: &str, ask: &Value) -> JoinHandle<Reply> {
    let locks = locks.clone();
    let lock = lock.to_owned();
    let ask = ask.clone();
    tokio::spawn(async move { locks.acquire(&lock, ask).await })
}

fn own(extra: Value) -> Value {
    let mut ask = json!({"lease_id": lease_id(), "ttl_ms": LONG_MS, "owner": "me"});
    let fields = ask.as_object_mut().unwrap();
    fields.extend(extra.as_object().cloned().unwrap_or_default());
    ask
}

/// A client loses its patience with one server and repeats its request at another. What the first
/// one still does for it takes nothing away, whether it leaves before or after it was answered
/// elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_does_not_end_its_own_grant() {
    let site = Site::start(1).await;
    for leaves_first in [false, true] {
        let lock = format!("left/{leaves_first}");
        let ask = own(json!({}));
        let asking = site.granted_unseen(&lock, &ask).await;
        if leaves_first {
            asking.abort();
        }
        let reported = site.well.locks().acquire(&lock, ask.clone()).await.lease();
        asking.abort();
        site.stays(&lock, reported.token.get(), &ask).await;
        site.heal().await;
        site.stays(&lock, reported.token.get(), &ask).await;
    }
}

/// The ordinary reconnect: a waiter is granted the lock, its server misses the event, and another
/// server replies to the retry before the first one reads back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiters_grant_that_was_reported_elsewhere_is_not_rolled_back() {
    let site = Site::start(1).await;
    let lock = "handed";
    let other = site.well.locks();
    let held = other.grant(lock, LONG_MS).await;
    let ask = own(json!({"wait_ms": LONG_MS}));
    let waiting = asking(&site.hurt.locks(), lock, &ask);
    other.queue_of(lock, 1).await;
    site.proxy.set(Fault::DropRepliesAfter(LOCK_KEY));
    other.release(lock, held.lease_id).await.expect(200);
    until_true("the grant", || async { other.show(lock).await.holder.is_some() }).await;
    let reported = soon("the repeat", other.acquire(lock, ask.clone())).await.lease();
    site.heal().await;
    let first = soon("the first answer", waiting).await.unwrap();
    // The reply is the same lease or an unknown outcome.
    assert!(matches!(first.status, 200 | 504), "{first:?}");
    if first.status == 200 {
        assert_eq!(first.lease().token, reported.token);
    }
    site.stays(lock, reported.token.get(), &ask).await;
}

/// One member's reply is lost, and another one can be read: the write is reported as done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_reply_was_lost_is_learnt_from_another_member() {
    let site = Site::start(2).await;
    let locks = site.hurt.locks();
    let other = site.well.locks();
    let ask = own(json!({}));
    let waits = own(json!({"wait_ms": LONG_MS}));
    site.lose_at_the_first(LOCK_KEY).await;
    let granted = soon("the grant", locks.acquire("a", ask.clone())).await.lease();
    site.stays("a", granted.token.get(), &ask).await;
    site.heal().await;

    site.lose_at_the_first(LOCK_KEY).await;
    let waiting = asking(&locks, "a", &waits);
    other.queue_of("a", 1).await;
    site.heal().await;

    site.lose_at_the_first(LOCK_KEY).await;
    let renewed = soon("the renewal", locks.renew("a", granted.lease_id)).await.lease();
    assert_eq!(renewed.token, granted.token);
    site.heal().await;

    site.lose_at_the_first(LOCK_KEY).await;
    soon("the release", locks.release("a", granted.lease_id)).await.expect(200);
    assert_eq!(other.show("a").await.history[0].lease_id, granted.lease_id);
    let next = soon("the waiter", waiting).await.unwrap().lease();
    site.stays("a", next.token.get(), &waits).await;
    assert!(site.proxy.dropped() > 0, "no answer was lost");
}

/// A write that one member committed is done, whatever others wrote after it and before another
/// member was read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_reply_was_lost_stays_done_whatever_comes_after() {
    let site = Site::start(2).await;
    let locks = site.hurt.locks();
    let other = site.well.locks();
    let held = granted_soon(&locks, "a", LONG_MS).await;
    site.lose_at_the_first(LOCK_KEY).await;
    let releasing = tokio::spawn({
        let locks = locks.clone();
        let lease_id = held.lease_id;
        async move { locks.release("a", lease_id).await }
    });
    let next = other.acquire("a", json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS})).await.lease();
    other.renew("a", next.lease_id).await.expect(200);
    soon("the release", releasing).await.unwrap().expect(200);
    assert!(site.proxy.dropped() > 0, "no answer was lost");
}
