//! Sender of the proxy's requests: one exchange with the upstream, counted and timed.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use service_kit::clock;

use super::forward::{APPLIED, Checked, Forwarded, Forwarder};
use super::lane::Kind;
use super::leadership::ServedTerm;
use crate::counters::Counters;

/// Sends requests to the upstream in one term.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) forwarder: Forwarder,
    pub(super) counters: Counters,
    /// Metrics of most requests: they need no look-up by labels.
    forward_seconds: Histogram,
    applied: Counter,
}

impl Sender {
    pub(super) fn new(forwarder: Forwarder, counters: &Counters) -> Self {
        let forward_seconds = counters.times("forward");
        let applied = counters.operation("forward", APPLIED);
        Self { forwarder, counters: counters.clone(), forward_seconds, applied }
    }

    /// Sends a write, whatever its form.
    pub(super) async fn write(&self, term: &ServedTerm, request: Checked) -> Forwarded {
        self.send(term, request, Kind::Write).await
    }

    pub(super) async fn send(&self, term: &ServedTerm, request: Checked, kind: Kind) -> Forwarded {
        let counters = &self.counters;
        counters.in_flight.inc();
        let begun = clock::now();
        let forwarded = match kind {
            Kind::Read | Kind::Seal => self.forwarder.read(&term.client, request).await,
            _ => self.forwarder.write(&term.client, request).await,
        };
        counters.in_flight.dec();
        self.forward_seconds.observe(begun.elapsed().as_secs_f64());
        match forwarded.verdict {
            APPLIED => drop(self.applied.inc()),
            verdict => counters.count("forward", verdict),
        }
        forwarded
    }
}
