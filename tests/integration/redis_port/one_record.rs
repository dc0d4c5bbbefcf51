//! The objects API and the port share one record a lock: a higher mark on one side ends the old
//! holder on both.

use fence_protocol::Code;
use fence_tests::journal::{Journal, Seal};
use fence_tests::redis_flood::Flood;
use fence_tests::redis_holders::{entries, length};
use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};
use fence_tests::seed::rounds;

use super::ports;

#[derive(Clone, Copy, Debug)]
enum RecordStep {
    Put,
    Get,
    Delete,
    Seal,
}

/// An old holder floods through the port; a new one does one step at the objects API.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_step_with_a_higher_token_ends_lower_connections_before_it_answers() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guards = ports(&redis, 2).await;
    for round in 0..rounds(2, 10) {
        for step in [RecordStep::Put, RecordStep::Get, RecordStep::Delete, RecordStep::Seal] {
            for guard in &guards {
                let id = format!("{round}-{step:?}-{}", guard.server.process.pid());
                let old = Grant::new(10, &id);
                let new = Grant::new(20, &id);
                let client = RespClient::fenced(&guards[0].address, &old.credential).await;
                let flood = Flood::start(client, &old, 1_000_000);
                flood.answered(1_000).await;
                let api = guard.server.guard();
                let key = format!("orders/{id}");
                let token = new.credential.as_str();
                match step {
                    RecordStep::Put => drop(api.put(&key, token, "x").await.expect(201)),
                    RecordStep::Get => drop(api.fenced_get(&key, token).await.expect(404)),
                    RecordStep::Delete => drop(api.delete(&key, token).await.expect(204)),
                    RecordStep::Seal => drop(api.seal(&key, token).await.expect(200)),
                }
                let seal = Seal { token: 20, length: length(&redis.address(), &id).await };
                let answers = flood.ended().await;
                let entries = entries(&redis.address(), &id).await;
                let journal = Journal { entries, seals: vec![seal], answers };
                journal.check().unwrap_or_else(|error| panic!("{step:?}: {error}"));
                assert!(journal.entries.len() < journal.answers.len(), "the flood was over before");
            }
        }
    }
}

#[tokio::test]
async fn a_connection_with_a_higher_token_makes_one_step_stale() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let api = guards[1].server.guard();
    api.put("orders/1", &old.credential, "old").await.expect(201);
    let mut client = RespClient::fenced(&guards[0].address, &new.credential).await;
    for guard in &guards {
        let api = guard.server.guard();
        api.put("orders/1", &old.credential, "late").await.problem(Code::StaleToken);
        api.fenced_get("orders/1", &old.credential).await.problem(Code::StaleToken);
        assert_eq!(api.fence("orders/1").await.mark.map(|mark| mark.get()), Some(20));
    }
    // The holder itself may do both.
    api.put("orders/1", &new.credential, "new").await.expect(204);
    assert_eq!(client.call(&["SET", &new.key("a"), "1"]).await, Resp::simple("OK"));
}

#[tokio::test]
async fn a_mark_of_the_objects_api_refuses_at_the_port() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    guards[0].server.guard().sealed("orders/1", &new.credential).await;
    for guard in &guards {
        let mut client = RespClient::connect(&guard.address).await;
        let reply = client.call(&["AUTH", "fence", &old.credential]).await;
        assert!(reply.expect_error("FENCED").contains("below mark 20"), "{reply:?}");
        let reply = client.call(&["SET", &old.key("a"), "late"]).await;
        assert!(reply.error().is_some(), "{reply:?}");
    }
    let mut client = RespClient::fenced(&guards[1].address, &new.credential).await;
    assert_eq!(client.call(&["GET", &new.key("a")]).await, Resp::Null);
}
