#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests fail by panicking, and spawn what they abort"
)]
//! Re-entry, elections and limits, against a real lock server.

#[path = "against_server/network.rs"]
#[expect(dead_code, reason = "the losses are for the other test")]
mod network;

use std::time::Duration;

use fence_client::protocol::LockName;
use fence_client::protocol::wire::lock::{EndReason, LockState};
use fence_client::{Client, ErrorKind, LostReason, clock};
use network::Network;

const LONG: Duration = Duration::from_secs(60);

fn name(lock: &str) -> LockName {
    LockName::new(lock).unwrap()
}

/// Polls until `is_so`; fails the test when the limit is over.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = network::limit();
    while !is_so().await {
        assert!(clock::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_free(client: &Client, lock: &str) {
    until("the lock to be free", async || {
        client.locks().show(&name(lock)).await.unwrap().state == LockState::Free
    })
    .await;
}

async fn revoke(client: &Client, lock: &str) {
    client.locks().revoke(lock, "by the test").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn entering_again_shares_the_lease_and_takes_no_token() {
    let network = Network::start().await;
    let client = network.direct();
    let lock = client.lock("order").ttl(LONG).reentrant();
    let outer = lock.enter().await.unwrap();
    let inner = lock.clone().enter().await.unwrap();
    assert_eq!((outer.lease_id(), outer.token()), (inner.lease_id(), inner.token()));
    assert_eq!((outer.depth(), inner.depth()), (2, 2));
    // Another value is another holder.
    let other = client.lock("order").reentrant().enter().await.unwrap_err();
    assert!(matches!(other.kind(), ErrorKind::Contended { .. }), "{other:?}");
    let token = outer.token().get();
    inner.leave().await.unwrap();
    let shown = client.locks().show(&name("order")).await.unwrap();
    assert_eq!(shown.holder.unwrap().info.token.get(), token, "the inner one released the lock");
    outer.leave().await.unwrap();
    let shown = client.locks().show(&name("order")).await.unwrap();
    assert_eq!(shown.state, LockState::Free);
    // One grant, one token: the next token follows.
    let next = client.lock("order").acquire().await.unwrap();
    assert_eq!(next.token().get(), token + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_race_cause_one_grant() {
    let network = Network::start().await;
    let lock = network.direct().lock("order").ttl(LONG).reentrant();
    let enter = || async { lock.enter().await.unwrap() };
    let (a, b, c, d) = tokio::join!(enter(), enter(), enter(), enter());
    assert!([&b, &c, &d].iter().all(|entry| entry.lease_id() == a.lease_id()));
    assert_eq!(a.depth(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_entry_does_not_block_the_next() {
    let network = Network::start().await;
    let lock = network.direct().lock("order").ttl(LONG).reentrant();
    for _ in 0..20 {
        drop(lock.enter().await.unwrap());
    }
    lock.run(async |lease| lease.check().unwrap()).await.unwrap();
    until_free(&network.direct(), "order").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_is_not_entered_while_another_entry_is_live() {
    let network = Network::start().await;
    let client = network.direct();
    let lock = client.lock("order").ttl(Duration::from_secs(6)).reentrant();
    let outer = lock.enter().await.unwrap();
    revoke(&client, "order").await;
    assert_eq!(outer.lost().await, LostReason::Ended(EndReason::Revoked));
    let refused = lock.enter().await.unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::LeaseLost { .. }), "{refused:?}");
    drop(outer);
    let anew = lock.enter().await.unwrap();
    anew.check().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_office_passes_on_when_it_is_resigned_or_lost() {
    let network = Network::start().await;
    let client = network.direct();
    let office = |owner: &str| {
        let url = client.lock_server();
        let own = Client::builder().lock_server(url).owner(owner).build().unwrap();
        own.election("office")
            .ttl(Duration::from_secs(6))
            .metadata(serde_json::json!({"at": owner}))
    };
    assert_eq!(office("observer").leader().await.unwrap(), None);
    let first = office("a").campaign().await.unwrap();
    let waiting = |owner| {
        let office = office(owner);
        tokio::spawn(async move { office.campaign().await.unwrap() })
    };
    let second = waiting("b");
    let queue = async || client.locks().show(&name("office")).await.unwrap().queue_length;
    until("b to stand in the queue", async || queue().await == 1).await;
    let third = waiting("c");
    until("c to stand in the queue", async || queue().await == 2).await;
    let seen = office("observer").leader().await.unwrap().unwrap();
    assert_eq!((seen.owner.as_str(), seen.token), ("a", first.token()));
    assert_eq!(seen.metadata, Some(serde_json::json!({"at": "a"})));

    let term = first.token();
    first.resign().await.unwrap();
    let second = second.await.unwrap();
    assert!(second.token() > term);
    let seen = office("observer").leader().await.unwrap().unwrap();
    assert_eq!(seen.owner.as_str(), "b");

    revoke(&client, "office").await;
    assert_eq!(second.lost().await, LostReason::Ended(EndReason::Revoked));
    let third = third.await.unwrap();
    assert!(third.token() > second.token());
    // A leader that was deposed does no further work.
    let late = second.run(async |_| unreachable!("the work of a deposed leader")).await;
    assert!(matches!(late.unwrap_err().kind(), ErrorKind::LeaseLost { .. }));
    third.resign().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_that_is_dropped_leaves_the_queue() {
    let network = Network::start().await;
    let client = network.direct();
    let leader = client.election("office").campaign().await.unwrap();
    let queue = async || client.locks().show(&name("office")).await.unwrap().queue_length;
    let election = client.election("office");
    let candidate = tokio::spawn(async move { election.campaign().await.map(drop) });
    until("the candidate to queue", async || queue().await == 1).await;
    candidate.abort();
    until("the candidate to be gone", async || queue().await == 0).await;
    leader.resign().await.unwrap();
    until_free(&client, "office").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_retries_an_unreachable_server_until_its_patience_ends() {
    let client = Client::builder().lock_server("http://127.0.0.1:1").build().unwrap();
    let election = client.election("office").patience(Duration::from_millis(100));
    assert_eq!(*election.campaign().await.unwrap_err().kind(), ErrorKind::Unavailable);
    let wrong = client.election("a//b");
    assert_eq!(*wrong.campaign().await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(*wrong.leader().await.unwrap_err().kind(), ErrorKind::Invalid);
}

/// The renewal continues, and only the work hangs: the next waiter still gets the lock.
#[tokio::test(flavor = "multi_thread")]
async fn work_that_hangs_loses_its_lock_to_the_next() {
    let network = Network::start().await;
    let client = network.direct();
    let within = Duration::from_millis(800);
    let hangs = client.lock("job").ttl(LONG).progress_within(within).acquire().await.unwrap();
    let token = hangs.token();
    let next = client.lock("job").wait(LONG).acquire();
    let work = hangs.run(async |_| std::future::pending::<()>().await);
    let (outcome, next) = tokio::join!(work, next);
    let reason = LostReason::NoProgress { within };
    assert_eq!(*outcome.unwrap_err().kind(), ErrorKind::LeaseLost { reason });
    assert!(next.unwrap().token() > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_make_no_sense_are_refused_before_anything_is_sent() {
    let client = Client::builder().lock_server("http://127.0.0.1:1").build().unwrap();
    let request = client.lock("job").max_hold(LONG).warn_before(LONG);
    let refused = request.acquire().await.unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("warn_before"), "{refused}");
}
