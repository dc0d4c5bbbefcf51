//! Hold times of leases, by how they ended.

use fence_protocol::wire::event::{Event, EventKind};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use service_kit::metrics::Metrics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    end: &'static str,
}

/// Histograms of the ends that this server committed or observed.
#[derive(Clone, Debug)]
pub(super) struct HoldTimes {
    held: Family<EndLabels, Histogram, fn() -> Histogram>,
}

impl HoldTimes {
    /// From a millisecond to five hours.
    pub(super) fn new(metrics: &Metrics) -> Self {
        let buckets: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 4.0, 13));
        let held = metrics.register(
            "lock_hold_seconds",
            "From a lease's grant until its end, by how it ended",
            Family::new_with_constructor(buckets),
        );
        Self { held }
    }

    /// Counts the ends among these events.
    pub(super) fn observe(&self, events: &[Event]) {
        for event in events {
            let Some((end, held_ms)) = end_of(event.kind).zip(event.held_ms) else { continue };
            #[expect(clippy::cast_precision_loss, reason = "a histogram of seconds needs no more")]
            self.held.get_or_create_owned(&EndLabels { end }).observe(held_ms as f64 / 1_000.0);
        }
    }
}

fn end_of(kind: EventKind) -> Option<&'static str> {
    match kind {
        EventKind::Released => Some("released"),
        EventKind::Expired => Some("expired"),
        EventKind::Revoked => Some("revoked"),
        EventKind::Superseded => Some("superseded"),
        EventKind::SessionEnded => Some("session-ended"),
        _ => None,
    }
}
