//! A handle on one physical connection, as the hand-over uses it.

use std::sync::Arc;

use async_trait::async_trait;
use fence_tests::redis_server::Redis;
use fence_tests::store_options::patient_link;
use fence_tests::wait::until;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value, cmd};
use redis_link::{LinkError, RedisLink, Verifier};
use service_kit::tasks::Tasks;

struct Anything;

#[async_trait]
impl Verifier for Anything {
    async fn verify(&self, _: &mut MultiplexedConnection) -> Result<(), String> {
        Ok(())
    }
}

async fn link(redis: &Redis) -> (RedisLink, Tasks) {
    let target = redis.url().parse().unwrap();
    let tasks = Tasks::new();
    let link = RedisLink::start(target, patient_link(), Arc::new(Anything), &tasks).await;
    (link.unwrap(), tasks)
}

fn words(words: &[&str]) -> Cmd {
    let mut command = cmd(words[0]);
    command.arg(&words[1..]);
    command
}

async fn id(link: &RedisLink) -> Option<Value> {
    link.call(&words(&["CLIENT", "ID"])).await.ok()
}

/// A pinned command stays on its connection over a new verification, and goes to no other once that
/// connection is gone: not even to one that gets the same client id after a restart.
#[tokio::test]
async fn a_pinned_connection_moves_to_no_other() {
    let mut redis = Redis::start().await;
    let (link, tasks) = link(&redis).await;
    let pinned = link.pinned().unwrap();
    let generation = pinned.generation();
    link.verify_again(generation).await.unwrap();
    assert_ne!(link.generation(), generation);
    assert_eq!(pinned.call(&words(&["CLIENT", "ID"])).await.ok(), id(&link).await);
    assert_eq!(pinned.generation(), generation);
    redis.restart().await;
    until("the link to be made anew", || id(&link)).await;
    assert!(!pinned.is_current());
    let set = words(&["SET", "a", "1"]);
    assert!(matches!(pinned.call(&set).await, Err(LinkError::Down(_))));
    assert!(matches!(pinned.pipeline(std::slice::from_ref(&set)).await, Err(LinkError::Down(_))));
    assert!(!redis.run::<bool>(&["EXISTS", "a"]).await);
    assert!(link.pinned().unwrap().call(&set).await.is_ok());
    tasks.begin_shutdown();
}

#[tokio::test]
async fn a_pipeline_answers_each_command_in_its_place() {
    let redis = Redis::start().await;
    let (link, tasks) = link(&redis).await;
    let pinned = link.pinned().unwrap();
    let sha = "0".repeat(40);
    let commands = [
        words(&["SET", "a", "1"]),
        words(&["LPUSH", "a", "x"]),
        words(&["EVALSHA", &sha, "0"]),
        words(&["INCR", "a"]),
    ];
    let replies = pinned.pipeline(&commands).await.unwrap();
    let [Value::Okay, Value::ServerError(wrong), Value::ServerError(missing), Value::Int(2)] =
        &replies[..]
    else {
        panic!("{replies:?}")
    };
    assert_eq!((wrong.code(), missing.code()), ("WRONGTYPE", "NOSCRIPT"));
    let missing = pinned.call(&words(&["EVALSHA", &sha, "0"])).await;
    assert!(matches!(missing, Err(LinkError::Server { code, .. }) if code == "NOSCRIPT"));
    assert_eq!(pinned.pipeline(&[]).await, Ok(Vec::new()));
    tasks.begin_shutdown();
}

#[tokio::test]
async fn a_closed_link_stays_closed() {
    let redis = Redis::start().await;
    let (link, tasks) = link(&redis).await;
    let pinned = link.pinned().unwrap();
    link.close();
    assert!(matches!(pinned.call(&cmd("PING")).await, Err(LinkError::Down(_))));
    until("its task to end", || std::future::ready((tasks.running() == 0).then_some(()))).await;
    let error = link.call(&cmd("PING")).await.unwrap_err();
    assert!(error.to_string().contains("was closed"), "{error}");
}
