//! A store that lost its memory, and grants the id of a live lease anew.

use std::time::Duration;

use fence_client::{Client, LostReason};
use fence_protocol::wire::lock::EndReason;
use fence_tests::redis_server::Redis;
use fence_tests::servers::Setup;
use fence_tests::wait::{soon, until};
use serde_json::json;

/// A late repeat of the acquire is granted anew, with a higher token. The holder of the lower one
/// must not take the renewal of that for its own: another client may have held the lock in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_with_another_token_is_a_lost_lease() {
    let redis = Redis::start().await;
    let server = Setup::lock_server(&redis.url()).args(&["--after-loss", "grant"]).start().await;
    let client = Client::builder().lock_server(&server.base).owner("svc").build().unwrap();
    // Renewed after a third of that: the store has forgotten by then.
    let lease = client.lock("a").ttl(Duration::from_secs(36)).acquire().await.unwrap();
    let _: () = redis.run(&["FLUSHALL"]).await;
    let again = json!({"lease_id": lease.lease_id(), "owner": "svc", "ttl_ms": 60_000});
    let granted = until("a grant", || async {
        let reply = server.locks().acquire("a", again.clone()).await;
        (reply.status == 200).then(|| reply.lease())
    })
    .await;
    assert!(granted.token > lease.token(), "{} after {}", granted.token, lease.token());
    let reason = soon("the loss", lease.lost()).await;
    assert_eq!(reason, LostReason::Ended(EndReason::Superseded));
}
