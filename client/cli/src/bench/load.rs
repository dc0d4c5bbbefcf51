//! Many clients in one thread, each doing one thing after the other until time is up.

use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use fence_client::BearerToken;
use futures_util::future::join_all;
use hdrhistogram::Histogram;

use crate::exit::{Failure, code};

/// What one measurement gave.
pub(super) struct Measured {
    /// How many things were done.
    pub(super) done: u64,
    /// How long it took.
    pub(super) took: Duration,
    /// How long each took, in microseconds.
    pub(super) latency: Histogram<u64>,
    /// CPU time that processes used meanwhile, by their names.
    pub(super) cpu: Vec<(&'static str, Duration)>,
}

impl Measured {
    pub(super) fn per_sec(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let done = self.done as f64;
        done / self.took.as_secs_f64()
    }
}

/// One client of a benchmark.
pub(super) trait Client {
    /// Does the measured thing for the `number`th time.
    fn once(&mut self, number: u64) -> impl Future<Output = Result<(), String>>;

    /// Latency of what [`once`](Self::once) did last, where that is not how long all of it took.
    fn latency(&self, all: Duration) -> Option<Duration> {
        Some(all)
    }
}

/// Who asks: the bearer token in the file of `--auth-file`.
pub(super) fn auth(file: Option<&Path>) -> Result<Option<BearerToken>, Failure> {
    Ok(file.map(BearerToken::from_file).transpose()?)
}

/// Runs every client for `time`.
///
/// All run in this task, so that the load costs as little of the machine as it can.
pub(super) async fn run<C: Client>(clients: &mut [C], time: Duration) -> Result<Measured, Failure> {
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
    Ok((number, latency))
}

#[expect(clippy::disallowed_methods, reason = "a benchmark is about real microseconds")]
pub(super) fn now() -> Instant {
    Instant::now()
}

fn histogram() -> Result<Histogram<u64>, Failure> {
    Histogram::new_with_bounds(1, 60_000_000, 3)
        .map_err(|error| Failure::internal(error.to_string()))
}
