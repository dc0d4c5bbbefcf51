//! The services that the SDK has for the unit tests of its users.

use std::time::Duration;

use fence_client::protocol::wire::lock::LockState;
use fence_client::testing::TestServers;
use fence_client::{Client, ErrorKind};
use fence_tests::wait::{soon, until_true};

use super::LONG;

async fn servers() -> (TestServers, Client) {
    let servers = TestServers::start().await.unwrap();
    let client = servers.client().unwrap();
    (servers, client)
}

/// Expiry reaches waiters, and the guard refuses the old holder, in one step of the clock.
#[tokio::test]
async fn a_moved_clock_ends_leases_sessions_and_waits() {
    let (servers, client) = servers().await;
    let old = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let session = client.session().ttl(LONG).begin().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).wait(2 * LONG).acquire());
    let lock = "a".parse().unwrap();
    let shown = async || client.locks().show(&lock).await.unwrap();
    until_true("a waiter", async || shown().await.queue_length == 1).await;
    servers.advance(LONG - Duration::from_secs(30)).await.unwrap();
    assert_eq!(shown().await.holder.unwrap().lease_id, old.lease_id());
    servers.advance(Duration::from_secs(30)).await.unwrap();
    let next = soon("the grant", waiting).await.unwrap().unwrap();
    assert!(next.token() > old.token());
    client.objects().put(&next, "a", "new").await.unwrap();
    let late = client.objects().put(&old, "a", "late").await.unwrap_err();
    assert!(matches!(late.kind(), ErrorKind::Stale { .. }), "{late}");
    assert!(client.sessions().show(session.id()).await.is_err(), "it has expired");
    servers.advance(LONG).await.unwrap();
    assert_eq!(shown().await.state, LockState::Free);
}

/// The two services know each other: a revocation seals the guard, which reports late writes.
#[tokio::test]
async fn a_revocation_seals_and_a_refusal_is_reported() {
    let (_servers, client) = servers().await;
    let lease = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let revoked = client.locks().revoke("a", "INC-1234").await.unwrap();
    assert_eq!(revoked.guards.len(), 1, "{revoked:?}");
    let late = client.objects().put(&lease, "a", "late").await.unwrap_err();
    assert!(matches!(late.kind(), ErrorKind::Stale { .. }), "{late}");
    let lock = "a".parse().unwrap();
    until_true("the report", async || {
        !client.locks().explain(&lock, None).await.unwrap().recent.refusals.is_empty()
    })
    .await;
    let error = lease.release().await.unwrap_err();
    let is_lost = matches!(error.kind(), ErrorKind::LeaseLost { .. });
    assert!(is_lost && error.to_string().contains("INC-1234"), "{error}");
}

/// Tests that run side by side share nothing, and nothing is left when they end.
#[tokio::test]
async fn each_test_has_services_of_its_own() {
    let (first, client) = servers().await;
    let (_second, other) = servers().await;
    let lease = client.lock("a").ttl(LONG).acquire().await.unwrap();
    assert!(!other.lock("a").is_held().await.unwrap());
    drop(lease);
    assert!(client.drained(LONG).await);
    drop(first);
    until_true("the end of the first", async || client.lock("a").is_held().await.is_err()).await;
    assert!(!other.lock("a").is_held().await.unwrap());
}
