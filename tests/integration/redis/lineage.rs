//! Redis forgets, and tokens rise all the same (L1, L5).

use fence_protocol::Code;
use fence_tests::api::Locks;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::lease_id;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until, until_true};
use lease::tokens;
use serde_json::json;
use service_kit::clock::{Clock as _, SystemClock};

use crate::locks::guards::{FAR, guard_at, raise, readiness, warning};

/// Server without the pause after a loss: these tests are about tokens; `loss.rs` tests that grants
/// wait.
fn setup(redis: &Redis) -> Setup {
    Setup::lock_server(&redis.url()).args(&["--after-loss", "grant"])
}

async fn lock_server(redis: &Redis) -> Server {
    setup(redis).args(&["--store-timeout", "20s", "--ended-retention", "10m"]).start().await
}

fn with_guards(redis: &Redis, guards: &[&str]) -> Setup {
    guards.iter().fold(setup(redis), |setup, guard| setup.args(&["--guard", guard]))
}

/// The next grant, as soon as the server grants again. While it does not, it says why.
async fn next_token(locks: &Locks, lock: &str) -> u64 {
    let ask = json!({"ttl_ms": 60_000, "lease_id": lease_id()});
    until("a grant", || async {
        let reply = locks.acquire(lock, ask.clone()).await;
        if matches!(reply.status, 503 | 504) {
            return None;
        }
        Some(reply.lease().token.get())
    })
    .await
}

#[tokio::test]
async fn tokens_rise_after_flushall() {
    let redis = Redis::start().await;
    let server = lock_server(&redis).await;
    let locks = server.locks();
    let before = next_token(&locks, "a").await.max(next_token(&locks, "b").await);
    let _: () = redis.run(&["FLUSHALL"]).await;
    let after = next_token(&locks, "c").await;
    assert!(after > before, "{after} after {before}");
    // The lease of "a" is forgotten too; the lock is granted again, above everything.
    assert!(next_token(&locks, "a").await > after);
}

#[tokio::test]
async fn tokens_rise_after_flushall_with_a_new_server() {
    let redis = Redis::start().await;
    let mut first = lock_server(&redis).await;
    let before = next_token(&first.locks(), "a").await;
    first.process.kill();
    let _: () = redis.run(&["FLUSHALL"]).await;
    let second = lock_server(&redis).await;
    assert!(next_token(&second.locks(), "a").await > before);
}

#[tokio::test]
async fn tokens_rise_after_a_restart_that_forgot_everything() {
    let mut redis = Redis::with(&[("appendonly", "no")]).await;
    let server = lock_server(&redis).await;
    let locks = server.locks();
    let before = next_token(&locks, "a").await;
    redis.kill();
    redis.start_again().await;
    assert!(next_token(&locks, "b").await > before);
}

/// An old copy of the data comes back: the counter is lower than what was issued since.
#[tokio::test]
async fn tokens_rise_after_an_old_backup() {
    let mut redis = Redis::with(&[("appendonly", "no")]).await;
    let server = lock_server(&redis).await;
    let locks = server.locks();
    next_token(&locks, "a").await;
    let _: () = redis.run(&["SAVE"]).await;
    let mut before = 0;
    for lock in ["b", "c", "d", "e"] {
        before = next_token(&locks, lock).await;
    }
    redis.kill();
    redis.start_again().await;
    assert!(next_token(&locks, "f").await > before);
}

/// An operator deletes or lowers keys by hand while nothing restarts.
#[tokio::test]
async fn tokens_rise_whichever_key_is_deleted() {
    let redis = Redis::start().await;
    let server = lock_server(&redis).await;
    let locks = server.locks();
    let mut before = next_token(&locks, "first").await;
    let keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
    assert!(!keys.is_empty());
    for (number, key) in keys.iter().enumerate() {
        let _: u64 = redis.run(&["DEL", key]).await;
        let after = next_token(&locks, &format!("next/{number}")).await;
        assert!(after > before, "{after} after {before}, without {key}");
        before = after;
    }
}

#[tokio::test]
async fn scripts_that_were_flushed_are_loaded_again() {
    let redis = Redis::start().await;
    let server = lock_server(&redis).await;
    let locks = server.locks();
    let lease = locks.grant("a", 60_000).await;
    for _ in 0..2 {
        let _: () = redis.run(&["SCRIPT", "FLUSH"]).await;
        let renewed = until("a renewal", || async {
            let reply = locks.renew("a", lease.lease_id).await;
            (reply.status != 503 && reply.status != 504).then_some(reply)
        })
        .await;
        assert_eq!(renewed.lease().token, lease.token);
    }
}

