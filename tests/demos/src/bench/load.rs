//! Many clients in one thread, each doing one thing after the other until time is up.

use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use fence_client::BearerToken;
use futures_util::future::join_all;
use hdrhistogram::Histogram;

use super::cpu;
use fence_terminal::exit::{Failure, code};
use fence_terminal::status::StatusLine;

/// Name of the load generator among the processes whose CPU time is counted.
pub(super) const LOAD_GENERATOR: &str = "load";
/// Before each measurement a side runs uncounted for this part of the time.
const WARM_UP_PART: u32 = 10;

/// A process whose CPU time is counted: its name and its id.
pub(super) type Counted = (&'static str, u32);

/// One client of a benchmark.
pub(super) trait Client {
    /// Things that [`once`](Self::once) does.
    fn weight(&self) -> u64 {
        1
    }

    /// Begins a turn. Between two of them the other sides have theirs, and a server may have closed
    /// a connection that rested for so long.
    fn begin(&mut self) -> impl Future<Output = Result<(), String>> {
        async { Ok(()) }
    }

    /// Does the measured thing for the `number`th time.
    fn once(&mut self, number: u64) -> impl Future<Output = Result<(), String>>;

    /// Latency of what [`once`](Self::once) did last, where that is not how long all of it took.
    fn latency(&self, all: Duration) -> Option<Duration> {
        Some(all)
    }
}

/// One side of a comparison.
pub(super) struct Side<'a, C> {
    pub(super) name: String,
    pub(super) clients: &'a mut [C],
    pub(super) counted: &'a [Counted],
}

/// Result of one measurement.
pub(super) struct Measured {
    /// Number of operations.
    pub(super) done: u64,
    pub(super) took: Duration,
    /// Latencies in microseconds.
    pub(super) latency: Histogram<u64>,
    /// CPU time that processes used meanwhile, by their names.
    pub(super) cpu: Vec<(&'static str, Duration)>,
}

/// Bearer token in the file of `--auth-file`.
pub(super) fn auth(file: Option<&Path>) -> Result<Option<BearerToken>, Failure> {
    Ok(file.map(BearerToken::from_file).transpose()?)
}

/// Measures the sides in turns, and returns the rounds of each by its name. Each round begins with
/// another side, so that none has a turn of its own.
pub(super) async fn compare<C: Client>(
    rounds: u8,
    time: Duration,
    mut sides: Vec<Side<'_, C>>,
) -> Result<Vec<(String, Vec<Measured>)>, Failure> {
    let mut measured: Vec<_> = sides.iter().map(|side| (side.name.clone(), Vec::new())).collect();
    let status = StatusLine::default();
    for round in 0..usize::from(rounds) {
        for turn in 0..sides.len() {
            let at = (round + turn) % sides.len();
            let Side { name, clients, counted } = &mut sides[at];
            let count = clients.len();
            status.show(&format!("{name}, {count} clients: round {} of {rounds}", round + 1));
            for client in clients.iter_mut() {
                let begun = client.begin().await;
                begun.map_err(|error| Failure::new(code::UNAVAILABLE, error))?;
            }
            run(clients, time / WARM_UP_PART).await?;
            let own = [(LOAD_GENERATOR, std::process::id())];
            let before = cpu_times(counted.iter().chain(&own));
            let mut outcome = run(clients, time).await?;
            let after = cpu_times(counted.iter().chain(&own));
            let used = before.iter().zip(after).map(|((_, before), (name, after))| {
                Some((name, after?.saturating_sub((*before)?)))
            });
            outcome.cpu = used.flatten().collect();
            measured[at].1.push(outcome);
        }
    }
    Ok(measured)
}

fn cpu_times<'a>(
    processes: impl Iterator<Item = &'a Counted>,
) -> Vec<(&'static str, Option<Duration>)> {
    processes.map(|(name, pid)| (*name, cpu::used(*pid))).collect()
}

/// Runs every client for `time`, all of them in this task, so that the load costs little.
async fn run<C: Client>(clients: &mut [C], time: Duration) -> Result<Measured, Failure> {
    let began = now();
    let results = join_all(clients.iter_mut().map(|client| one(client, time))).await;
    let took = began.elapsed();
    let mut measured = Measured { done: 0, took, latency: histogram()?, cpu: Vec::new() };
    for result in results {
        let (done, latency) = result?;
        measured.done += done;
        measured.latency.add(&latency).map_err(|error| Failure::internal(error.to_string()))?;
    }
    Ok(measured)
}

async fn one<C: Client>(client: &mut C, time: Duration) -> Result<(u64, Histogram<u64>), Failure> {
    let mut latency = histogram()?;
    let began = now();
    let mut before = began;
    let mut number = 0;
    while before.duration_since(began) < time {
        client.once(number).await.map_err(|error| Failure::new(code::UNAVAILABLE, error))?;
        let after = now();
        if let Some(took) = client.latency(after.duration_since(before)) {
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            latency.saturating_record(micros.max(1));
        }
        before = after;
        number += 1;
    }
    Ok((number * client.weight(), latency))
}

#[expect(clippy::disallowed_methods, reason = "a benchmark is about real microseconds")]
pub(super) fn now() -> Instant {
    Instant::now()
}

pub(super) fn histogram() -> Result<Histogram<u64>, Failure> {
    Histogram::new_with_bounds(1, 60_000_000, 3)
        .map_err(|error| Failure::internal(error.to_string()))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::watch;

    use super::*;
    use crate::bench::http::Connection;

    struct Caller(Connection);

    impl Client for Caller {
        async fn begin(&mut self) -> Result<(), String> {
            self.0.reopen().await
        }

        async fn once(&mut self, _number: u64) -> Result<(), String> {
            self.0.send("GET", "/", "", b"").await.map(drop)
        }
    }

    /// Serves one connection until a newer one has a request.
    async fn serve(mut stream: TcpStream, number: u32, newest: watch::Sender<u32>) {
        let mut seen = newest.subscribe();
        let mut asked = [0; 1024];
        loop {
            tokio::select! {
                () = async { drop(seen.wait_for(|newest| *newest > number).await) } => return,
                read = stream.read(&mut asked) => {
                    if !matches!(read, Ok(1..)) {
                        return;
                    }
                    newest.send_replace(number);
                    let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    stream.write_all(reply).await.unwrap();
                }
            }
        }
    }

    #[tokio::test]
    async fn a_side_whose_connection_was_closed_in_the_turn_of_another_is_measured() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let newest = watch::Sender::new(0);
        let kit = service_kit::Kit::new("test");
        let server = async {
            for number in 1.. {
                let (stream, _) = listener.accept().await.unwrap();
                kit.tasks.spawn(serve(stream, number, newest.clone()));
            }
        };
        let measure = async {
            let mut clients = Vec::new();
            for _ in 0..2 {
                clients.push([Caller(Connection::open(&url, None).await.unwrap())]);
            }
            let sides = clients.iter_mut().map(|clients| Side {
                name: "side".to_owned(),
                clients,
                counted: &[],
            });
            compare(3, Duration::from_millis(5), sides.collect()).await.map(drop).unwrap();
        };
        tokio::select! {
            () = server => {}
            () = measure => {}
        }
    }
}
