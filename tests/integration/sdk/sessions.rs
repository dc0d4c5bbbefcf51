//! Many locks under one heartbeat.

use std::time::Duration;

use fence_client::protocol::wire::session::SessionReply;
use fence_client::{ErrorKind, Session};
use fence_tests::api::Api;
use fence_tests::wait::{soon, until};
use http::Method;

use super::Site;

/// It is renewed after a third, and outlives a stall of the machine for three seconds then.
const TTL: Duration = Duration::from_secs(8);

async fn shown(api: &Api, session: &Session) -> SessionReply {
    api.get(&format!("/v1/sessions/{}", session.id())).await.expect(200).read()
}

/// The heartbeat keeps both leases, the guard takes their tokens, and the end frees both at once.
#[tokio::test]
async fn one_heartbeat_keeps_the_leases() {
    let site = Site::new().await;
    let client = site.client();
    let api = Api::new(&site.locks.base);
    let session = Session::begin(&client, TTL).await.unwrap();
    let a = session.acquire("pair/a", Duration::ZERO).await.unwrap();
    let b = session.acquire("pair/b", Duration::ZERO).await.unwrap();
    until("several heartbeats", || async {
        (shown(&api, &session).await.heartbeats >= 2).then_some(())
    })
    .await;
    client.objects().put(&a, "pair/a", "1").await.unwrap();
    client.objects().put(&b, "pair/b", "2").await.unwrap();
    let busy = session.acquire("pair/a", Duration::ZERO).await.unwrap_err();
    assert!(matches!(busy.kind(), ErrorKind::Contended { .. }), "{busy}");
    a.release().await.unwrap();
    assert_eq!(session.end().await.unwrap(), 1);
    assert!(b.check().is_err(), "trusted after the end of its session");
    client.lock("pair/b").acquire().await.unwrap().release().await.unwrap();
}

/// The server ends the session: everything that it holds is lost here, and nothing is sent with it.
#[tokio::test]
async fn the_end_of_a_session_is_noticed() {
    let site = Site::new().await;
    let client = site.client();
    let api = Api::new(&site.locks.base);
    let session = Session::begin(&client, TTL).await.unwrap();
    let lease = session.acquire("ended", Duration::ZERO).await.unwrap();
    let path = format!("/v1/sessions/{}", session.id());
    api.send(Method::DELETE, &path, &[], "").await.expect(200);
    let lost = soon("the loss to be noticed", session.lost()).await;
    assert!(matches!(lost.kind(), ErrorKind::LeaseLost { .. }), "{lost}");
    assert_eq!(session.remaining(), Duration::ZERO);
    let refused = client.objects().put(&lease, "ended", "1").await.unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::LeaseLost { .. }), "{refused}");
    let more = session.acquire("more", Duration::ZERO).await.unwrap_err();
    assert!(matches!(more.kind(), ErrorKind::LeaseLost { .. }), "{more}");
}

/// A blocked session is trusted no longer than the server lets it live, and no client gets its lock
/// while it is.
#[tokio::test]
async fn a_blocked_session_is_lost_before_its_lock_passes_on() {
    let site = Site::new().await;
    let client = site.client();
    let api = Api::new(&site.locks.base);
    let session = Session::begin(&client, TTL).await.unwrap();
    let lease = session.acquire("blocked", Duration::ZERO).await.unwrap();
    let path = format!("/v1/sessions/{}/block", session.id());
    api.post(&path, &serde_json::json!({"reason": "test"})).await.expect(200);
    let next = client.lock("blocked").wait(Duration::from_secs(60)).acquire().await.unwrap();
    assert!(lease.check().is_err(), "two holders believe in the lock");
    assert!(next.token() > lease.token());
    next.release().await.unwrap();
}
