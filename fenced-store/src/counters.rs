//! The guard's own metrics; those of HTTP come from service-kit.

use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use service_kit::metrics::Metrics;

/// The guard's metrics. All clones share them.
#[derive(Clone, Debug)]
pub struct Counters {
    operations: Family<OperationLabels, Counter>,
    would_refuse: Family<RefusalLabels, Counter>,
    refused: Family<RefusalLabels, Counter>,
    store_seconds: Family<CallLabels, Histogram, fn() -> Histogram>,
    /// Duration of seals, in seconds.
    pub seal_seconds: Histogram,
    /// Forwarded operations with an unknown outcome.
    pub unknown_outcomes: Counter,
    /// Unknown outcomes that were settled by the same conditional write.
    pub settled_outcomes: Counter,
    /// Writes that were to be conditional and were not, or that broke the promise of the upstream.
    pub unconditional_writes: Counter,
    /// Lanes that a restart would quarantine.
    pub open_lanes: Gauge,
    /// Quarantines that began.
    pub quarantines: Counter,
    /// Time that operations waited in their lane, for the disk, lower operations or a quarantine,
    /// in seconds.
    pub lane_wait_seconds: Histogram,
    /// Time from a raise of the mark until the last lower operation at the upstream ended, in
    /// seconds.
    pub lane_drain_seconds: Histogram,
    /// Lanes in quarantine, waiting for an operation with an unknown outcome.
    pub quarantined_lanes: Gauge,
    /// Operations at the upstream now.
    pub in_flight: Gauge,
    /// 1 while this guard leads, beside a standby.
    pub is_leader: Gauge,
    /// Lanes taken over by this guard.
    pub takeovers: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
    verdict: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CallLabels {
    call: &'static str,
}

/// From 0.1 ms to 6.5 s.
pub(crate) fn latencies() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 17))
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusalLabels {
    code: &'static str,
    rule: String,
}

impl Counters {
    /// Registers all metrics.
    pub fn new(metrics: &Metrics) -> Self {
        let counter = |name, help| metrics.counter(name, help);
        let gauge = |name, help| metrics.gauge(name, help);
        let seconds = |name, help| {
            let buckets = exponential_buckets(0.001, 2.0, 16);
            metrics.register(name, help, Histogram::new(buckets))
        };
        Self {
            operations: metrics.register(
                "fence_operations",
                "Operations by the verdict of the fence",
                Family::default(),
            ),
            would_refuse: metrics.register(
                "fence_would_refuse",
                "Operations that observe mode let pass although the fence refuses them",
                Family::default(),
            ),
            refused: metrics.register(
                "fence_refused",
                "Operations that were refused, by rule",
                Family::default(),
            ),
            store_seconds: metrics.register(
                "fence_store_seconds",
                "From a call of the store or upstream until its reply",
                Family::new_with_constructor(latencies),
            ),
            seal_seconds: seconds("fence_seal_seconds", "Duration of seals"),
            unknown_outcomes: counter(
                "fence_in_doubt",
                "Forwarded operations with an unknown outcome",
            ),
            settled_outcomes: counter(
                "fence_settled",
                "Unknown outcomes that were settled by the same conditional write",
            ),
            unconditional_writes: counter(
                "fence_unconditional",
                "Writes without a condition because the upstream gave no usable ETag, and reused ETags",
            ),
            quarantines: counter("fence_quarantines", "Quarantines that began"),
            lane_wait_seconds: seconds(
                "fence_lane_wait_seconds",
                "Time that operations waited in their lane",
            ),
            lane_drain_seconds: seconds(
                "fence_lane_drain_seconds",
                "Time that lower operations at the upstream held up a higher token",
            ),
            open_lanes: gauge("fence_open_lanes", "Lanes that a crash would quarantine"),
            quarantined_lanes: gauge("fence_quarantined_lanes", "Lanes in quarantine"),
            in_flight: gauge("fence_in_flight", "Operations at the upstream now"),
            is_leader: gauge(
                "fence_leader",
                "1 while this guard leads the lanes that it shares with others",
            ),
            takeovers: counter("fence_takeovers", "Times that this guard began to lead"),
        }
    }

    /// Counts an operation (`put`, `get`, `delete`, `seal`, `forward`) by its verdict.
    pub fn count(&self, operation: &'static str, verdict: &'static str) {
        self.operations.get_or_create(&OperationLabels { operation, verdict }).inc();
    }

    /// Counts a refusal. The caller bounds the number of different rules.
    pub(crate) fn refused(&self, code: &'static str, rule: &str) {
        let labels = RefusalLabels { code, rule: rule.to_owned() };
        self.refused.get_or_create_owned(&labels).inc();
    }

    /// Counts a call of the store or upstream (`put`, `get`, `delete`, `forward`) that began then
    /// and has its reply now.
    pub(crate) fn called(&self, call: &'static str, begun: Instant) {
        let times = self.store_seconds.get_or_create_owned(&CallLabels { call });
        times.observe(begun.elapsed().as_secs_f64());
    }

    /// Durations of calls of the store or upstream, as [`called`](Self::called) finds them.
    pub(crate) fn times(&self, call: &'static str) -> Histogram {
        self.store_seconds.get_or_create_owned(&CallLabels { call })
    }

    /// Counter of an operation with a verdict, as [`count`](Self::count) finds it.
    pub(crate) fn operation(&self, operation: &'static str, verdict: &'static str) -> Counter {
        self.operations.get_or_create_owned(&OperationLabels { operation, verdict })
    }

    /// Counts what observe mode let pass. The caller bounds the number of different rules.
    pub(crate) fn would_refuse(&self, code: &'static str, rule: &str) {
        let labels = RefusalLabels { code, rule: rule.to_owned() };
        self.would_refuse.get_or_create(&labels).inc();
    }
}
