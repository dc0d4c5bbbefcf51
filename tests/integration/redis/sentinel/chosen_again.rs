//! A master that sentinels leave and choose again, before they could make it a replica.

use std::collections::HashMap;

use fence_tests::redis_sentinel::MASTER;
use fence_tests::sentinel_group::WholeGroup;
use fence_tests::servers::Setup;
use fence_tests::wait::until_true;
use serde_json::json;

/// It is the same process with the same replication history, and has not received what the master
/// in between has granted. No process that knows is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_where_an_old_master_is_chosen_again() {
    let mut group = WholeGroup::start().await;
    let first = group.one_master().await;
    let args = ["--after-loss", "grant"];
    let ttl = json!({"ttl_ms": 60_000});
    let server = Setup::lock_server(&group.url()).args(&args).start().await;
    let at_first = super::granted(&server.locks(), "orders/1").await;
    group.isolate(first);
    let second = group.another_master(first).await;
    let locks = server.locks();
    let at_second = fence_tests::wait::until("a grant at the second master", || async {
        let reply = locks.acquire("orders/2", ttl.clone()).await;
        (reply.status == 200).then(|| reply.lease())
    })
    .await;
    assert!(at_second.token > at_first.token);
    // The third Redis, which has all of it, is not to be chosen.
    group.node_mut(3 - first - second).set("replica-priority", "0").await;
    until_true("the sentinels to know that", || knows_of_a_priority_of_0(&group)).await;
    drop(server);
    group.node_mut(second).kill();
    group.heal();
    assert_eq!(group.another_master(second).await, first);
    let server = Setup::lock_server(&group.url()).args(&args).start().await;
    let later = super::granted(&server.locks(), "orders/2").await;
    assert!(later.token > at_second.token, "{later:?} after {at_second:?}");
}

/// `true` if each sentinel would pass a replica over.
async fn knows_of_a_priority_of_0(group: &WholeGroup) -> bool {
    let url = group.url();
    let addresses = url.trim_start_matches("redis-sentinel://").split('/').next();
    for address in addresses.expect("addresses").split(',') {
        let client = redis::Client::open(format!("redis://{address}")).expect("an address");
        let Ok(mut sentinel) = client.get_multiplexed_async_connection().await else {
            return false;
        };
        let mut ask = redis::cmd("SENTINEL");
        let known: Result<Vec<HashMap<String, String>>, _> =
            ask.arg("REPLICAS").arg(MASTER).query_async(&mut sentinel).await;
        let is_zero = |replica: &HashMap<String, String>| {
            replica.get("slave-priority").is_some_and(|priority| priority == "0")
        };
        if !known.is_ok_and(|replicas| replicas.iter().any(is_zero)) {
            return false;
        }
    }
    true
}
