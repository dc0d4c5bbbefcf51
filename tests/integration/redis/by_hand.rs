//! A replica takes the place of its master without sentinels: an operator promotes it, and moves
//! the address that the lock server knows.

use fence_protocol::Code;
use fence_tests::fault_proxy::FaultProxy;
use fence_tests::redis_server::Redis;
use fence_tests::servers::Setup;
use fence_tests::wait::{until, until_true};

use super::recorded_locks::RecordedLocks;

/// The replica has one lease and lacks the other, which was granted after it had gone its own way:
/// the one continues, the other is waited for, and tokens rise over both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_promoted_by_hand_lowers_no_token() {
    let mut old = Redis::start().await;
    let new = Redis::with(&[("repl-diskless-sync-delay", "0")]).await;
    let address = old.address();
    let (host, port) = address.split_once(':').unwrap();
    let _: () = new.run(&["REPLICAOF", host, port]).await;
    let place = FaultProxy::before(&address).await;
    let server = Setup::lock_server(&format!("redis://{}", place.address())).start().await;
    let recorded = RecordedLocks::by(server.locks());
    let kept = recorded.granted("kept", 20_000).await;
    until_true("the replica to have the lease", || async {
        new.run::<u64>(&["EXISTS", "{fence:default}:lock:kept"]).await == 1
    })
    .await;
    let _: () = new.run(&["REPLICAOF", "NO", "ONE"]).await;
    let lost = recorded.granted("lost", 4_000).await;
    old.kill();
    place.move_to(&new.address());

    assert_eq!(recorded.renewed("kept", kept.lease_id).await.lease().token, kept.token);
    recorded.renewed("lost", lost.lease_id).await.problem(Code::LeaseLost);
    // Grants are paused for as long as the longest lease, so the kept one is renewed until then.
    let next = until("a grant", || async {
        recorded.renewed("kept", kept.lease_id).await.lease();
        recorded.acquire_once("lost", 300).await
    })
    .await;
    assert!(next.token > lost.token);
    recorded.is_sound();
    recorded.release("kept", kept.lease_id).await.expect(200);
    recorded.granted("kept", 300).await;
    recorded.is_sound();
}
