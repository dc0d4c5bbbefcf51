//! The lock server, the way to it, and Redis fail.

use fence_protocol::Code;
use fence_tests::fault_proxy::Fault;
use fence_tests::servers::Setup;
use fence_tests::wait::{until, until_true};
use http::Method;
use serde_json::json;

use super::{LONG_TTL, Member, Pair, is_problem};

/// Neither guard reaches the lock server: the leader stops at the end of its lease, and nothing is
/// forwarded until one is granted again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_lock_server_stops_in_time() {
    let pair = Pair::start().await;
    let leader = pair.leader().await;
    pair.written_through(leader, "doc", 33, "one").await;
    for member in &pair.members {
        member.to_locks.set(Fault::Blackhole);
    }
    let old = &pair.members[leader];
    until_true("the leader to stop", || async {
        let reply = old.put("doc", 33, "more").await.unwrap();
        assert!(matches!(reply.status, 204 | 503 | 504), "{reply:?}");
        is_problem(&reply, Code::NotLeader)
    })
    .await;
    let applied = pair.applied("doc").len();
    for member in &pair.members {
        member.put("doc", 34, "none").await.unwrap().problem(Code::NotLeader);
    }
    assert_eq!(pair.applied("doc").len(), applied);
    for member in &pair.members {
        member.to_locks.heal();
    }
    let leader = pair.leader().await;
    pair.written_through(leader, "doc", 35, "again").await;
    pair.tokens_never_fell("doc");
}

/// Only the leader loses its way to the lock server. It stops before the standby starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_is_replaced() {
    let pair = Pair::with_ttl(LONG_TTL).await;
    let leader = pair.leader().await;
    let [old, new] = [&pair.members[leader], &pair.members[1 - leader]];
    let mut token = 33;
    pair.written_through(leader, "doc", token, "one").await;
    old.to_locks.set(Fault::Blackhole);
    // Both are used until the standby serves, each with a token of its own.
    until("the standby to serve", || async {
        let _ = old.put("doc", 33, "old").await;
        let reply = new.put("doc", 34, "new").await.unwrap();
        (reply.status == 204).then_some(())
    })
    .await;
    token += 1;
    old.put("doc", token, "late").await.unwrap().problem(Code::NotLeader);
    pair.tokens_never_fell("doc");
    assert!(!old.leads().await && new.leads().await);
    old.to_locks.heal();
    let standby = until("the old leader to know the new one", || async {
        let problem = old.put("doc", 35, "late").await.unwrap().problem(Code::NotLeader);
        problem.extension::<String>("leader")
    })
    .await;
    assert_eq!(standby, new.name);
}

/// Grants the lead to the standby while the leader, cut off, still trusts its own: the lock server
/// forgets its leases. Returns the index of the first leader, which has written to `doc` with 33.
async fn granted_twice(pair: &mut Pair) -> usize {
    let leader = pair.leader().await;
    pair.written_through(leader, "doc", 33, "one").await;
    let address = pair.setting.locks.address();
    pair.members[leader].to_locks.set(Fault::Blackhole);
    pair.setting.locks.process.kill();
    pair.setting.locks = Setup::lock_server("memory:").listen(address).start().await;
    let new = &pair.members[1 - leader];
    until_true("the standby to lead", || new.leads()).await;
    leader
}

/// The lanes that the first leader has open wait until it has stopped by its own clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_server_that_forgets_lowers_no_token() {
    let mut pair = Pair::with_ttl(LONG_TTL).await;
    let leader = granted_twice(&mut pair).await;
    let [old, new] = [&pair.members[leader], &pair.members[1 - leader]];
    until("the standby to serve", || async {
        let _ = old.put("doc", 33, "old").await;
        let reply = new.put("doc", 34, "new").await.unwrap();
        (reply.status == 204).then_some(())
    })
    .await;
    old.put("doc", 33, "late").await.unwrap().problem(Code::NotLeader);
    pair.tokens_never_fell("doc");
}

/// It opens no lane: that needs a commit, which comes from an earlier leader now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_replaced_commits_nothing() {
    let mut pair = Pair::with_ttl(LONG_TTL).await;
    let leader = granted_twice(&mut pair).await;
    let other = pair.members[leader].put("other", 33, "old").await.unwrap();
    assert_eq!(other.status, 503, "{other:?}");
    assert_eq!(pair.applied("other"), []);
}

