//! Another program changes marks and lanes in Redis.

use fence_protocol::Code;
use fence_tests::wait::until_true;

use super::load::lease_of;
use super::{LASTING_TTL, LONG_TTL, Pair, is_problem};

/// The leader's memory is wrong then. Its term ends, and the next one reads what is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_that_another_program_raised_ends_the_term() {
    let pair = Pair::with_ttl(LONG_TTL).await;
    let leader = pair.leader().await;
    pair.written_through(leader, "doc", 33, "one").await;
    let mark = format!("99 {}", lease_of(99));
    let _: i64 = pair.setting.redis.run(&["HSET", &Pair::key("marks"), "doc", &mark]).await;
    pair.members[leader].put("doc", 34, "refused").await.unwrap().expect(503);
    let problem = pair.one_answers("doc", 34, 412).await.problem(Code::StaleToken);
    assert_eq!(problem.extension::<u64>("mark"), Some(99));
    pair.one_answers("other", 1, 204).await;
    let log = pair.members[leader].server.process.stderr();
    assert!(log.contains("refusing to lower the mark of lock doc from 99"), "{log}");
}

/// A mark that was deleted is no lock without one. It stops its own lane alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_in_place_of_another_stops_its_lane_alone() {
    let pair = Pair::with_ttl(LONG_TTL).await;
    let leader = pair.leader().await;
    pair.written_through(leader, "doc", 33, "one").await;
    let marks = Pair::key("marks");
    // Their number stays.
    let _: i64 = pair.setting.redis.run(&["HSET", &marks, "forged", "1 x"]).await;
    let _: i64 = pair.setting.redis.run(&["HDEL", &marks, "doc"]).await;
    pair.members[leader].put("doc", 34, "refused").await.unwrap().expect(503);
    // That commit ended a term. In the next one the lane is refused before it commits anything.
    pair.one_answers("other", 1, 204).await;
    until_true("a term in which the lane is refused and the other one is not", || async {
        let leader = &pair.members[pair.leader().await];
        let term = leader.term().await;
        let refused = leader.put("doc", 34, "refused").await.unwrap();
        assert_eq!(refused.status / 100, 5, "{refused:?}");
        let other = leader.put("other", 2, "two").await.unwrap();
        let is_one_term = term.is_some() && leader.term().await == term;
        is_one_term && is_problem(&refused, Code::StoreUnavailable) && other.status == 204
    })
    .await;
}

/// Neither guard can lead until it is repaired, and both say why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_type_is_named() {
    let pair = Pair::start().await;
    let leader = pair.leader().await;
    pair.written_through(leader, "doc", 33, "one").await;
    let open = Pair::key("open");
    let _: () = pair.setting.redis.run(&["SET", &open, "x"]).await;
    pair.one_says("cannot be taken over: Redis answered WRONGTYPE").await;
    let _: i64 = pair.setting.redis.run(&["DEL", &open]).await;
    pair.one_answers("doc", 34, 204).await;
}

/// A leader whose Redis refuses writes for a time keeps its lead, and the write waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_without_memory_ends_no_term() {
    let pair = Pair::with_ttl(LASTING_TTL).await;
    let leader = pair.leader().await;
    let redis = &pair.setting.redis;
    let _: () = redis.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    pair.members[leader].put("doc", 33, "waits").await.unwrap().expect(503);
    until_true("the guard to say that lanes wait", || async {
        let log = pair.members[leader].server.process.stderr();
        log.contains("lanes wait for a commit, which is retried")
    })
    .await;
    let _: () = redis.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    pair.written_through(leader, "doc", 34, "one").await;
    assert_eq!(pair.members[leader].server.metric("fencepost_fence_takeovers_total").await, 1);
}

/// Without the list of open lanes any write may be on its way. So all lanes wait, and wait again if
/// the guard that leads ends before it has served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_list_of_open_lanes_is_waited_for_by_each_leader() {
    let mut pair = Pair::start().await;
    let leader = pair.leader().await;
    pair.written_through(leader, "doc", 33, "one").await;
    let _: i64 = pair.setting.redis.run(&["DEL", &Pair::key("open")]).await;
    let waits = pair.one_says("for writes of guards that Redis forgot").await;
    pair.members[waits].server.process.kill();
    let other = &pair.members[1 - waits];
    until_true("the other guard to wait too", || async {
        other.readiness().await.contains("for writes of guards that Redis forgot")
    })
    .await;
    pair.written_through(1 - waits, "doc", 34, "two").await;
    pair.tokens_never_fell("doc");
}
