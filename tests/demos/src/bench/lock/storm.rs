//! Leases that end in the same moment: the delay of a client that wants other locks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fence_client::ids;
use fence_terminal::exit::Failure;
use fence_terminal::output::say;

use super::Bench;
use super::large::{self, HEADERS, LOCKS_A_REQUEST, unavailable};
use super::peers::{EVERY_SECOND, Etcd, Peer, Redis};
use crate::bench::http::Connection;
use crate::bench::load;
use crate::bench::report::Storm;
use crate::process::POLL_INTERVAL;

/// Time for the acquires, which have to be over before the leases end: for any number, and for
/// each.
const TIME: Duration = Duration::from_secs(5);
const TIME_A_LEASE: Duration = Duration::from_micros(500);
/// Longest time for which the end of the leases is awaited.
const PATIENCE: Duration = Duration::from_secs(120);
/// The client begins before the leases end.
const LEAD: Duration = Duration::from_millis(500);
/// Locks that the client takes in turns.
const OTHERS: u32 = 50;

pub(super) async fn measure(
    bench: &mut Bench,
    leases: u32,
    with_etcd: bool,
    postgres: Option<&str>,
) -> Result<(), Failure> {
    for (name, store) in [("memory", "memory:"), ("embedded", "embedded:")] {
        let server = Peer::lock_server("lock-server", store, Vec::new()).await?;
        storm(bench, name, server, leases).await?;
    }
    let mut redis = Redis::start(EVERY_SECOND).await?;
    let server = redis.lock_servers("lock-server", 1, &[]).await?;
    storm(bench, "redis", server, leases).await?;
    redis.end().await?;
    if with_etcd {
        let etcd = Etcd::start().await?;
        storm(bench, "etcd", etcd.lock_server().await?, leases).await?;
    }
    if let Some(url) = postgres {
        let server = Peer::lock_server("lock-server", url, Vec::new()).await?;
        storm(bench, "postgres", server, leases).await?;
    }
    Ok(())
}

async fn storm(
    bench: &mut Bench,
    store: &'static str,
    server: Peer,
    leases: u32,
) -> Result<(), Failure> {
    let end = load::now() + TIME + TIME_A_LEASE * leases;
    say(&format!("{store}: acquiring {leases} locks whose leases end together"));
    acquire_until(server.url(), leases, end).await?;
    let left = end.saturating_duration_since(load::now());
    if left < LEAD {
        return Err(unavailable(format!("{store}: the first leases ended before the last began")));
    }
    tokio::time::sleep(left - LEAD).await;
    let is_over = AtomicBool::new(false);
    let both = async {
        tokio::try_join!(others(server.url(), &is_over), free(server.url(), end, &is_over))
    };
    let (longest, freed) = both.await.map_err(unavailable)?;
    let storm = Storm::new(store, leases, longest, freed);
    say(&storm.text());
    bench.report.storms.push(storm);
    server.end().await;
    Ok(())
}

/// Acquires locks whose leases end at `end`.
async fn acquire_until(url: &str, count: u32, end: Instant) -> Result<(), Failure> {
    large::send_all(url, count.div_ceil(LOCKS_A_REQUEST), |number| {
        let from = number * LOCKS_A_REQUEST;
        let numbers = from..count.min(from + LOCKS_A_REQUEST);
        let locks: Vec<_> = numbers.map(|at| format!("{{\"lock\":\"storm/{at}\"}}")).collect();
        let ttl_ms = end.saturating_duration_since(load::now()).as_millis().max(100);
        let body = format!("{{\"ttl_ms\":{ttl_ms},\"locks\":[{}]}}", locks.join(","));
        vec![("/v1/acquire".to_owned(), body)]
    })
    .await
}

/// Takes and releases other locks until the storm is over; returns the longest time of a pair.
async fn others(url: &str, is_over: &AtomicBool) -> Result<Duration, String> {
    let mut connection = Connection::open(url, None).await?;
    let mut longest = Duration::ZERO;
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        number = (number + 1) % OTHERS;
        let began = load::now();
        let body = format!("{{\"lease_id\":\"{}\"}}", ids::lease_id());
        for verb in ["acquire", "release"] {
            let path = format!("/v1/locks/others%2F{number}/{verb}");
            let reply = connection.send("POST", &path, HEADERS, body.as_bytes()).await?;
            large::expect_200(reply)?;
        }
        longest = longest.max(began.elapsed());
    }
    Ok(longest)
}

/// Waits until all leases have ended; returns how long after `end` that was seen.
async fn free(url: &str, end: Instant, is_over: &AtomicBool) -> Result<Duration, String> {
    let mut control = Connection::open(url, None).await?;
    while load::now() < end || held(&mut control).await? > 1 {
        if load::now() > end + PATIENCE {
            return Err("the leases do not end".to_owned());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    is_over.store(true, Ordering::Relaxed);
    Ok(end.elapsed())
}

/// Number of locks that are held.
async fn held(control: &mut Connection) -> Result<u32, String> {
    let body = large::expect_200(control.send("GET", "/metrics", "", b"").await?)?;
    let text = String::from_utf8_lossy(&body);
    let line = text.lines().find_map(|line| line.strip_prefix("fencepost_lock_held "));
    let held = line.and_then(|value| value.trim().parse::<f64>().ok());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    held.map(|held| held as u32).ok_or_else(|| "no fencepost_lock_held in /metrics".to_owned())
}
