//! Redis restarts behind the guard: client ids begin again, and registrations are worth nothing.

use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::{Grant, patient};
use fence_tests::resp_client::{Resp, RespClient};
use fence_tests::wait::{soon, until};

use super::{port, ports, setup};

const CONNS: &str = "{fence:default}:guard:conns:orders/1";

/// The ids under which connections are registered for `orders/1`.
async fn registered(redis: &Redis) -> Vec<i64> {
    let fields: Vec<String> = redis.run(&["HKEYS", CONNS]).await;
    fields.iter().map(|field| field.rsplit(':').next().unwrap().parse().unwrap()).collect()
}

/// A connection to Redis itself that has exactly this id.
async fn with_id(redis: &Redis, id: i64) -> RespClient {
    loop {
        let mut client = RespClient::connect(&redis.address()).await;
        let own = client.call(&["CLIENT", "ID"]).await.integer();
        assert!(own <= id, "id {id} is taken already; this one is {own}");
        if own == id {
            return client;
        }
    }
}

/// Its guard dies with its registration in Redis; Redis restarts, and gives the id of the
/// registration to another connection. The hand-over must not kill that one.
#[tokio::test]
async fn an_id_that_is_used_again_is_not_killed() {
    let mut redis = Redis::start().await;
    for _ in 0..300 {
        RespClient::connect(&redis.address()).await.call(&["PING"]).await;
    }
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let mut dying = port(&setup(&redis.url())).await;
    let mut client = RespClient::fenced(&dying.address, &old.credential).await;
    client.call(&["RPUSH", &old.journal(), "10 a"]).await;
    dying.server.process.kill();
    let ids = registered(&redis).await;
    assert!(!ids.is_empty(), "nothing is registered: this test shows nothing");
    redis.restart().await;
    assert_eq!(registered(&redis).await, ids, "Redis forgot them: this test shows nothing");
    let mut innocent = Vec::new();
    for id in &ids {
        innocent.push(with_id(&redis, *id).await);
    }
    // Whether it looks at what was left when it starts, or at the hand-over.
    let healthy = port(&setup(&redis.url())).await;
    let mut next = RespClient::fenced(&healthy.address, &new.credential).await;
    assert_eq!(next.call(&["RPUSH", &new.journal(), "20 b"]).await, Resp::Integer(2));
    for client in &mut innocent {
        assert_eq!(client.try_call(&["PING"]).await.unwrap(), Resp::simple("PONG"), "killed");
    }
}

/// After a restart the holder continues, on a new connection or the old one; no older holder does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_continues_after_a_restart_and_older_ones_do_not() {
    let mut redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let old = Grant::new(10, "1");
    let now = Grant::new(20, "1");
    let mut first = RespClient::fenced(&guards[0].address, &now.credential).await;
    assert_eq!(first.call(&["RPUSH", &now.journal(), "20 a"]).await, Resp::Integer(1));
    redis.kill();
    redis.start_again().await;
    for guard in &guards {
        until("the holder to be admitted again", || async {
            let mut client = RespClient::connect(&guard.address).await;
            let auth = patient(client.try_call(&["AUTH", "fence", &now.credential])).await.ok()?;
            assert!(!auth.is_error("FENCED"), "{auth:?}");
            let reply = patient(client.try_call(&["RPUSH", &now.journal(), "20 b"])).await.ok()?;
            matches!(reply, Resp::Integer(_)).then_some(())
        })
        .await;
        let mut late = RespClient::connect(&guard.address).await;
        late.call(&["AUTH", "fence", &old.credential]).await.expect_error("FENCED");
        late.call(&["RPUSH", &old.journal(), "10 late"]).await.error().unwrap();
    }
}

/// A connection from before the restart is as good as a new one, or it is closed: it never stays
/// open and useless, and never writes unregistered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_from_before_a_restart_registers_again() {
    let mut redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
    client.call(&["RPUSH", &old.journal(), "10 a"]).await;
    redis.kill();
    redis.start_again().await;
    let working = async {
        loop {
            match patient(client.try_call(&["RPUSH", &old.journal(), "10 b"])).await {
                Ok(Resp::Integer(_)) | Err(_) => return,
                Ok(reply) => {
                    let is_refused = reply.is_error("UNAVAILABLE") || reply.is_error("UNKNOWN");
                    assert!(is_refused, "{reply:?}");
                }
            }
        }
    };
    soon("the old connection to work or to be closed", working).await;
    let mut next = RespClient::fenced(&guards[1].address, &new.credential).await;
    let length = next.call(&["LLEN", &new.journal()]).await;
    if let Ok(reply) = patient(client.try_call(&["RPUSH", &old.journal(), "10 late"])).await {
        assert!(reply.error().is_some(), "{reply:?}");
    }
    assert_eq!(next.call(&["LLEN", &new.journal()]).await, length);
}
