//! The network between three nodes is split: one node, with one lock server, is cut off from the
//! other two, which have another one. The side with a majority continues, and the other one grants
//! nothing.

use std::sync::Arc;

use fence_protocol::wire::lock::LeaseReply;
use fence_tests::api::Locks;
use fence_tests::checks::{one_grant_an_id, overlaps, tokens_rise};
use fence_tests::etcd_server::EtcdNetwork;
use fence_tests::history::{Granted, History};
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until, until_true};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::believers::{acquire_recorded, the_guard_fences};
use super::{LONG_MS, until_ready};

/// Number of grants of a side that show that it continues.
const ENOUGH: usize = 5;
/// Number of refusals of the other side, each of which takes a time-out of its etcd.
const REFUSALS: usize = 2;
/// Between two requests of one side, in milliseconds.
const PAUSE_MS: u64 = 20;

/// A side: its lock server, and a client that acquires one lock after the other.
struct Side {
    server: Server,
    name: &'static str,
    asking: JoinHandle<()>,
    stop: CancellationToken,
    history: Arc<History>,
}

impl Side {
    async fn start(url: &str, name: &'static str, history: &Arc<History>) -> Self {
        let server = Setup::lock_server(url).args(&["--store-timeout", "500ms"]).start().await;
        let stop = CancellationToken::new();
        let history = history.clone();
        let asking = keep_asking(server.locks(), name, history.clone(), stop.clone());
        Self { server, name, asking: tokio::spawn(asking), stop, history }
    }

    fn locks(&self) -> Locks {
        self.server.locks()
    }

    /// Its grants that were asked for and answered within this time.
    fn grants(&self, from_ns: u64, to_ns: u64) -> Vec<Granted> {
        let mut grants = self.history.grants();
        grants.retain(|grant| {
            grant.lock.starts_with(self.name)
                && (from_ns..to_ns).contains(&grant.span.invoked_ns)
                && grant.span.returned_ns < to_ns
        });
        grants
    }

    async fn grants_enough(&self) {
        let from_ns = self.history.now_ns();
        until_true("a side to grant", || async {
            assert!(!self.asking.is_finished(), "the client panicked; see above");
            self.grants(from_ns, u64::MAX).len() >= ENOUGH
        })
        .await;
    }

    async fn stop(self) {
        self.stop.cancel();
        soon("an end", self.asking).await.expect("no panic");
    }
}

async fn keep_asking(locks: Locks, name: &str, history: Arc<History>, stop: CancellationToken) {
    let mut number = 0;
    while !stop.is_cancelled() {
        number += 1;
        let lock = format!("{name}/{number}");
        let reply = acquire_recorded(&locks, &history, &lock, json!({"ttl_ms": LONG_MS})).await;
        assert!(matches!(reply.status, 200 | 503 | 504), "{reply:?}");
        tokio::time::sleep(std::time::Duration::from_millis(PAUSE_MS)).await;
    }
}

/// The few and the many, on one etcd.
struct Site {
    network: EtcdNetwork,
    /// The node of the few.
    lonely: usize,
    few: Side,
    many: Side,
    history: Arc<History>,
}

impl Site {
    /// Starts both sides; `is_leader` is whether the node that is going to be cut off leads.
    async fn start(is_leader: bool) -> Self {
        let network = EtcdNetwork::start(3).await;
        let history = Arc::new(History::new());
        let leader = network.cluster().leader().await;
        let lonely = if is_leader { leader } else { (leader + 1) % 3 };
        let pair = [(lonely + 1) % 3, (lonely + 2) % 3].map(|node| network.node(node).address());
        let few = Side::start(&network.node(lonely).url(), "few", &history).await;
        let many = Side::start(&format!("etcd://{}", pair.join(",")), "many", &history).await;
        Self { network, lonely, few, many, history }
    }

    async fn both_grant(&self) {
        self.few.grants_enough().await;
        self.many.grants_enough().await;
    }

    /// The minority's client is refused or gets an unknown outcome, while the majority's is
    /// granted.
    async fn only_the_many_go_on(&self, held: &LeaseReply) {
        for _ in 0..REFUSALS {
            self.many.grants_enough().await;
            let locks = self.few.locks();
            let lock = held.lock.as_str();
            let (acquired, renewed) =
                tokio::join!(locks.acquire("free", json!({})), locks.renew(lock, held.lease_id));
            for reply in [acquired, renewed] {
                assert!(matches!(reply.status, 503 | 504), "{reply:?}");
            }
        }
        assert_eq!(self.few.locks().0.get("/readyz").await.status, 503);
        until_ready(&self.many.server).await;
    }

    /// Asserts what holds of the whole run.
    async fn judge(self) {
        self.few.stop().await;
        self.many.stop().await;
        let grants = self.history.grants();
        tokens_rise(&grants).unwrap();
        one_grant_an_id(&grants).unwrap();
        assert_eq!(overlaps(&grants), Vec::<String>::new());
    }
}

/// Cuts off the leader, or another node.
async fn split(is_leader: bool) {
    let site = Site::start(is_leader).await;
    let kept = until_granted(&site.few, "kept", json!({"ttl_ms": LONG_MS})).await;
    let short = until_granted(&site.few, "short", json!({"ttl_ms": 2_000})).await;
    site.both_grant().await;

    site.network.cut_off(site.lonely);
    let cut_ns = site.history.now_ns();
    // What was granted on the side of the few ends by etcd's time.
    let wait = json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS});
    let next = until_granted(&site.many, "short", wait).await;
    assert!(next.token > short.token);
    site.only_the_many_go_on(&kept).await;
    let healed_ns = site.history.now_ns();
    assert_eq!(site.few.grants(cut_ns, healed_ns).len(), 0, "the few were granted something");
    site.network.heal();

    until_ready(&site.few.server).await;
    site.both_grant().await;
    let renewed = until("a renewal", || async {
        let reply = site.few.locks().renew("kept", kept.lease_id).await;
        (!matches!(reply.status, 503 | 504)).then(|| reply.lease())
    });
    assert_eq!(renewed.await.token, kept.token);
    site.judge().await;
    the_guard_fences(&short, &next).await;
}

/// A grant of a side, as soon as there is one.
async fn until_granted(side: &Side, lock: &str, body: Value) -> LeaseReply {
    until("a grant", || async {
        let reply = acquire_recorded(&side.locks(), &side.history, lock, body.clone()).await;
        (reply.status == 200).then(|| reply.lease())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_grants_nothing() {
    split(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_is_cut_off_grants_nothing() {
    split(false).await;
}
