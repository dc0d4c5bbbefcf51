//! A guard before a group of sentinels: it follows the master.

use fence_protocol::Code;
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::redis_sentinel::SentinelGroup;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};
use fence_tests::servers::Setup;
use fence_tests::wait::until_true;

use super::{port, setup};

/// Marks and data that the replica has are in force after the failover, for objects and port.
#[tokio::test]
async fn the_guard_follows_a_failover() {
    let group = SentinelGroup::start().await;
    let port = port(&setup(&group.url())).await;
    let guard = port.server.guard();
    let old = unsigned(33, "a", lease_id());
    let new = unsigned(34, "a", lease_id());
    guard.put("a", &new, "new").await.expect(201);
    let late = Grant::new(33, "1");
    let grant = Grant::new(34, "1");
    let key = grant.key("a");
    let mut client = RespClient::fenced(&port.address, &grant.credential).await;
    assert_eq!(client.call(&["SET", &key, "1"]).await, Resp::simple("OK"));
    for to in [1, 0] {
        until_true("the replica to have it", || async {
            let at = async |at: usize| group.redis(at).try_run::<i64>(&["GET", &key]).await.ok();
            let found = at(to).await;
            found.is_some() && found == at(1 - to).await
        })
        .await;
        group.fail_over(to).await;
        until_true("the guard to follow", || async {
            let reply = guard.put("a", &old, "late").await;
            assert!(matches!(reply.status, 412 | 503 | 504), "{}", reply.status);
            reply.status == 412 && reply.problem(Code::StaleToken).code == Code::StaleToken
        })
        .await;
        until_true("the port to follow", || async {
            let mut client = RespClient::connect(&port.address).await;
            let admitted = client.try_call(&["AUTH", "fence", &grant.credential]).await;
            let reply = client.try_call(&["INCR", &key]).await;
            admitted.is_ok() && matches!(reply, Ok(Resp::Integer(_)))
        })
        .await;
        let mut client = RespClient::connect(&port.address).await;
        let replies =
            client.pipeline(&[&["AUTH", "fence", &late.credential], &["SET", &key, "late"]]).await;
        replies[0].expect_error("FENCED");
        let found: i64 = group.redis(to).run(&["GET", &key]).await;
        assert!(found >= 2, "written at the new master: {found}");
    }
}

#[tokio::test]
async fn the_guard_follows_when_the_master_dies() {
    let mut group = SentinelGroup::start().await;
    let port = port(&setup(&group.url())).await;
    let guard = port.server.guard();
    let old = unsigned(33, "a", lease_id());
    let new = unsigned(34, "a", lease_id());
    guard.put("a", &new, "new").await.expect(201);
    until_true("the replica to have it", || async {
        let size = async |at: usize| group.redis(at).try_run::<u64>(&["DBSIZE"]).await.ok();
        let found = size(1).await;
        found.is_some() && found == size(0).await
    })
    .await;
    group.kill(0).await;
    group.is_master(1).await;
    until_true("the guard to follow", || async { guard.fenced_get("a", &new).await.status == 200 })
        .await;
    guard.put("a", &old, "late").await.problem(Code::StaleToken);
}

#[tokio::test]
async fn what_the_sentinels_do_not_know_is_said() {
    let group = SentinelGroup::start().await;
    let url = format!("redis-sentinel://{}/unknown", group.address());
    let said = Setup::fenced_store(&url).refused().await;
    assert!(said.stderr.contains("knows no such master"), "{}", said.stderr);
    let said = Setup::fenced_store("redis-sentinel://127.0.0.1:1/m").refused().await;
    assert!(said.stderr.contains("no sentinel says where the master"), "{}", said.stderr);
}
