//! Metrics of stores: their latency, and what is held.

use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use service_kit::clock;
use service_kit::metrics::Metrics;

/// From 0.1 ms to 6.5 s.
pub(crate) fn latencies() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 17))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    call: &'static str,
}

/// Latency of the store, by the kind of call.
#[derive(Clone, Debug)]
pub(crate) struct StoreTimes {
    seconds: Family<CallLabels, Histogram, fn() -> Histogram>,
    commit: Histogram,
    read: Histogram,
}

impl StoreTimes {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let seconds: Family<_, _, fn() -> Histogram> = metrics.register(
            "lock_store_seconds",
            "From a call of the store until its reply",
            Family::new_with_constructor(latencies),
        );
        let commit = seconds.get_or_create_owned(&CallLabels { call: "commit" });
        let read = seconds.get_or_create_owned(&CallLabels { call: "read" });
        Self { seconds, commit, read }
    }

    /// Counts a commit that began then and has its reply now.
    pub(crate) fn committed(&self, begun: Instant) {
        self.commit.observe(since(begun));
    }

    /// Counts a read.
    pub(crate) fn read(&self, begun: Instant) {
        self.read.observe(since(begun));
    }

    /// Counts another call, of a fixed list.
    pub(crate) fn called(&self, call: &'static str, begun: Instant) {
        self.seconds.get_or_create_owned(&CallLabels { call }).observe(since(begun));
    }
}

fn since(begun: Instant) -> f64 {
    clock::now().saturating_duration_since(begun).max(Duration::ZERO).as_secs_f64()
}

/// Counts of a server's held locks and live sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Locks with a live lease.
    pub(crate) locks: usize,
    /// Live sessions.
    pub(crate) sessions: usize,
}

/// Shows what `held` returns whenever the metrics are read; `None` keeps the last values.
pub(crate) fn show_held(
    metrics: &Metrics,
    held: impl Fn() -> Option<Held> + Send + Sync + 'static,
) {
    let locks = metrics.gauge("lock_held", "Locks held in what this server wrote last");
    let sessions = metrics.gauge("lock_sessions", "Live sessions in what this server wrote last");
    let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    metrics.on_read(move || {
        let Some(held) = held() else { return };
        locks.set(count(held.locks));
        sessions.set(count(held.sessions));
    });
}
