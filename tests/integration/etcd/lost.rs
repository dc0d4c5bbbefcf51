//! Grants whose answer is lost while their id is asked for again: the one that was told stays.

use std::time::Duration;

use fence_protocol::Code;
use fence_tests::api::{Locks, Reply};
use fence_tests::etcd_server::Etcd;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::lease_id;
use fence_tests::servers::Server;
use fence_tests::wait::{soon, until_true};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{LOCK_KEY, LONG_MS, lock_server, setup, until_ready};

/// A lock server that reaches etcd through a proxy, or through two that are two members to it, and one
/// that reaches it directly.
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
        let (hurt, well) = (setup(&url).start().await, lock_server(&etcd).await);
        hurt.locks().grant("warm", LONG_MS).await;
        Self { proxy, beside, hurt, well, _etcd: etcd }
    }

    /// The first of two members loses its answers from the moment on that these words pass. It is
    /// the one that is asked first.
    async fn lose_at_the_first(&self, words: &'static str) {
        self.beside.set(Fault::Refuse);
        self.hurt.locks().show("warm").await;
        self.beside.set(Fault::None);
        self.proxy.set(Fault::DropRepliesAfter(words));
    }

    async fn heal(&self) {
        self.proxy.set(Fault::None);
        self.proxy.cut();
        until_ready(&self.hurt).await;
    }

    /// Somebody asks the server that is hurt, and the grant is made and not answered.
    async fn granted_unheard(&self, lock: &str, ask: &Value) -> JoinHandle<Reply> {
        self.proxy.set(Fault::DropRepliesAfter(LOCK_KEY));
        let asking = asking(&self.hurt.locks(), lock, ask);
        until_true("the grant", || async { self.well.locks().show(lock).await.holder.is_some() })
            .await;
        asking
    }

    /// It is this one's lease still, also after a moment, and nobody else's.
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
    let (locks, lock, ask) = (locks.clone(), lock.to_owned(), ask.clone());
    tokio::spawn(async move { locks.acquire(&lock, ask).await })
}

fn own(extra: Value) -> Value {
    let mut ask = json!({"lease_id": lease_id(), "ttl_ms": LONG_MS, "owner": "me"});
    let fields = ask.as_object_mut().unwrap();
    fields.extend(extra.as_object().cloned().unwrap_or_default());
    ask
}

/// A client loses its patience with one server and repeats its request at another. What the first one
/// still does for it takes nothing away, whether it leaves before or after it was answered elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_does_not_end_its_own_grant() {
    let site = Site::start(1).await;
    for leaves_first in [false, true] {
        let (lock, ask) = (format!("left/{leaves_first}"), own(json!({})));
        let asking = site.granted_unheard(&lock, &ask).await;
        if leaves_first {
            asking.abort();
        }
        let told = site.well.locks().acquire(&lock, ask.clone()).await.lease();
        asking.abort();
        site.stays(&lock, told.token.get(), &ask).await;
        site.heal().await;
        site.stays(&lock, told.token.get(), &ask).await;
    }
}

/// The ordinary reconnect: a waiter is granted the lock, its server does not hear of it, and another
/// server tells the repeat before the first one reads back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiters_grant_that_was_told_elsewhere_is_not_taken_back() {
    let site = Site::start(1).await;
    let (lock, other) = ("handed", site.well.locks());
    let held = other.grant(lock, LONG_MS).await;
    let ask = own(json!({"wait_ms": LONG_MS}));
    let waiting = asking(&site.hurt.locks(), lock, &ask);
    other.queue_of(lock, 1).await;
    site.proxy.set(Fault::DropRepliesAfter(LOCK_KEY));
    other.release(lock, held.lease_id).await.expect(200);
    until_true("the grant", || async { other.show(lock).await.holder.is_some() }).await;
    let told = soon("the repeat", other.acquire(lock, ask.clone())).await.lease();
    site.heal().await;
    let first = soon("the first answer", waiting).await.unwrap();
    // It is told of the same lease, or that nobody knows.
    assert!(matches!(first.status, 200 | 504), "{first:?}");
    if first.status == 200 {
        assert_eq!(first.lease().token, told.token);
    }
    site.stays(lock, told.token.get(), &ask).await;
}

/// One member's answer is lost, and another one can be asked: what was done is told as done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_member_did_unheard_is_learnt_from_another() {
    let site = Site::start(2).await;
    let (locks, other) = (site.hurt.locks(), site.well.locks());
    let (ask, waits) = (own(json!({})), own(json!({"wait_ms": LONG_MS})));
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

/// What one member did is done, whatever others did after it and before another member was asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_done_unheard_stays_done_whatever_comes_after() {
    let site = Site::start(2).await;
    let (locks, other) = (site.hurt.locks(), site.well.locks());
    let held = locks.grant("a", LONG_MS).await;
    site.lose_at_the_first(LOCK_KEY).await;
    let releasing = tokio::spawn({
        let (locks, lease_id) = (locks.clone(), held.lease_id);
        async move { locks.release("a", lease_id).await }
    });
    let next = other.acquire("a", json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS})).await.lease();
    assert!(!releasing.is_finished(), "the reply was not lost");
    other.renew("a", next.lease_id).await.expect(200);
    soon("the release", releasing).await.unwrap().expect(200);
    assert!(site.proxy.dropped() > 0, "no answer was lost");
}
