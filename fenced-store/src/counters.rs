//! The guard's own metrics; those of HTTP come from service-kit.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use service_kit::metrics::Metrics;

/// What is counted. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Counters {
    operations: Family<OperationLabels, Counter>,
    would_refuse: Family<RefusalLabels, Counter>,
    /// How long seals took, in seconds.
    pub seal_seconds: Histogram,
    /// Forwarded operations whose outcome is not known.
    pub in_doubt: Counter,
    /// Lanes that wait for an operation in doubt.
    pub quarantined_lanes: Gauge,
    /// Operations that are at the upstream now.
    pub in_flight: Gauge,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
    verdict: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusalLabels {
    code: &'static str,
    rule: String,
}

impl Counters {
    /// Registers all of them.
    pub fn new(metrics: &Metrics) -> Self {
        let counters = Self {
            operations: Family::default(),
            would_refuse: Family::default(),
            seal_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            in_doubt: Counter::default(),
            quarantined_lanes: Gauge::default(),
            in_flight: Gauge::default(),
        };
        metrics.registry(|registry| counters.register(registry));
        counters
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "fence_operations",
            "Operations by the verdict of the fence",
            self.operations.clone(),
        );
        registry.register(
            "fence_would_refuse",
            "Operations that observe mode let pass although the fence refuses them",
            self.would_refuse.clone(),
        );
        registry.register("fence_seal_seconds", "How long seals took", self.seal_seconds.clone());
        registry.register(
            "fence_in_doubt",
            "Forwarded operations whose outcome is not known",
            self.in_doubt.clone(),
        );
        registry.register(
            "fence_quarantined_lanes",
            "Lanes that wait for an operation whose outcome is not known",
            self.quarantined_lanes.clone(),
        );
        registry.register(
            "fence_in_flight",
            "Operations that are at the upstream now",
            self.in_flight.clone(),
        );
    }

    /// Counts an operation (`put`, `get`, `delete`, `seal`, `forward`) and what became of it.
    pub fn count(&self, operation: &'static str, verdict: &'static str) {
        self.operations.get_or_create(&OperationLabels { operation, verdict }).inc();
    }

    /// Counts what observe mode let pass. The caller bounds the number of different rules.
    pub(crate) fn would_refuse(&self, code: &'static str, rule: &str) {
        let labels = RefusalLabels { code, rule: rule.to_owned() };
        self.would_refuse.get_or_create(&labels).inc();
    }
}
