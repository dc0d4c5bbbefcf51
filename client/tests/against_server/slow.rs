//! A network whose replies temporarily arrive after the deadline of a lease.

use fence_client::Session;

use super::*;

/// Time to live of which 0.8 passes before a `LATE` reply, which precedes the expiry at the server.
const SHORT: Duration = Duration::from_secs(3);
const LATE: Loss = Loss::Late(Duration::from_millis(2550));
/// Time to live of a lease whose release arrives too late.
const RELEASED: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_is_retried_until_its_replies_come_in_time() {
    let network = Network::start().await;
    network.lose("", LATE, 3);
    let lease = network.client().lock("a").ttl(SHORT).wait(LONG).acquire().await.unwrap();
    assert_eq!(network.left_to_lose(), 0);
    assert!(lease.is_live());
    let holder = network.direct().locks().show(lease.lock()).await.unwrap().holder.unwrap();
    assert_eq!((holder.lease_id, holder.info.token), (lease.lease_id(), lease.token()));
    drop(lease);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_retries_until_its_replies_come_in_time() {
    let network = Network::start().await;
    network.lose("", LATE, 3);
    let office = network.client().election("office").ttl(SHORT).campaign().await.unwrap();
    assert_eq!(network.left_to_lose(), 0);
    office.resign().await.unwrap();
}

/// The call respects its wait and patience, the error says that a retry may succeed, and no lease
/// stays.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_whose_replies_stay_late_ends_and_leaves_no_lease() {
    let network = Network::start().await;
    network.lose("", LATE, u32::MAX);
    let client = network.client();
    let request = client.lock("a").ttl(SHORT).patience(Duration::from_secs(1));
    let error = request.acquire().await.unwrap_err();
    let is_passing = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown);
    assert!(is_passing, "{error:?}");
    assert!(client.drained(LONG).await);
    until_state(&network.direct(), "a", LockState::Free).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_begun_again_until_its_replies_come_in_time() {
    let network = Network::start().await;
    network.lose("", LATE, 3);
    let client = network.client();
    let builder = client.session().ttl(SHORT).patience(LONG);
    let session = builder.begin().await.unwrap();
    assert_eq!(network.left_to_lose(), 0);
    session.check().unwrap();
    session.acquire("a", Duration::ZERO).await.unwrap();
    session.end().await.unwrap();
}

/// A begin whose future was dropped leaves no session until its time to live has passed.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_begin_was_dropped_is_ended() {
    let network = Network::start().await;
    let client = network.client();
    let direct = network.direct();
    network.lose("/sessions", Loss::Reply, u32::MAX);
    let begun = tokio::spawn(async move { Session::begin(&client, LONG).await });
    until_sessions(&direct, 1).await;
    begun.abort();
    assert!(begun.await.unwrap_err().is_cancelled());
    until_sessions(&direct, 0).await;
}

/// The work ended while its lease was trusted, and the lease expires before its release arrives.
#[tokio::test(flavor = "multi_thread")]
async fn work_that_ended_in_time_is_no_loss_where_its_release_is_late() {
    let network = Network::start().await;
    let client = network.client();
    let direct = network.direct();
    let late = Loss::LateRequest(RELEASED * 4 / 3);
    let value = client.lock("a").ttl(RELEASED).run(async |_| network.lose("/release", late, 1));
    value.await.unwrap();
    assert_eq!(network.left_to_lose(), 0);
    until_state(&direct, "a", LockState::Free).await;
    let history = direct.locks().show(&name("a")).await.unwrap().history;
    assert_eq!(history[0].reason, EndReason::Expired, "the release was not late: {history:?}");

    let session = client.session().ttl(RELEASED).begin().await.unwrap();
    let value = session.run(async |session| {
        let held = session.locks(["a", "b"]).acquire_all().await.unwrap();
        network.lose("", late, 3);
        held.run(async |_| 7).await.unwrap()
    });
    assert_eq!(value.await.unwrap(), 7);
}

/// Each reply arrives after its renewal was retried and before the deadline: it still counts, for a
/// lease and for a session.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_was_retried_still_counts() {
    let network = Network::start().await;
    let client = network.client();
    let ttl = Duration::from_secs(12);
    let lease = client.lock("a").ttl(ttl).acquire().await.unwrap();
    let session = client.session().ttl(ttl).begin().await.unwrap();
    network.lose("", Loss::Late(ttl * 37 / 100), u32::MAX);
    let first = lease.deadline().max(session.deadline());
    clock::sleep_until(first).await;
    lease.check().unwrap();
    session.check().unwrap();
    network.heal();
}

async fn until_sessions(client: &Client, wanted: usize) {
    let deadline = network::limit();
    while client.sessions().list(None, 10).await.unwrap().sessions.len() != wanted {
        assert!(clock::now() < deadline, "never {wanted} sessions");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
