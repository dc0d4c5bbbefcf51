//! The clock of Redis is stepped under leases that live. Real time counts: a client with a reply
//! that it holds a lock for so long must not share it meanwhile.

mod behind;
mod sessions;

use fence_protocol::Code;
use fence_tests::api::Locks;
use fence_tests::checks::{overlaps, tokens_rise};
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::history::{Granted, History};
use fence_tests::redis_clock::SteppedRedis;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until, until_true};
use serde_json::json;

use crate::locks::guards::readiness;

const HOUR: i64 = 3_600;
/// Less than Redis keeps the record of a lease beyond its time.
const MOMENT: i64 = 20;

pub(super) async fn server(url: &str) -> Server {
    Setup::lock_server(url).args(&["--store-timeout", "20s"]).start().await
}

/// Number of times that the server saw the clock jump.
pub(super) async fn jumps(server: &Server) -> u64 {
    let metrics = server.locks().0.get("/metrics").await;
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    let count =
        text.lines().find_map(|line| line.strip_prefix("fencepost_lock_clock_jumps_total "));
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// Asks once; a grant is noted as its caller sees it.
async fn acquire_once(locks: &Locks, history: &History, ttl_ms: u64, wait_ms: u64) -> Option<u64> {
    let invoked_ns = history.now_ns();
    let reply = locks.acquire("a", json!({"ttl_ms": ttl_ms, "wait_ms": wait_ms})).await;
    if reply.status != 200 {
        // 410: its time had passed before the server could reply.
        assert!([410, 423, 503, 504].contains(&reply.status), "{reply:?}");
        return None;
    }
    let lease = reply.lease();
    history.granted(Granted {
        lock: "a".to_owned(),
        lease: lease.lease_id,
        token: lease.token.get(),
        ttl_ms: lease.ttl_ms,
        span: history.since(invoked_ns),
        released_ns: None,
        kept_ns: None,
    });
    Some(lease.token.get())
}

/// Redis has forgotten the lease before any server looks: an hour is more than it keeps a record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_is_granted_beside_a_holder_when_the_clock_jumps() {
    let redis = SteppedRedis::start().await;
    let history = History::new();
    let first = server(&redis.url()).await;
    let second = server(&redis.url()).await;
    let one = first.locks();
    let other = second.locks();
    acquire_once(&one, &history, 10_000, 0).await.expect("the lock is free");
    let waiting = async { acquire_once(&other, &history, 6_000, 60_000).await.expect("a grant") };
    let asking = async {
        one.queue_of("a", 1).await;
        redis.step(HOUR);
        until("a grant", || acquire_once(&one, &history, 3_000, 0)).await
    };
    tokio::join!(waiting, asking);
    let grants = history.grants();
    assert_eq!(grants.len(), 3);
    assert_eq!(overlaps(&grants), Vec::<String>::new());
    assert_eq!(tokens_rise(&grants), Ok(()));
    for server in [&first, &second] {
        until_true("the jump to be seen", || async { jumps(server).await == 1 }).await;
        let text = readiness(server).await;
        assert!(text.contains("[!]clock warning: the clock of Redis jumped once"), "{text}");
        assert!(text.ends_with("ready\n"), "{text}");
        let log = server.process.stderr() + &server.process.stdout();
        assert!(log.contains("the clock of Redis jumped forward"), "{log}");
    }
}

/// The record is still there, and the lease looks as if it were over: it is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_outlives_a_short_jump() {
    let redis = SteppedRedis::start().await;
    let server = server(&redis.url()).await;
    let locks = server.locks();
    let held = locks.grant("held", 15_000).await;
    let released = locks.grant("released", 15_000).await;
    redis.step(MOMENT);
    let renewed = locks.renew("held", held.lease_id).await.lease();
    assert_eq!(renewed.token, held.token);
    locks.acquire("held", json!({})).await.problem(Code::LockHeld);
    locks.release("released", released.lease_id).await.expect(200);
    assert_eq!(jumps(&server).await, 1);
    locks.acquire("free", json!({"wait_ms": 60_000})).await.lease();
}

