//! Holders of rising tokens over two and three guards, and what may happen to the guards, to the
//! lines and to Redis meanwhile. Redis' own journal says whether anything stale took effect.

use std::time::Duration;

use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::journal::Journal;
use fence_tests::redis_holders::{Holders, Target};
use fence_tests::redis_server::Redis;
use fence_tests::seed::{Seed, rounds};

use super::{Port, port, setup};

/// A guard between two lines that can be hurt.
struct Rig {
    guard: Port,
    before: FaultProxy,
    behind: FaultProxy,
}

impl Rig {
    async fn new(redis: &Redis) -> Self {
        let behind = FaultProxy::before(&redis.address()).await;
        let guard = port(&setup(&format!("redis://{}", behind.address()))).await;
        let before = FaultProxy::before(&guard.address).await;
        Self { guard, before, behind }
    }
}

async fn rigs(redis: &Redis, count: usize) -> Vec<Rig> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(Rig::new(redis).await);
    }
    all
}

fn target(redis: &Redis, rigs: &[Rig], id: &str) -> Target {
    let ports = rigs.iter().map(|rig| rig.before.address()).collect();
    Target { ports, redis: redis.address(), id: id.to_owned(), is_guarded: true }
}

fn pick<'a, T>(seed: &mut Seed, of: &'a [T]) -> &'a T {
    &of[usize::try_from(seed.below(of.len() as u64)).unwrap()]
}

fn judge(journal: &Journal, rounds: usize) {
    journal.check().unwrap();
    let mut tokens: Vec<u64> = journal.entries.iter().map(|entry| entry.token).collect();
    tokens.dedup();
    assert!(tokens.len() >= rounds, "{tokens:?}: too few holders wrote to show anything");
}

async fn undisturbed(guards: usize) {
    let mut seed = Seed::of_run("redis_port::matrix");
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let rigs = rigs(&redis, guards).await;
    let mut holders = Holders::new(target(&redis, &rigs, "1"), &mut seed);
    let rounds = rounds(12, 60);
    for _ in 0..rounds {
        holders.succeed();
        holders.progress(150).await;
    }
    holders.refusals(rounds as u64).await;
    judge(&holders.stop(&redis).await, rounds);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_guards_and_many_holders() {
    undisturbed(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_guards_and_many_holders() {
    undisturbed(3).await;
}

/// The journal detects violations: the same load without a guard breaks G1 and G2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_guard_tokens_fall() {
    let mut seed = Seed::of_run("redis_port::matrix::without_a_guard");
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let ports = vec![redis.address()];
    let target = Target { ports, redis: redis.address(), id: "1".to_owned(), is_guarded: false };
    let mut holders = Holders::new(target, &mut seed);
    for _ in 0..5 {
        holders.succeed();
        holders.progress(300).await;
    }
    let journal = holders.stop(&redis).await;
    assert!(journal.never_falls().unwrap_err().starts_with("G1"));
    assert!(journal.nothing_below_a_seal().unwrap_err().starts_with("G2"));
    journal.matches_reports().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_that_stop_and_go_on() {
    let mut seed = Seed::of_run("redis_port::matrix::guards_that_stop");
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let rigs = rigs(&redis, 3).await;
    let mut holders = Holders::new(target(&redis, &rigs, "1"), &mut seed);
    let rounds = rounds(12, 60);
    for _ in 0..rounds {
        let stopped = pick(&mut seed, &rigs);
        stopped.guard.server.process.pause();
        holders.succeed();
        holders.progress(100).await;
        stopped.guard.server.process.resume();
        holders.progress(50).await;
    }
    judge(&holders.stop(&redis).await, rounds);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_that_are_killed_and_started_again() {
    let mut seed = Seed::of_run("redis_port::matrix::guards_that_are_killed");
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let mut guards = Vec::new();
    let mut ports = Vec::new();
    for _ in 0..2 {
        let listen = format!("127.0.0.1:{}", fence_tests::ports::unused());
        let setup = super::bare_setup(&redis.url()).args(&["--redis-listen", &listen]);
        guards.push((port(&setup).await, setup));
        ports.push(listen);
    }
    let target = Target { ports, redis: redis.address(), id: "1".to_owned(), is_guarded: true };
    let mut holders = Holders::new(target, &mut seed);
    let rounds = rounds(8, 100);
    for round in 0..rounds {
        holders.succeed();
        let at = round % 2;
        tokio::time::sleep(seed.time_ms(0, 30)).await;
        guards[at].0.server.process.kill();
        holders.progress(50).await;
        guards[at].0 = port(&guards[at].1).await;
        holders.progress(50).await;
    }
    judge(&holders.stop(&redis).await, rounds);
}

async fn on_bad_lines(name: &str, fault: Fault) {
    let mut seed = Seed::of_run(&format!("redis_port::matrix::{name}"));
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let rigs = rigs(&redis, 2).await;
    let mut holders = Holders::new(target(&redis, &rigs, "1"), &mut seed);
    let rounds = rounds(8, 50);
    for round in 0..rounds {
        let rig = pick(&mut seed, &rigs);
        let line = if round % 2 == 0 { &rig.behind } else { &rig.before };
        line.set(fault);
        holders.succeed();
        tokio::time::sleep(seed.time_ms(20, 200)).await;
        line.set(Fault::None);
        if seed.below(2) == 0 || matches!(fault, Fault::DropReplies) {
            line.cut();
        }
        holders.progress(50).await;
    }
    judge(&holders.stop(&redis).await, rounds);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_that_are_cut() {
    on_bad_lines("lines_that_are_cut", Fault::Refuse).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_that_are_slow() {
    on_bad_lines("lines_that_are_slow", Fault::Delay(Duration::from_millis(15))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_that_are_half_open() {
    on_bad_lines("lines_that_are_half_open", Fault::Blackhole).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_that_lose_replies() {
    on_bad_lines("lines_that_lose_replies", Fault::DropReplies).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_and_started_again() {
    let mut seed = Seed::of_run("redis_port::matrix::a_redis_that_is_killed");
    let mut redis = Redis::start().await;
    let rigs = rigs(&redis, 2).await;
    let mut holders = Holders::new(target(&redis, &rigs, "1"), &mut seed);
    let rounds = rounds(4, 40);
    for _ in 0..rounds {
        holders.succeed();
        tokio::time::sleep(seed.time_ms(0, 100)).await;
        redis.kill();
        redis.start_again().await;
        holders.progress(50).await;
    }
    judge(&holders.stop(&redis).await, rounds);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_paused_and_resumes() {
    let mut seed = Seed::of_run("redis_port::matrix::a_paused_redis");
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let rigs = rigs(&redis, 2).await;
    let mut holders = Holders::new(target(&redis, &rigs, "1"), &mut seed);
    let rounds = rounds(6, 60);
    for _ in 0..rounds {
        redis.process().pause();
        holders.succeed();
        tokio::time::sleep(seed.time_ms(10, 300)).await;
        redis.process().resume();
        holders.progress(50).await;
    }
    judge(&holders.stop(&redis).await, rounds);
}
