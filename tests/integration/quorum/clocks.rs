//! The clocks of nodes jump, and run at other rates. Tokens ask nothing of clocks; that only one
//! holds a lock does.

use fence_tests::history::History;
use fence_tests::redis_clock::SteppedRedis;
use fence_tests::redis_server::Redis;
use fence_tests::wait::{until, until_true};

use super::opening::LONG_MS;
use super::program::{Client, Node, server_at, two_held, until_all_vote, until_line, url_of};
use super::redlock::judge;

/// Speed of the fast clocks: so much faster that a slow machine changes nothing of what is seen.
const RATE: u32 = 10;
/// Time to live that ends after six seconds by a fast clock.
const TTL_MS: u64 = 60_000;

/// Two of three clocks jump by ten minutes: the lease is over there, so that another one is granted
/// the lock beside its holder, with a higher token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clocks_of_a_majority_jump() {
    let (one, two, right) =
        (SteppedRedis::start().await, SteppedRedis::start().await, Redis::start().await);
    let url = url_of([one.url(), two.url(), right.url()]);
    let history = History::new();
    let first = server_at(&url).await;
    let second = server_at(&url).await;
    until_all_vote(&first).await;
    until_all_vote(&second).await;
    let holder = Client::new(&first, &history);
    let other = Client::new(&second, &history);
    let held = holder.in_the_end("a", LONG_MS).await;
    holder.until_known(&[&one, &two], "a", held.lease_id).await;
    other.refused("a", 3).await;
    one.step(600);
    two.step(600);
    let next = other.in_the_end("a", LONG_MS).await;
    assert!(next.token > held.token);
    two_held(&history, "a");
    // The end is reported, and the holder learns it when it renews.
    let ended = until("an answer", || async {
        let reply = holder.locks.renew("a", held.lease_id).await;
        (!matches!(reply.status, 503 | 504)).then_some(reply)
    });
    ended.await.expect(410);
    for node in [&one, &two] {
        until_line(&second, "[!]redis-quorum node", &node.url()).await;
    }
    until_line(&second, "[!]redis-quorum node", "only mutual exclusion depends on it").await;
}

/// Two of three clocks are fast: a lease is over there long before its holder believes so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clocks_of_a_majority_run_fast() {
    let one = SteppedRedis::running(RATE).await;
    let two = SteppedRedis::running(RATE).await;
    let right = Redis::start().await;
    let url = url_of([one.url(), two.url(), right.url()]);
    let history = History::new();
    let first = server_at(&url).await;
    let second = server_at(&url).await;
    until_all_vote(&first).await;
    until_all_vote(&second).await;
    let holder = Client::new(&first, &history);
    let other = Client::new(&second, &history);
    let held = holder.in_the_end("a", TTL_MS).await;
    holder.until_known(&[&one, &two], "a", held.lease_id).await;
    let next = other.in_the_end("a", TTL_MS).await;
    assert!(next.token > held.token);
    two_held(&history, "a");
}

/// One clock is fast, and the lease over at its node: the majority is right without it, and with it
/// no client is granted the lock beside its holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_of_one_node_runs_fast() {
    let fast = SteppedRedis::running(RATE).await;
    let mut away = Redis::start().await;
    let right = Redis::start().await;
    let url = url_of([fast.url(), away.url(), right.url()]);
    let history = History::new();
    let first = server_at(&url).await;
    let second = server_at(&url).await;
    until_all_vote(&first).await;
    until_all_vote(&second).await;
    let holder = Client::new(&first, &history);
    let other = Client::new(&second, &history);
    let held = holder.in_the_end("a", TTL_MS).await;
    holder.until_known(&[&fast], "a", held.lease_id).await;
    holder.until_known(&[&away, &right], "a", held.lease_id).await;
    is_over_at(&fast, "a").await;
    other.refused("a", 5).await;
    // The fast one is needed for every majority now.
    away.kill();
    other.refused("a", 5).await;
    away.start_again().await;
    until_all_vote(&first).await;
    holder.until_known(&[&away], "a", held.lease_id).await;
    holder.release("a", held.lease_id).await;
    assert!(other.in_the_end("a", TTL_MS).await.token > held.token);
    judge(&history);
}

/// Waits until the node has no live lease of the lock, by its own clock.
async fn is_over_at(node: &impl Node, lock: &str) {
    let key = format!("{{fence:default}}:q:l:{lock}");
    until_true("the lease to be over at the fast node", || async {
        // The record itself is gone when its time and the retention are over.
        node.read(&["GET", &key]).await.is_none()
    })
    .await;
}
