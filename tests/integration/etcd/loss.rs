//! etcd comes back empty: emptied, or replaced by another one at the same address. Leases are
//! forgotten and no grant waits for them, so two clients may believe that they hold a lock; tokens
//! rise, and the guard distinguishes the two.

use fence_protocol::Code;
use fence_tests::etcd_server::Etcd;
use fence_tests::history::History;
use fence_tests::session_client::Sessions;
use fence_tests::wait::soon;

use super::believers::{granted, the_guard_fences, two_believe, waiting};
use super::{LONG_MS, lock_server, until_ready};

/// Two servers run all the while. `lose` takes everything from etcd, which is started again after.
async fn everything_is_lost(lose: impl FnOnce(&mut Etcd)) {
    let mut etcd = Etcd::start().await;
    let history = History::new();
    let servers = [lock_server(&etcd).await, lock_server(&etcd).await];
    let [one, two] = [servers[0].locks(), servers[1].locks()];
    let session = Sessions(one.0.clone()).begin("process", LONG_MS).await.session_id;
    let old = granted(&one, &history, "held").await;
    let busy = granted(&two, &history, "busy").await;
    let waiter = waiting(&one, "busy");
    one.queue_of("busy", 1).await;
    lose(&mut etcd);
    etcd.start_again().await;
    // No grant waits for the forgotten lease: its TTL is longer than this test.
    let new = granted(&two, &history, "held").await;
    two_believe(&history);
    the_guard_fences(&old, &new).await;
    let next = soon("the waiter", waiter).await.unwrap().lease();
    assert!(next.token > busy.token);
    the_guard_fences(&busy, &next).await;
    // Every caller learns that its lease is gone, from the server that granted it, too.
    for server in &servers {
        until_ready(server).await;
        server.locks().renew("held", old.lease_id).await.problem(Code::LeaseLost);
        server.locks().release("busy", busy.lease_id).await.problem(Code::LeaseLost);
    }
    let beat = Sessions(one.0.clone()).heartbeat(session).await.expect("an answer");
    assert_eq!(beat.status, 404, "{beat:?}");
    assert_eq!(two.renew("held", new.lease_id).await.lease().token, new.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_comes_back_empty_lowers_no_token() {
    everything_is_lost(Etcd::empty).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_etcd_at_the_same_place_lowers_no_token() {
    everything_is_lost(|etcd| etcd.empty_as("another")).await;
}
