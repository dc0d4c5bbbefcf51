//! Many live leases, and many waiters: what one more of them costs.

use fence_client::ids;
use serde::Deserialize;

use super::Bench;
use super::clients::Work;
use super::peers::{EVERY_SECOND, Peer, Redis};
use crate::bench::http::Connection;
use crate::bench::{cpu, load, resp};
use crate::process::{PATIENCE, POLL_INTERVAL};
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::say;

/// Live leases that are no burden.
const FEW: u32 = 1_000;
/// Locks of one request, the most that a server takes.
pub(super) const LOCKS_A_REQUEST: u32 = 64;
/// Connections of the load that is not measured.
const SENDERS: u32 = 16;
/// Waiters of one lock.
const QUEUE: u32 = 100;
/// Clients beside the waiters.
const OTHERS: u16 = 16;
/// Milliseconds that leases live and waiters wait: longer than what is measured.
const TTL_MS: u32 = 3_600_000;
const WAIT_MS: u32 = 300_000;

pub(super) const HEADERS: &str = "content-type: application/json\r\n";

pub(super) async fn measure(bench: &mut Bench, leases: u32) -> Result<(), Failure> {
    let (mut small, mut large) =
        (Redis::start(EVERY_SECOND).await?, Redis::start(EVERY_SECOND).await?);
    let few = small.lock_servers(&format!("{FEW} live leases"), 1, &[]).await?;
    let many = large.lock_servers(&format!("{leases} live leases"), 1, &[]).await?;
    fill(&few, FEW).await?;
    let used = fill(&many, leases).await?;
    bench.fact("memory of a live lease, lock-server", used / f64::from(leases));
    bench.compare("redis, acquire alone", 1, Work::Acquire, &[&few, &many]).await?;
    many.end().await;
    large.end().await?;
    few.end().await;
    waiters(bench, &mut small, (leases / 100).max(1)).await?;
    idle_locks(bench, &mut small, (leases / 10).max(1)).await
}

/// Sends the requests of the numbers below `count` over several connections at once. A request is a
/// path and a body.
pub(super) async fn send_all(
    url: &str,
    count: u32,
    requests: impl Fn(u32) -> Vec<(String, String)>,
) -> Result<(), Failure> {
    let sender = async |first: u32| -> Result<(), String> {
        let mut connection = Connection::open(url, None).await?;
        for number in (first..count).step_by(SENDERS as usize) {
            for (path, body) in requests(number) {
                expect_200(connection.send("POST", &path, HEADERS, body.as_bytes()).await?)?;
            }
        }
        Ok(())
    };
    let sent = futures_util::future::try_join_all((0..SENDERS).map(sender)).await;
    sent.map(drop).map_err(unavailable)
}

/// Acquires `count` locks that are not released; by how many bytes the server grew.
async fn fill(server: &Peer, count: u32) -> Result<f64, Failure> {
    say(&format!("acquiring {count} locks"));
    let before = resident(server);
    let request = |number: u32| {
        let from = number * LOCKS_A_REQUEST;
        let numbers = from..count.min(from + LOCKS_A_REQUEST);
        let locks: Vec<_> = numbers.map(|at| format!("{{\"lock\":\"live/{at}\"}}")).collect();
        let body = format!("{{\"ttl_ms\":{TTL_MS},\"locks\":[{}]}}", locks.join(","));
        vec![("/v1/acquire".to_owned(), body)]
    };
    send_all(server.url(), count.div_ceil(LOCKS_A_REQUEST), request).await?;
    Ok(resident(server) - before)
}

/// Requests of other clients while `count` requests wait, beside those of a server without waiters.
async fn waiters(bench: &mut Bench, redis: &mut Redis, count: u32) -> Result<(), Failure> {
    let connections = (count + 1_000).to_string();
    let args = ["--max-connections", connections.as_str()];
    raise_open_files();
    let without = redis.lock_servers("no waiters", 1, &args).await?;
    let with = redis.lock_servers(&format!("{count} waiters"), 1, &args).await?;
    say(&format!("waiting {count} times"));
    let before = resident(&with);
    let waiting = wait(with.url(), count).await.map_err(unavailable)?;
    bench.fact("memory of a waiter, lock-server", (resident(&with) - before) / f64::from(count));
    bench.compare("redis, beside waiters", OTHERS, Work::Distinct, &[&without, &with]).await?;
    drop(waiting);
    Ok(())
}

