//! Keys deleted by hand, under running servers: all of them, the leases alone, or the counter
//! alone.

use fence_protocol::Code;
use fence_tests::etcd_server::Etcd;
use fence_tests::history::History;
use fence_tests::wait::soon;

use super::believers::{granted, the_guard_fences, two_believe, waiting};
use super::lock_server;

/// Deletes these keys, the holder's among them.
async fn leases_are_deleted(words: &[&str]) {
    let etcd = Etcd::start().await;
    let history = History::new();
    let servers = [lock_server(&etcd).await, lock_server(&etcd).await];
    let [one, two] = [servers[0].locks(), servers[1].locks()];
    let old = granted(&one, &history, "held").await;
    let busy = granted(&two, &history, "busy").await;
    let waiter = waiting(&one, "busy");
    one.queue_of("busy", 1).await;
    etcd.by_hand(&[&["del"], words].concat()).await;
    let new = granted(&two, &history, "held").await;
    two_believe(&history);
    the_guard_fences(&old, &new).await;
    // No watch reported that the lock is free, and its waiter is granted it all the same.
    let next = soon("the waiter", waiter).await.unwrap().lease();
    assert!(next.token > busy.token);
    for locks in [&one, &two] {
        locks.renew("held", old.lease_id).await.problem(Code::LeaseLost);
        locks.release("busy", busy.lease_id).await.problem(Code::LeaseLost);
    }
    assert_eq!(one.renew("held", new.lease_id).await.lease().token, new.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_that_was_deleted_lowers_no_token() {
    leases_are_deleted(&["--prefix", "fencepost/default/"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_was_cleared_lowers_no_token() {
    leases_are_deleted(&["--from-key", ""]).await;
}

/// The counter is still there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_that_were_deleted_lower_no_token() {
    leases_are_deleted(&["--prefix", "fencepost/default/l/"]).await;
}

/// Tokens are lifted where the counter alone is gone, and every lease stays what it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_was_deleted_is_made_anew_above() {
    let etcd = Etcd::start().await;
    let history = History::new();
    let servers = [lock_server(&etcd).await, lock_server(&etcd).await];
    let [one, two] = [servers[0].locks(), servers[1].locks()];
    let old = granted(&one, &history, "held").await;
    for round in 0..3 {
        etcd.by_hand(&["del", "fencepost/default/meta"]).await;
        let next = granted(&two, &history, &format!("next/{round}")).await;
        assert!(next.token > old.token);
        one.acquire("held", serde_json::json!({})).await.problem(Code::LockHeld);
        assert_eq!(two.renew("held", old.lease_id).await.lease().token, old.token);
    }
    fence_tests::checks::tokens_rise(&history.grants()).unwrap();
}