/// Redis is emptied under running guards: neither serves until a floor is stated, and then nothing
/// below it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_lowers_no_mark() {
    let pair = Pair::start().await;
    let leader = pair.leader().await;
    pair.written_through(leader, "doc", 34, "one").await;
    let _: () = pair.setting.redis.run(&["FLUSHALL"]).await;
    // A mark in memory may serve until the lead has to be confirmed; a lower one never does.
    until("the guards to refuse", || async {
        let mut refused = 0;
        for member in &pair.members {
            let stale = member.put("doc", 33, "stale").await.unwrap();
            assert_ne!(stale.status, 204, "{stale:?}");
            let other = member.put("other", 1, "new").await.unwrap();
            assert_ne!(other.status, 204, "{other:?}");
            refused += u32::from(other.status == 503 && stale.status == 503);
        }
        (refused == 2).then_some(())
    })
    .await;
    for member in &pair.members {
        state_floor(member, 50).await;
    }
    let leader = pair.leader().await;
    pair.written_through(leader, "doc", 50, "above").await;
    for token in [33, 34, 48] {
        pair.one_answers("doc", token, 412).await.problem(Code::StaleToken);
    }
    let applied = pair.applied("doc");
    let mut values: Vec<String> = applied.into_iter().map(|(.., value)| value).collect();
    // Repeated where its outcome was unknown.
    values.dedup();
    assert_eq!(values, ["one", "above"]);
}

/// States that no token below the floor may pass.
async fn state_floor(member: &Member, floor: u64) {
    let floor = json!({"floor": floor}).to_string();
    until_true("the floor to be in force", || async {
        let json = [("content-type", "application/json")];
        let api = fence_tests::api::Api::new(&member.server.base);
        let reply = api.send(Method::POST, "/v1/floor", &json, floor.clone()).await;
        reply.status == 200
    })
    .await;
}

/// A floor also holds for a lane that was open when it was stated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_floor_is_above_the_marks_of_open_lanes() {
    let pair = Pair::start().await;
    for (floor, is_stated_at_leader) in [(50, true), (70, false)] {
        let leader = pair.leader().await;
        pair.written_through(leader, "doc", floor - 16, "one").await;
        let at = if is_stated_at_leader { leader } else { 1 - leader };
        state_floor(&pair.members[at], floor).await;
        // Also the guard that led refuses the token of its open lane from the reply on, before it
        // would confirm its lead.
        for member in &pair.members {
            let reply = member.put("doc", floor - 16, "stale").await.unwrap();
            assert!(matches!(reply.status, 412 | 503), "{reply:?}");
        }
        pair.one_answers("doc", floor - 10, 412).await;
    }
}

/// A restart of Redis loses nothing: the leader's commits wait for it, or another term begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_redis_is_survived() {
    let mut pair = Pair::start().await;
    let leader = pair.leader().await;
    pair.written_through(leader, "doc", 34, "one").await;
    pair.setting.redis.kill();
    pair.setting.redis.start_again().await;
    let leader = pair.leader().await;
    pair.written_through(leader, "doc", 35, "two").await;
    pair.one_answers("doc", 34, 412).await.problem(Code::StaleToken);
    pair.tokens_never_fell("doc");
}

/// A Redis whose crash may lose marks is refused at the start, unless the loss is accepted.
#[tokio::test]
async fn a_redis_that_may_forget_is_refused() {
    let redis = fence_tests::redis_server::Redis::with(&[("appendfsync", "everysec")]).await;
    let url = redis.url();
    let setup = Setup::bare("fenced-store")
        .args(&["--unsigned", "--proxy-listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9"])
        .args(&["--max-request-lifetime", "1s", "--state", &url, "--leader-lock", "a"])
        .args(&["--leader-server", "http://127.0.0.1:9"]);
    let output = setup.refused().await;
    assert!(output.stderr.contains("--lost-marks accept"), "{output:?}");
    setup.args(&["--lost-marks", "accept"]).start().await;
}