/// Sends `count` requests that wait, and returns their connections once all of them are in queues.
async fn wait(url: &str, count: u32) -> Result<Vec<Connection>, String> {
    let mut control = Connection::open(url, None).await?;
    let mut waiting = Vec::new();
    for number in 0..count {
        let path = format!("/v1/locks/queue-{}/acquire", number / QUEUE);
        if number % QUEUE == 0 {
            let held = format!("{{\"ttl_ms\":{TTL_MS}}}");
            expect_200(control.send("POST", &path, HEADERS, held.as_bytes()).await?)?;
        }
        let body = format!("{{\"ttl_ms\":{TTL_MS},\"wait_ms\":{WAIT_MS}}}");
        let mut connection = Connection::open(url, None).await?;
        connection.begin("POST", &path, HEADERS, body.as_bytes()).await?;
        waiting.push(connection);
    }
    for lock in 0..count.div_ceil(QUEUE) {
        let expected = QUEUE.min(count - lock * QUEUE);
        let path = format!("/v1/locks/queue-{lock}");
        let began = load::now();
        while queue_length(&mut control, &path).await? < expected {
            if began.elapsed() > PATIENCE {
                return Err(format!("{path}: the waiters do not come into the queue"));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    Ok(waiting)
}

#[derive(Deserialize)]
struct Queue {
    queue_length: u32,
}

async fn queue_length(control: &mut Connection, path: &str) -> Result<u32, String> {
    let body = expect_200(control.send("GET", path, "", b"").await?)?;
    let queue: Queue = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    Ok(queue.queue_length)
}

pub(super) fn expect_200((status, body): (u16, Vec<u8>)) -> Result<Vec<u8>, String> {
    match status {
        200 => Ok(body),
        _ => Err(format!("{status} {}", String::from_utf8_lossy(&body))),
    }
}

/// Bytes of RAM of a peer's lock server; 0 where that is not known.
fn resident(server: &Peer) -> f64 {
    let pid = server.counted.iter().find(|(name, _)| *name == "lock-server").map(|(_, pid)| *pid);
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let bytes = pid.and_then(cpu::resident_bytes).unwrap_or(0) as f64;
    bytes
}

/// Memory that `count` locks leave in Redis once they were acquired, released and forgotten.
async fn idle_locks(bench: &mut Bench, redis: &mut Redis, count: u32) -> Result<(), Failure> {
    let args = ["--event-history", "0", "--ended-retention", "1s"];
    let server = redis.lock_servers("idle locks", 1, &args).await?;
    say(&format!("acquiring and releasing {count} locks"));
    let requests = |number: u32| {
        let body = format!("{{\"lease_id\":\"{}\"}}", ids::lease_id());
        let path = |verb| format!("/v1/locks/idle%2F{number}/{verb}");
        vec![(path("acquire"), body.clone()), (path("release"), body)]
    };
    let mut control = resp::Connection::open(redis.url()).await.map_err(unavailable)?;
    let keys = number_of(&mut control, KEYS).await?;
    let memory = number_of(&mut control, MEMORY).await?;
    send_all(server.url(), count, requests).await?;
    let began = load::now();
    while number_of(&mut control, KEYS).await? > keys && began.elapsed() < PATIENCE {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let left_behind = number_of(&mut control, MEMORY).await? - memory;
    bench.fact("memory of an idle lock, Redis", left_behind / f64::from(count));
    Ok(())
}

/// A command, and what stands before the number in its reply.
type Question = (&'static [&'static [u8]], &'static str);
const KEYS: Question = (&[b"DBSIZE"], ":");
const MEMORY: Question = (&[b"INFO", b"memory"], "used_memory:");

async fn number_of(redis: &mut resp::Connection, question: Question) -> Result<f64, Failure> {
    let (command, before) = question;
    let reply = redis.call(command).await.map_err(unavailable)?;
    let reply = String::from_utf8_lossy(reply);
    let number = reply.lines().find_map(|line| line.strip_prefix(before)?.parse().ok());
    number.ok_or_else(|| unavailable(format!("no {before} in {reply:?}")))
}

/// Lets this process, and the servers that it starts, open as many files as it may.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    // Where the limit cannot be raised, connecting fails and says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

pub(super) fn unavailable(error: String) -> Failure {
    Failure::new(code::UNAVAILABLE, error)
}

impl Bench {
    fn fact(&mut self, what: &'static str, bytes: f64) {
        say(&format!("{what}: {bytes:.0} bytes"));
        self.report.bytes.insert(what, bytes);
    }
}
