#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests fail by panicking, and spawn what they abort"
)]
//! The SDK against a real lock server, behind a network that loses planned requests and replies.

#[path = "against_server/network.rs"]
mod network;
#[path = "against_server/slow.rs"]
mod slow;

use std::time::Duration;

use fence_client::protocol::LockName;
use fence_client::protocol::wire::lock::{EndReason, LockState};
use fence_client::protocol::wire::session::SessionRequest;
use fence_client::{Client, Error, ErrorKind, Lease, LostReason, clock};
use network::{Loss, Network};

/// Long enough for a busy machine to renew in time, short enough to wait for.
const TTL: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_secs(30);
const SESSION: &str = "67e55044-10b1-426f-9247-bb680e5fe0c8";

fn name(lock: &str) -> LockName {
    LockName::new(lock).unwrap()
}

/// Polls until the lock has the state `wanted`; fails the test when the limit is over.
async fn until_state(client: &Client, lock: &str, wanted: LockState) {
    let deadline = network::limit();
    while client.locks().show(&name(lock)).await.unwrap().state != wanted {
        assert!(clock::now() < deadline, "{lock} never became {wanted:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Polls until `wanted` requests wait for the lock; fails the test when the limit is over.
async fn until_waiting(client: &Client, lock: &str, wanted: usize) {
    let deadline = network::limit();
    while client.locks().show(&name(lock)).await.unwrap().queue_length != wanted {
        assert!(clock::now() < deadline, "never {wanted} waiting for {lock}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Acquires and releases a lease; returns its token.
async fn next_token(network: &Network) -> u64 {
    let lease = network.direct().lock("counter").ttl(LONG).acquire().await.unwrap();
    let token = lease.token().get();
    lease.release().await.unwrap();
    token
}

/// The local trust in a lease ends before the server can let it expire.
async fn assert_trusted_within_the_servers_time(network: &Network, lease: &Lease) {
    let trusted_until = lease.deadline();
    let shown = network.direct().locks().show(lease.lock()).await.unwrap();
    // A renewal in between has extended the lease at the server, but not `trusted_until`.
    let left_ms = shown.holder.map_or(0, |holder| holder.info.expires_in_ms);
    let expires_at = clock::now().plus_ms(left_ms);
    assert!(trusted_until <= expires_at, "{trusted_until:?} > {expires_at:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_to_acquire_costs_no_second_grant() {
    let network = Network::start().await;
    for (lock, losses) in [("once", 1), ("thrice", 3)] {
        let before = next_token(&network).await;
        network.lose("/acquire", Loss::Reply, losses);
        let lease = network.client().lock(lock).ttl(LONG).acquire().await.unwrap();
        assert_eq!(network.left_to_lose(), 0, "the losses must have happened");
        assert_eq!(lease.token().get(), before + 1, "one grant, one token");
        lease.release().await.unwrap();
        let after = next_token(&network).await;
        assert_eq!(after, before + 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_trusted_for_what_remains() {
    let network = Network::start().await;
    network.lose("/acquire", Loss::ReplyAfter(TTL * 2 / 3), 1);
    let lease = network.client().lock("a").ttl(TTL).acquire().await.unwrap();
    assert_trusted_within_the_servers_time(&network, &lease).await;
    drop(lease);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_reply_is_trusted_from_before_its_request() {
    let network = Network::start().await;
    network.lose("/acquire", Loss::Late(TTL / 3), 1);
    let lease = network.client().lock("a").ttl(TTL).acquire().await.unwrap();
    assert_trusted_within_the_servers_time(&network, &lease).await;
    // More than the fifth of the time to live in which a lease is not trusted, and less than the
    // time-out of a renewal.
    network.lose("/renew", Loss::Late(TTL * 22 / 100), 1);
    // A renewal that is in flight already is not delayed.
    while network.left_to_lose() > 0 && lease.is_live() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(network.left_to_lose(), 0);
    let first = lease.deadline();
    while lease.deadline() == first && lease.is_live() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_trusted_within_the_servers_time(&network, &lease).await;
    drop(lease);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_to_release_is_a_success() {
    let network = Network::start().await;
    let lease = network.client().lock("a").ttl(LONG).acquire().await.unwrap();
    network.lose("/release", Loss::Reply, 2);
    lease.release().await.unwrap();
    assert_eq!(network.left_to_lose(), 0);
    until_state(&network.direct(), "a", LockState::Free).await;
}

/// Calls `work` with a client; the reply to its request is lost, and new connections are refused.
async fn assert_unknown(path_end: &str, work: impl AsyncFnOnce(Client) -> Result<(), Error>) {
    let network = Network::start().await;
    network.lose(path_end, Loss::ReplyUntilClosed, 1);
    let close = async {
        while network.left_to_lose() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        network.close().await;
    };
    let (outcome, ()) = tokio::join!(work(network.client()), close);
    let error = outcome.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::OutcomeUnknown, "{path_end}: {error:?}");
}

/// A request whose reply was lost may have taken effect, though its retries are known to be unsent.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_stays_unknown_when_the_retries_are_refused() {
    tokio::join!(
        assert_unknown("/acquire", async |client| client.lock("a").acquire().await.map(drop)),
        assert_unknown("/release", async |client| {
            client.lock("a").ttl(LONG).acquire().await.unwrap().release().await
        }),
        assert_unknown("/sessions", async |client| client.session().begin().await.map(drop)),
        assert_unknown(SESSION, async |client| {
            let id = SESSION.parse().unwrap();
            let owner = client.owner().clone();
            let ttl_ms = LONG.try_into().unwrap();
            let request = SessionRequest { ttl_ms, owner, session_id: Some(id), metadata: None };
            client.sessions().create(&request).await.unwrap();
            client.sessions().end(id).await.map(drop)
        }),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn releasing_a_lease_that_ended_is_loud() {
    let network = Network::start().await;
    let lease = network.client().lock("a").ttl(LONG).acquire().await.unwrap();
    network.direct().locks().revoke("a", "test").await.unwrap();
    let error = lease.release().await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::LeaseLost { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_is_dropped_leaves_nothing_behind() {
    let network = Network::start().await;
    let direct = network.direct();
    let holder = direct.lock("a").ttl(LONG).acquire().await.unwrap();
    let client = network.client();
    let waiting = tokio::spawn(client.lock("a").wait(LONG).ttl(LONG).acquire());
    until_waiting(&direct, "a", 1).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    until_waiting(&direct, "a", 0).await;
    holder.release().await.unwrap();

    // Dropped while the reply of a grant is lost: the grant is released, long before it expires.
    network.lose("/acquire", Loss::Reply, u32::MAX);
    let granted = tokio::spawn(client.lock("b").ttl(LONG).patience(LONG).acquire());
    until_state(&direct, "b", LockState::Held).await;
    granted.abort();
    assert!(granted.await.unwrap_err().is_cancelled());
    until_state(&direct, "b", LockState::Free).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_waited_for_long_is_live_when_it_arrives() {
    let network = Network::start().await;
    let direct = network.direct();
    let holder = direct.lock("a").ttl(LONG).acquire().await.unwrap();
    let client = network.client();
    let waiting = tokio::spawn(client.lock("a").wait(LONG).ttl(TTL).acquire());
    until_waiting(&direct, "a", 1).await;
    // Longer than the time to live of the lease.
    tokio::time::sleep(TTL).await;
    holder.release().await.unwrap();
    let lease = waiting.await.unwrap().unwrap();
    assert!(lease.is_live());
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn renewal_keeps_a_lease_and_survives_lost_replies() {
    let network = Network::start().await;
    let lease = network.client().lock("a").ttl(TTL * 2).acquire().await.unwrap();
    network.lose("/renew", Loss::Reply, 1);
    let first_deadline = lease.deadline();
    clock::sleep_until(first_deadline.plus_ms(1000)).await;
    assert!(lease.is_live());
    assert_eq!(network.left_to_lose(), 0);
    assert!(network.direct().locks().show(lease.lock()).await.unwrap().holder.is_some());
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_was_dropped_is_released_and_no_longer_renewed() {
    let network = Network::start().await;
    let client = network.client();
    drop(client.lock("a").ttl(LONG).acquire().await.unwrap());
    assert!(client.drained(LONG).await);
    until_state(&network.direct(), "a", LockState::Free).await;

    // If the release cannot be delivered, the lease expires: nothing renews it.
    let lease = client.lock("b").ttl(TTL).acquire().await.unwrap();
    network.lose("/release", Loss::Request, u32::MAX);
    drop(lease);
    until_state(&network.direct(), "b", LockState::Free).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_cancelled_when_the_server_ends_the_lease() {
    let network = Network::start().await;
    let direct = network.direct();
    let outcome = network
        .client()
        .lock("a")
        .ttl(TTL)
        .run(async |lease| {
            direct.locks().revoke(lease.lock(), "test").await.unwrap();
            std::future::pending::<()>().await;
        })
        .await;
    let lost = ErrorKind::LeaseLost { reason: LostReason::Ended(EndReason::Revoked) };
    assert_eq!(*outcome.unwrap_err().kind(), lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_network_means_lost_at_the_deadline() {
    let network = Network::start().await;
    let lease = network.client().lock("a").ttl(TTL).acquire().await.unwrap();
    network.lose("", Loss::Request, u32::MAX);
    let deadline = lease.deadline();
    assert_eq!(lease.lost().await, LostReason::Deadline);
    assert!(clock::now() >= deadline);
    // A loss is final, even when the network is back and the server would renew the lease.
    network.heal();
    tokio::time::sleep(TTL).await;
    assert!(!lease.is_live());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_lock_names_its_holder_and_a_missing_server_is_unavailable() {
    let network = Network::start().await;
    let lease = network.direct().lock("a").ttl(LONG).acquire().await.unwrap();
    let error = network.client().lock("a").acquire().await.unwrap_err();
    let ErrorKind::Contended { holder: Some(holder), retry_after: Some(_) } = error.kind() else {
        panic!("{error:?}");
    };
    assert_eq!(holder.token, lease.token());

    network.lose("", Loss::Request, u32::MAX);
    let error = network
        .client()
        .lock("b")
        .patience(Duration::from_millis(300))
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::OutcomeUnknown);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_can_run_in_a_spawned_task() {
    let network = Network::start().await;
    let client = network.client();
    let work = tokio::spawn(async move {
        let token = client
            .lock("a")
            .run(async |lease| {
                tokio::task::yield_now().await;
                lease.token()
            })
            .await;
        (token, client)
    });
    let (token, client) = work.await.unwrap();
    let next = client.lock("a").acquire().await.unwrap();
    assert!(next.token() > token.unwrap());
    drop(next);
    until_state(&client, "a", LockState::Free).await;
}
