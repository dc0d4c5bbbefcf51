//! One member of etcd does not answer, and another does: what was sent to the first may be done.

use fence_protocol::wire::lock::LeaseReply;
use fence_tests::etcd_server::Etcd;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::lease_id;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until_true};
use serde_json::{Value, json};

use super::{LOCK_KEY, LONG_MS, answered, lock_server, setup};

/// A lock server whose first member can be hurt and whose second cannot, and one beside it.
struct Site {
    _etcd: Etcd,
    proxy: FaultProxy,
    hurt: Server,
    well: Server,
}

impl Site {
    async fn start() -> Self {
        let etcd = Etcd::start().await;
        let proxy = FaultProxy::before(&etcd.address()).await;
        let members = format!("etcd://{},{}", proxy.address(), etcd.address());
        let hurt = setup(&members).start().await;
        let well = lock_server(&etcd).await;
        Self { _etcd: etcd, proxy, hurt, well }
    }

    async fn held(&self, lock: &str) -> LeaseReply {
        let ask = json!({"lease_id": lease_id(), "ttl_ms": LONG_MS, "owner": "me"});
        let locks = self.hurt.locks();
        answered(|| locks.acquire(lock, ask.clone())).await.lease()
    }
}

/// A renewal with another time to live puts the keys on new etcd leases. Sent to a member that did
/// it and did not say so, and then to the next, it finds that something has changed: itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_was_done_and_sent_again_keeps_its_lease() {
    let site = Site::start().await;
    let lease = site.held("a").await;
    site.proxy.set(Fault::DropRepliesAfter(LOCK_KEY));
    let ask: Value = json!({"lease_id": lease.lease_id, "ttl_ms": 200_000});
    let renewing = site.hurt.locks();
    let reply = soon("an answer", renewing.try_post("a", "renew", ask)).await.expect("an answer");
    assert!(site.proxy.dropped() > 0, "the fault did not strike");
    assert!(matches!(reply.status, 200 | 504), "{reply:?}");
    // What is ended by mistake is ended beside the answer: it is gone after another request or two.
    let other = site.well.locks();
    for _ in 0..20 {
        let thief = other.acquire("a", json!({"ttl_ms": LONG_MS, "wait_ms": 50})).await;
        assert!(matches!(thief.status, 423 | 503 | 504), "{thief:?}");
    }
    let renewed = answered(|| other.renew("a", lease.lease_id)).await.lease();
    assert_eq!(renewed.token, lease.token);
}

/// The first member hangs for longer than the waiters' places live: the other one keeps them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_keeps_its_place_while_a_member_hangs() {
    let etcd = Etcd::start().await;
    let proxy = FaultProxy::before(&etcd.address()).await;
    let members = format!("etcd://{},{}", proxy.address(), etcd.address());
    // A server that tries one member after the other is late: a queue position lives for six
    // seconds.
    let slow = ["--store-timeout", "8s", "--liveness", "6s"];
    let hurt = Setup::lock_server(&members).args(&slow).start().await;
    let well = lock_server(&etcd).await;
    let locks = well.locks();
    let held = locks.grant("a", LONG_MS).await;
    let waiting = tokio::spawn({
        let locks = hurt.locks();
        let ask = json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS});
        async move { locks.acquire("a", ask).await }
    });
    locks.queue_of("a", 1).await;
    proxy.set(Fault::Blackhole);
    let apart = locks.grant("apart", 14_000).await;
    until_true("twice the time of a place to pass", || async {
        assert_eq!(locks.show("a").await.queue_length, 1, "the place was lost");
        locks.show("apart").await.holder.is_none_or(|now| now.lease_id != apart.lease_id)
    })
    .await;
    locks.release("a", held.lease_id).await.expect(200);
    assert!(soon("the waiter", waiting).await.unwrap().lease().token > held.token);
}