/// The pause lasts no longer than a lease may live, and not at all where none lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_where_nothing_lives_stops_no_grant() {
    let redis = SteppedRedis::start().await;
    let server = server(&redis.url()).await;
    redis.step(HOUR);
    server.locks().grant("a", 3_000).await;
    assert_eq!(jumps(&server).await, 1);
    let left: Option<String> = redis.run(&["GET", "{fence:default}:paused-for"]).await;
    assert_eq!(left, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_pause_a_jump_is_reported_and_no_grant_waits() {
    let redis = SteppedRedis::start().await;
    let server = Setup::lock_server(&redis.url()).args(&["--clock-pause", "off"]).start().await;
    let locks = server.locks();
    let held = locks.grant("a", 60_000).await;
    redis.step(HOUR);
    assert!(locks.grant("a", 60_000).await.token > held.token);
    assert_eq!(jumps(&server).await, 1);
}

/// Leases live longer, nothing is lost, and no grant waits for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_back_loses_nothing() {
    let redis = SteppedRedis::start().await;
    let server = server(&redis.url()).await;
    let locks = server.locks();
    let held = locks.grant("held", 60_000).await;
    let own = locks.clone();
    let waiting =
        tokio::spawn(async move { own.acquire("held", json!({"wait_ms": 60_000})).await });
    locks.queue_of("held", 1).await;
    redis.step(-HOUR);
    until_true("the jump to be seen", || async { jumps(&server).await == 1 }).await;
    assert_eq!(locks.renew("held", held.lease_id).await.lease().token, held.token);
    let free = locks.grant("free", 60_000).await;
    assert!(free.token > held.token);
    locks.release("held", held.lease_id).await.expect(200);
    let next = soon("the waiter", waiting).await.unwrap().lease();
    assert!(next.token > free.token);
    assert!(readiness(&server).await.contains("back: leases keep their time"));
}

/// A pause stands in the time of Redis. A clock that goes back does not make it an hour longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_back_does_not_make_a_pause_longer() {
    let redis = SteppedRedis::start().await;
    let server = server(&redis.url()).await;
    let locks = server.locks();
    locks.grant("a", 10_000).await;
    redis.step(HOUR);
    locks.acquire("b", json!({})).await.problem(Code::StoreUnavailable);
    redis.step(-HOUR);
    let granted = locks.acquire("b", json!({"wait_ms": 30_000}));
    soon("a grant", granted).await.lease();
    assert_eq!(jumps(&server).await, 2);
}

/// A bound that was noted before a jump was corrected is not taken for the life of a lease: it
/// would be the pause of the next jump, or of the next start of Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_jump_waits_for_the_longest_lease_alone() {
    let redis = SteppedRedis::start().await;
    let server = server(&redis.url()).await;
    let locks = server.locks();
    for (count, seconds) in [(1, HOUR), (2, 2 * HOUR), (3, HOUR), (4, 3 * HOUR)] {
        locks.grant(&format!("a/{count}"), 3_000).await;
        redis.step(seconds);
        until_true("the jump to be seen", || async { jumps(&server).await == count }).await;
        let lock = format!("b/{count}");
        let granted = locks.acquire(&lock, json!({"wait_ms": 20_000, "ttl_ms": 3_000}));
        soon("a grant", granted).await.lease();
    }
}

/// A question that is long on its way arrives late, and so does its answer: no clock has jumped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_connection_is_no_jump() {
    let redis = SteppedRedis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let limits = ["--clock-jump-limit", "100ms", "--store-timeout", "20s"];
    let log = ["--log-filter", "info,lock_server=debug"];
    let url = format!("redis://{}", proxy.address());
    let server = Setup::lock_server(&url).args(&limits).args(&log).start().await;
    let locks = server.locks();
    let held = locks.grant("held", 60_000).await;
    proxy.set(Fault::Delay(std::time::Duration::from_millis(400)));
    locks.grant("late", 60_000).await;
    assert_eq!(locks.renew("held", held.lease_id).await.lease().token, held.token);
    proxy.set(Fault::None);
    let said = server.process.stdout() + &server.process.stderr();
    assert!(said.contains("looking at the clock of Redis again"), "nothing came too late:\n{said}");
    locks.grant("soon", 60_000).await;
    assert_eq!(jumps(&server).await, 0);
}

/// A Redis that was paused resumes with the right time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_stood_still_is_no_jump() {
    let redis = SteppedRedis::start().await;
    let limits = ["--clock-jump-limit", "100ms", "--store-timeout", "20s"];
    let log = ["--log-filter", "info,lock_server=debug"];
    let server = Setup::lock_server(&redis.url()).args(&limits).args(&log).start().await;
    let locks = server.locks();
    let held = locks.grant("held", 60_000).await;
    redis.process().pause();
    let own = locks.clone();
    let asking = tokio::spawn(async move { own.grant("asked", 60_000).await });
    until_true("the request to be handled", || async {
        // It, and the one that asks for this.
        let figures = locks.0.get("/metrics").await.body;
        String::from_utf8_lossy(&figures).contains("\nfencepost_http_requests_in_flight 2\n")
    })
    .await;
    // It is the time that is tried here, and not what comes of it.
    tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
    redis.process().resume();
    let asked = soon("the grant", asking).await.unwrap();
    assert!(asked.token > held.token);
    let said = server.process.stdout() + &server.process.stderr();
    assert!(said.contains("looking at the clock of Redis again"), "nothing came too late:\n{said}");
    assert_eq!(locks.renew("held", held.lease_id).await.lease().token, held.token);
    assert_eq!(jumps(&server).await, 0);
}
