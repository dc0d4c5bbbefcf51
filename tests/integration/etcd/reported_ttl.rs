//! The TTL that a holder receives is never more than there is: the next holder is granted after it,
//! whatever happened to etcd and to the servers between.

use std::time::Duration;

use fence_protocol::wire::lock::LeaseReply;
use fence_tests::api::{Locks, Reply};
use fence_tests::etcd_server::Etcd;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::lease_id;
use fence_tests::servers::{Server, Setup};
use fence_tests::session_client::Sessions;
use fence_tests::wait::{soon, until, until_true};
use serde_json::json;
use tokio::time::Instant;

use super::{LOCK_KEY, LONG_MS, lock_server, until_ready};

/// Clocks of three processes, in whole milliseconds. A reported TTL that is wrong is so by more
/// than a second in each of these tests.
const INEXACT_MS: u64 = 200;

/// Time to live that another server gives a lease: far less than it had.
const SHORTER_MS: u64 = 10_000;

/// Acquires a lock that a holder believes to have until `believed`: it must not be granted much
/// before.
async fn granted_after(believed: Instant, locks: &Locks, lock: &str) {
    let ask = json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS, "owner": "next"});
    let next = soon("the next holder", locks.acquire(lock, ask)).await.lease();
    let early = believed.saturating_duration_since(Instant::now());
    assert!(
        early < Duration::from_millis(INEXACT_MS),
        "{} was granted {early:?} early",
        next.token
    );
}

/// The lease, or `None` where etcd took longer than the server's time-out.
fn unless_late(reply: Reply) -> Option<LeaseReply> {
    (!matches!(reply.status, 503 | 504)).then(|| reply.lease())
}

/// Another server gave a lease less time; the one that granted it keeps a longer one yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_after_a_shorter_renewal_elsewhere_gets_the_shorter_ttl() {
    let etcd = Etcd::start().await;
    let first = lock_server(&etcd).await;
    let second = lock_server(&etcd).await;
    let (lock, believed) = until("a retry before the lease has ended", || async {
        let id = lease_id();
        let lock = format!("a/{id}");
        let ask = json!({"lease_id": id, "ttl_ms": LONG_MS, "owner": "me"});
        let granted = unless_late(first.locks().acquire(&lock, ask.clone()).await)?;
        let shorter = json!({"lease_id": id, "ttl_ms": SHORTER_MS});
        let shorter = second.locks().try_post(&lock, "renew", shorter).await.unwrap();
        let shorter = unless_late(shorter)?;
        assert!(shorter.ttl_ms <= SHORTER_MS, "{shorter:?}");
        let asked = Instant::now();
        let again = first.locks().acquire(&lock, ask).await;
        if again.status == 410 {
            // The machine was so slow that the lease is over.
            assert_eq!(again.json()["reason"], "expired");
            return None;
        }
        let again = unless_late(again)?;
        assert!(again.ttl_ms <= SHORTER_MS, "{again:?}");
        assert_eq!(again.token, granted.token);
        Some((lock, asked + Duration::from_millis(again.ttl_ms)))
    })
    .await;
    granted_after(believed, &second.locks(), &lock).await;
}

/// etcd restarts a lease's time where it is started again; the watch of the server that received
/// the last heartbeat does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bound_lease_gets_no_longer_ttl_than_its_session() {
    let mut etcd = Etcd::start().await;
    let servers: [Server; 2] = [lock_server(&etcd).await, lock_server(&etcd).await];
    let session = Sessions(servers[0].locks().0).begin("me", 30_000).await.session_id;
    // A part of its time is over.
    tokio::time::sleep(Duration::from_millis(3_000)).await;
    etcd.start_again().await;
    let ask = json!({"session_id": session, "owner": "me", "lease_id": lease_id()});
    let (bound, asked) = until("a bound lease", || async {
        let asked = Instant::now();
        let reply = servers[1].locks().acquire("s", ask.clone()).await;
        (!matches!(reply.status, 503 | 504)).then(|| (reply.lease(), asked))
    })
    .await;
    let believed = asked + Duration::from_millis(bound.ttl_ms);
    until_ready(&servers[0]).await;
    granted_after(believed, &servers[0].locks(), "s").await;
}

/// A renewal was done and its answer lost. It is done once more, because what etcd has left of it
/// is not known; then its server dies, and etcd alone decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_whose_reply_was_lost_gets_the_ttl_of_etcd() {
    let etcd = Etcd::start().await;
    let proxy = FaultProxy::before(&etcd.address()).await;
    let setup = Setup::lock_server(&format!("etcd://{}", proxy.address()));
    let mut hurt = setup.args(&["--store-timeout", "9s"]).start().await;
    let well = lock_server(&etcd).await;
    let lease = hurt.locks().grant("a", 18_000).await;
    proxy.set(Fault::DropRepliesAfter(LOCK_KEY));
    let locks = hurt.locks();
    let renewing = tokio::spawn(async move { locks.renew("a", lease.lease_id).await });
    until_true("the answer to be lost", || async { proxy.dropped() > 0 }).await;
    proxy.set(Fault::None);
    let renewed = soon("an answer", renewing).await.unwrap().lease();
    // The reply may have been read late. Without the second renewal there were at most nine seconds
    // left of eighteen.
    let late = Duration::from_secs(6);
    let believed = Instant::now() + Duration::from_millis(renewed.ttl_ms).saturating_sub(late);
    hurt.process.kill();
    granted_after(believed, &well.locks(), "a").await;
}
