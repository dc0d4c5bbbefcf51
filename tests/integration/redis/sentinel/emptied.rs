//! A master that loses its memory and stays the master: its replicas lose theirs with it.

use fence_tests::redis_sentinel::MASTER;
use fence_tests::resp_client::{Resp, RespClient};

use super::*;
use crate::redis::recorded_locks::{RecordedLocks, has_all};

/// It comes back empty before any sentinel takes it for down, and then an operator empties it by
/// hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_emptied_lowers_no_token() {
    let mut group = SentinelGroup::start().await;
    let mut sentinel = RespClient::connect(&group.address()).await;
    let never = ["SENTINEL", "SET", MASTER, "down-after-milliseconds", "600000"];
    assert!(matches!(sentinel.call(&never).await, Resp::Simple(_)));
    let server = Setup::lock_server(&group.url()).start().await;
    let recorded = RecordedLocks::by(server.locks());
    let held = recorded.granted("a", 4_000).await;
    has_all(group.redis(0), 1).await;
    group.redis_mut(0).set("appendonly", "no").await;
    group.redis_mut(0).kill();
    group.redis_mut(0).start_again().await;
    recorded.renewed("a", held.lease_id).await.problem(Code::LeaseLost);
    let next = recorded.granted("a", 1_500).await;
    assert!(next.token > held.token, "{next:?} after {held:?}");
    group.replicates(1).await;
    has_all(group.redis(0), 1).await;

    let _: () = group.redis(0).run(&["FLUSHALL"]).await;
    recorded.renewed("a", next.lease_id).await.problem(Code::LeaseLost);
    let last = recorded.granted("a", 300).await;
    assert!(last.token > next.token, "{last:?} after {next:?}");
    group.is_master(0).await;
    recorded.is_sound();
}
