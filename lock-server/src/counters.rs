//! Metrics of lock operations.

use std::sync::{Arc, OnceLock};

use fence_protocol::Code;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets, linear_buckets};
use service_kit::metrics::Metrics;

/// An operation on a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Acquire,
    AcquireAll,
    Renew,
    Release,
    Revoke,
    CreateSession,
    Heartbeat,
    EndSession,
    BlockSession,
}

/// Number of operations.
const OPERATIONS: usize = Operation::BlockSession as usize + 1;
/// Number of outcomes of an operation: `ok`, or a code.
const OUTCOMES: usize = Code::Unknown as usize + 2;

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::AcquireAll => "acquire-all",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Revoke => "revoke",
            Self::CreateSession => "session-create",
            Self::Heartbeat => "session-heartbeat",
            Self::EndSession => "session-end",
            Self::BlockSession => "session-block",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    operation: &'static str,
    outcome: &'static str,
}

/// Operations by outcome, time waited for grants, and waiters now.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    operations: Family<Labels, Counter>,
    /// Counters by operation and outcome that were found before: a lookup hashes labels under a
    /// lock.
    found: Arc<[OnceLock<Counter>]>,
    waited: Histogram,
    slack: Histogram,
    waiting: Gauge,
}

impl Counters {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            operations: metrics.register(
                "lock_operations",
                "Operations on locks by outcome: ok, or the code of the refusal",
                Family::default(),
            ),
            found: (0..OPERATIONS * OUTCOMES).map(|_| OnceLock::new()).collect(),
            waited: metrics.register(
                "lock_waited_seconds",
                "How long granted acquires waited in the queue",
                Histogram::new(exponential_buckets(0.001, 2.0, 18)),
            ),
            slack: metrics.register(
                "lock_renewal_slack_ratio",
                "Part of a lease's time that was left when it was renewed",
                Histogram::new(linear_buckets(0.05, 0.05, 19)),
            ),
            waiting: metrics.gauge("lock_waiters", "Acquires that are waiting in this process now"),
        }
    }

    pub(crate) fn count(&self, operation: Operation, refusal: Option<Code>) {
        let find = || {
            let outcome = refusal.map_or("ok", Code::as_str);
            let labels = Labels { operation: operation.as_str(), outcome };
            self.operations.get_or_create_owned(&labels)
        };
        let outcome = refusal.map_or(0, |code| 1 + code as usize);
        match self.found.get(operation as usize * OUTCOMES + outcome) {
            Some(found) => found.get_or_init(find).inc(),
            None => find().inc(),
        };
    }

    pub(crate) fn waited(&self, ms: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a histogram of seconds needs no more")]
        self.waited.observe(ms as f64 / 1_000.0);
    }

    /// Counts a renewal of a lease that had `slack_ms` left and has `ttl_ms` now.
    pub(crate) fn renewed(&self, slack_ms: u64, ttl_ms: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a histogram of ratios needs no more")]
        self.slack.observe((slack_ms as f64 / ttl_ms.max(1) as f64).min(1.0));
    }

    /// Counts a waiter for as long as the returned value lives.
    pub(crate) fn waiting(&self) -> Waiting {
        self.waiting.inc();
        Waiting(self.waiting.clone())
    }
}

#[derive(Debug)]
pub(crate) struct Waiting(Gauge);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.dec();
    }
}
