//! Guards that end in order.

use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::redis_server::Redis;
use fence_tests::servers::Setup;
use fence_tests::upstream::Upstream;
use fence_tests::wait::until_true;

use super::{LOCK, Setting, TIMEOUT, setup};

/// The grant was made and its reply is on the way. The guard knows the lease's id, and releases it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_ends_while_it_acquires_the_lead_leaves_no_lease() {
    let locks = Setup::lock_server("memory:").start().await;
    let to_locks = FaultProxy::before(&locks.address()).await;
    to_locks.set(Fault::HoldReplies);
    let redis = Redis::start().await;
    let upstream = Upstream::start().await;
    let setting = Setting { locks, redis, upstream, upstream_timeout: TIMEOUT };
    let mut server = setup("a", &setting, "60s", &to_locks).start().await;
    let locks = setting.locks.locks();
    until_true("the grant", || async { locks.show(LOCK).await.holder.is_some() }).await;
    server.process.terminate();
    assert_eq!(server.process.ended().await.code, 0);
    assert!(locks.show(LOCK).await.holder.is_none());
}