/// Durable Redis, restarted in good order: leases, ids and order are as before.
#[tokio::test]
async fn a_restart_of_redis_loses_nothing() {
    let mut redis = Redis::start().await;
    let server = lock_server(&redis).await;
    let locks = server.locks();
    let held = locks.grant("held", 60_000).await;
    let ended = locks.grant("ended", 60_000).await;
    locks.release("ended", ended.lease_id).await.expect(200);
    redis.restart().await;
    let renewed = until("a renewal after the restart", || async {
        let reply = locks.renew("held", held.lease_id).await;
        (reply.status != 503 && reply.status != 504).then_some(reply)
    })
    .await;
    assert_eq!(renewed.lease().token, held.token);
    let again = json!({"lease_id": ended.lease_id});
    locks.acquire("ended", again).await.problem(Code::LeaseLost);
    locks.acquire("held", json!({})).await.problem(Code::LockHeld);
    assert!(next_token(&locks, "next").await > ended.token.get());
    locks.release("held", held.lease_id).await.expect(200);
}

/// Waiters continue to wait while Redis is unreachable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_continues_after_redis_restarts() {
    let mut redis = Redis::start().await;
    let server = lock_server(&redis).await;
    let locks = server.locks();
    let held = locks.grant("waits", 60_000).await;
    let own = locks.clone();
    let waiting = tokio::spawn(async move {
        own.acquire("waits", json!({"wait_ms": 60_000, "ttl_ms": 60_000})).await
    });
    locks.queue_of("waits", 1).await;
    redis.restart().await;
    until("the release after the restart", || async {
        let reply = locks.release("waits", held.lease_id).await;
        matches!(reply.status, 200 | 410).then_some(())
    })
    .await;
    let next = fence_tests::wait::soon("the waiter", waiting).await.unwrap().lease();
    assert!(next.token > held.token);
}

#[tokio::test]
async fn init_fresh_starts_at_one_and_only_once() {
    let redis = Redis::start().await;
    let fresh = ["init", "--fresh", "--store", &redis.url()];
    let output = fence_tests::process::run("lock-server", &fresh).await;
    assert_eq!(output.code, 0, "{output:?}");
    let server = lock_server(&redis).await;
    assert_eq!(next_token(&server.locks(), "a").await, 1);
    assert_eq!(next_token(&server.locks(), "b").await, 2);
    // A name space that has issued tokens is not new, whatever the operator believes.
    let again = fence_tests::process::run("lock-server", &fresh).await;
    assert_ne!(again.code, 0, "{again:?}");
    assert_eq!(next_token(&server.locks(), "c").await, 3);
}

#[tokio::test]
async fn an_unverified_redis_starts_high() {
    let redis = Redis::start().await;
    let server = lock_server(&redis).await;
    let token = next_token(&server.locks(), "a").await;
    // Milliseconds since 2025 times a thousand: 14 digits from the start.
    assert!(token > 10_000_000_000_000, "{token}");
}

/// Redis forgets the holder and the queue, but no connection breaks: the waiter asks again by
/// itself and gets the lock, above everything before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_outlives_flushall() {
    let redis = Redis::start().await;
    let server = lock_server(&redis).await;
    let locks = server.locks();
    let first = locks.grant("flushed", 60_000).await;
    let own = locks.clone();
    let waiting = tokio::spawn(async move {
        own.acquire("flushed", json!({"ttl_ms": 60_000, "wait_ms": 60_000})).await.lease()
    });
    locks.queue_of("flushed", 1).await;
    let _: () = redis.run(&["FLUSHALL"]).await;
    let next = soon("the waiter's grant", waiting).await.unwrap();
    assert!(next.token > first.token);
}

/// A client lifts the counter as far as it may; then every server and Redis forget. What is issued
/// next is above all of it.
#[tokio::test]
async fn tokens_rise_after_a_lift_and_a_loss() {
    let redis = Redis::start().await;
    let mut first = lock_server(&redis).await;
    let floor = tokens::clock_floor(SystemClock::new().wall_ms());
    let wish = json!({"ttl_ms": 60_000, "min_token": floor + tokens::LIFT_SLACK - 1});
    let lifted = first.locks().acquire("a", wish).await.lease().token;
    first.process.kill();
    let _: () = redis.run(&["FLUSHALL"]).await;
    let second = lock_server(&redis).await;
    let next = next_token(&second.locks(), "a").await;
    assert!(next > lifted.get(), "{next} after {lifted}");
}

