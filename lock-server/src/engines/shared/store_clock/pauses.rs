//! Reports of pauses, in which no lease begins.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::gauge::Gauge;
use service_kit::Kit;
use service_kit::health::{Health, Status};

/// The readiness check.
const CHECK: &str = "grants";

#[derive(Debug)]
pub(crate) struct Pauses {
    left: Gauge<f64, AtomicU64>,
    health: Health,
    store: &'static str,
}

impl Pauses {
    pub(crate) fn new(store: &'static str, kit: &Kit) -> Self {
        let left = kit.metrics.register(
            "lock_grants_paused_seconds",
            "For how much longer no lock is granted, after a loss or a jump of the clock",
            Gauge::default(),
        );
        Self { left, health: kit.health.clone(), store }
    }

    /// Shows what is left of a pause, in milliseconds; 0 where there is none.
    pub(crate) fn show(&self, left_ms: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge of seconds needs no more")]
        let before = self.left.set(left_ms as f64 / 1_000.0);
        if left_ms > 0 {
            let store = self.store;
            let text = format!(
                "no lock is granted for a while: {store} may have lost leases, and their holders \
                 may still believe; renewals continue, fencepost_lock_grants_paused_seconds says \
                 for how much longer"
            );
            self.health.set(CHECK, Status::Warn(text));
        } else if before > 0.0 {
            self.health.remove(CHECK);
        }
    }
}
