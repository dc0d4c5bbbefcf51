//! A new lineage begins where the clocks say. One clock that is behind does no harm; two that are
//! both behind, while no server or guard remembers a token, do.

use fence_tests::key_file::lease_id;
use fence_tests::redis_clock::OwnClock;

use super::*;
use crate::locks::guards::{guard_at, raise};

/// More than the hour that a beginning leaves between the clock and itself.
const BACK: i64 = -2 * HOUR;

/// Server without the pause after a loss: these tests are about tokens, and grants do not wait for
/// leases.
fn setup(url: &str) -> Setup {
    Setup::lock_server(url).args(&["--after-loss", "grant"])
}

/// The next token, as soon as a server grants again.
async fn next(server: &Server, lock: &str) -> u64 {
    let locks = server.locks();
    let ask = json!({"ttl_ms": 60_000, "lease_id": lease_id()});
    until("a grant", || async {
        let reply = locks.acquire(lock, ask.clone()).await;
        (!matches!(reply.status, 503 | 504)).then(|| reply.lease().token.get())
    })
    .await
}

/// The last token under right clocks, by a server that is gone; Redis has forgotten all of it.
async fn issued_and_forgotten(redis: &SteppedRedis) -> u64 {
    let mut server = setup(&redis.url()).start().await;
    let last = next(&server, "a").await;
    server.process.kill();
    let _: () = redis.run(&["FLUSHALL"]).await;
    last
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_clock_that_is_behind_lowers_no_token() {
    for (of_redis, ours) in [(BACK, 0), (0, BACK)] {
        let redis = SteppedRedis::start().await;
        let clock = OwnClock::at(ours);
        let last = issued_and_forgotten(&redis).await;
        redis.step(of_redis);
        let server = clock.applied_to(setup(&redis.url())).start().await;
        let token = next(&server, "b").await;
        assert!(token > last, "{token} after {last}, clocks moved by {of_redis} s and {ours} s");
    }
}

/// The hole: both clocks are behind, and no server that saw a token is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clocks_behind_may_lower_tokens() {
    let redis = SteppedRedis::start().await;
    let clock = OwnClock::at(BACK);
    let last = issued_and_forgotten(&redis).await;
    redis.step(BACK);
    let server = clock.applied_to(setup(&redis.url())).start().await;
    let token = next(&server, "b").await;
    assert!(token < last, "{token} after {last}: is the hole closed? Then the docs are wrong");
}

/// A process that saw a token closes it: a server that continues, and a guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_saw_a_token_is_a_witness_where_both_clocks_are_behind() {
    let redis = SteppedRedis::start().await;
    let clock = OwnClock::at(0);
    let server = clock.applied_to(setup(&redis.url())).start().await;
    let last = next(&server, "a").await;
    redis.step(BACK);
    clock.step(BACK);
    let _: () = redis.run(&["FLUSHALL"]).await;
    let token = next(&server, "b").await;
    assert!(token > last, "{token} after {last}, at a server that saw it");

    let redis = SteppedRedis::start().await;
    let clock = OwnClock::at(BACK);
    let last = issued_and_forgotten(&redis).await;
    let guard = guard_at(1).await;
    raise(&guard, last).await;
    redis.step(BACK);
    let asks = setup(&redis.url()).args(&["--guard", &guard.base]);
    let server = clock.applied_to(asks).start().await;
    let token = next(&server, "b").await;
    assert!(token > last, "{token} after {last}, which a guard has seen");
}