/// A lock that no client has asked for yet, granted above a mark as soon as the server knows of it.
async fn token_above(locks: &Locks, mark: u64) -> u64 {
    let mut number = 0;
    until("a token above the mark", || {
        number += 1;
        let lock = format!("above/{number}");
        async move { Some(next_token(locks, &lock).await).filter(|token| *token > mark) }
    })
    .await
}

/// The guard is asked before the new lineage begins, not only at start: this very next token is
/// above what it has seen meanwhile.
#[tokio::test]
async fn a_new_lineage_begins_above_a_guards_mark() {
    let redis = Redis::start().await;
    let guard = guard_at(1).await;
    let server = with_guards(&redis, &[&guard.base]).start().await;
    let locks = server.locks();
    assert!(next_token(&locks, "a").await < FAR);
    raise(&guard, FAR).await;
    let _: () = redis.run(&["FLUSHALL"]).await;
    assert!(next_token(&locks, "b").await > FAR);
    assert!(readiness(&server).await.contains("[+]guards ok"));
}

#[tokio::test]
async fn a_new_server_on_an_emptied_redis_begins_above_a_guards_mark() {
    let redis = Redis::start().await;
    let guard = guard_at(FAR).await;
    let server = with_guards(&redis, &[&guard.base]).start().await;
    assert!(next_token(&server.locks(), "a").await > FAR);
}

/// Redis has forgotten nothing that it could notice, but its counter is below a mark: it was set
/// back.
#[tokio::test]
async fn a_counter_below_a_guards_mark_is_another_lineage() {
    let redis = Redis::start().await;
    let mut first = lock_server(&redis).await;
    let held = first.locks().grant("held", 60_000).await;
    first.process.kill();
    let guard = guard_at(FAR).await;
    let second = with_guards(&redis, &[&guard.base]).start().await;
    let locks = second.locks();
    assert!(next_token(&locks, "a").await > FAR);
    // Leases are not lost by it.
    assert_eq!(locks.renew("held", held.lease_id).await.lease().token, held.token);
    // It is lifted once: a third one continues from there, and begins nothing.
    let lineage: String = redis.run(&["GET", "{fence:default}:lineage"]).await;
    let third = with_guards(&redis, &[&guard.base]).start().await;
    assert!(next_token(&third.locks(), "b").await > FAR);
    assert_eq!(redis.run::<String>(&["GET", "{fence:default}:lineage"]).await, lineage);
}

/// A guard that is silent just when Redis loses its memory holds no grant up: the clock floor
/// covers it. It is named, and when it is back its mark counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_guard_does_not_stop_a_new_lineage() {
    let redis = Redis::start().await;
    let guard = guard_at(1).await;
    let proxy = FaultProxy::before(&guard.address()).await;
    let address = format!("http://{}", proxy.address());
    // Redis itself may take less time than a guard.
    let quick = ["--store-timeout", "1500ms"];
    let server = with_guards(&redis, &[&address]).args(&quick).start().await;
    let locks = server.locks();
    let before = next_token(&locks, "a").await;
    raise(&guard, FAR).await;
    for fault in [Fault::Blackhole, Fault::Refuse] {
        proxy.set(fault);
        let _: () = redis.run(&["FLUSHALL"]).await;
        let after = next_token(&locks, "b").await;
        assert!(after > before && after < FAR, "{fault:?}: {after} after {before}");
        assert!(warning(&server).await.contains(&address));
    }
    proxy.set(Fault::None);
    assert!(token_above(&locks, FAR).await > FAR);
    until_true("no warning", || async { readiness(&server).await.contains("[+]guards ok") }).await;
}

#[tokio::test]
async fn init_fresh_asks_the_guards() {
    let redis = Redis::start().await;
    let init = async |guard: &str| {
        let url = redis.url();
        let fresh = ["init", "--fresh", "--store", &url, "--guard", guard];
        fence_tests::process::run("lock-server", &fresh).await
    };
    let absent = format!("http://127.0.0.1:{}", fence_tests::ports::unused());
    let output = init(&absent).await;
    assert_eq!(output.code, 1, "{output:?}");
    assert!(output.stderr.contains(&absent), "{}", output.stderr);
    let seen = guard_at(34).await;
    let output = init(&seen.base).await;
    assert_eq!(output.code, 1, "{output:?}");
    assert!(output.stderr.contains("34"), "{}", output.stderr);
    assert_eq!(redis.run::<u64>(&["DBSIZE"]).await, 0, "nothing was begun");
    let empty = Setup::fenced_store("memory:").start().await;
    assert_eq!(init(&empty.base).await.code, 0);
    let server = with_guards(&redis, &[&empty.base]).start().await;
    assert_eq!(next_token(&server.locks(), "a").await, 1);
}
