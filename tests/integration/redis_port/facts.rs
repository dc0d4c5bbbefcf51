//! Facts of Redis on which the design of the port rests, shown without a guard.

use fence_tests::redis_server::Redis;
use fence_tests::resp_client::{Resp, RespClient, request};
use fence_tests::seed::{Seed, rounds};
use fence_tests::wait::{soon, until_true};

const FLOOD: i64 = 500_000;

async fn counter(client: &mut RespClient) -> i64 {
    match client.call(&["GET", "n"]).await {
        Resp::Null => 0,
        reply => reply.text().parse().unwrap(),
    }
}

/// One flood of INCRs, killed midway; where the counter stood at the reply to the kill.
async fn flood_and_kill(redis: &Redis, seed: &mut Seed) -> i64 {
    let mut killer = RespClient::connect(&redis.address()).await;
    killer.call(&["DEL", "n"]).await;
    let mut flooder = RespClient::connect(&redis.address()).await;
    let id = flooder.call(&["CLIENT", "ID"]).await.integer().to_string();
    let (mut writer, reader) = flooder.split();
    let writing = tokio::spawn(async move {
        let incr = request(&["INCR", "n"]).repeat(usize::try_from(FLOOD).unwrap());
        // The connection is cut under it.
        let _ = writer.write_all(&incr).await;
        writer
    });
    let midway = 1 + i64::try_from(seed.below(50_000)).unwrap();
    until_true("the flood to be midway", || async {
        let mut eye = RespClient::connect(&redis.address()).await;
        counter(&mut eye).await >= midway
    })
    .await;
    assert_eq!(killer.call(&["CLIENT", "KILL", "ID", &id]).await, Resp::Integer(1));
    let at_kill = counter(&mut killer).await;
    drop(soon("the flood to end", writing).await.unwrap());
    drop(reader);
    for _ in 0..50 {
        assert_eq!(counter(&mut killer).await, at_kill, "it moved after the kill's reply");
    }
    at_kill
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_runs_nothing_more_of_a_killed_client() {
    let mut seed = Seed::of_run("redis_runs_nothing_more_of_a_killed_client");
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let floods = rounds(30, 300);
    let mut midway = 0;
    for _ in 0..floods {
        if flood_and_kill(&redis, &mut seed).await < FLOOD {
            midway += 1;
        }
    }
    assert!(2 * midway > floods, "{midway} of {floods} were killed midway: it shows nothing");
}

/// So a registration must name the process, too.
#[tokio::test]
async fn client_ids_begin_again_after_a_restart_and_the_run_id_changes() {
    let mut redis = Redis::start().await;
    let run_id = |info: String| {
        let line = info.lines().find(|line| line.starts_with("run_id:")).map(str::to_owned);
        line.unwrap()
    };
    for _ in 0..30 {
        RespClient::connect(&redis.address()).await.call(&["PING"]).await;
    }
    let before: i64 = redis.run(&["CLIENT", "ID"]).await;
    let first = run_id(redis.run(&["INFO", "server"]).await);
    redis.restart().await;
    let after: i64 = redis.run(&["CLIENT", "ID"]).await;
    assert!(after < before, "{after} after {before}");
    assert_ne!(run_id(redis.run(&["INFO", "server"]).await), first);
}

/// A command that is refused in the middle of a pipeline does not stop what follows: a guard has
/// to keep a refused client's commands from Redis by itself.
#[tokio::test]
async fn an_error_does_not_stop_the_pipeline() {
    let redis = Redis::start().await;
    let mut client = RespClient::connect(&redis.address()).await;
    let replies = client.pipeline(&[&["SET", "a", "x"], &["INCR", "a"], &["INCR", "n"]]).await;
    assert!(replies[1].error().is_some() && replies[2] == Resp::Integer(1), "{replies:?}");
}
