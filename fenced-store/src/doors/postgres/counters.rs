//! Metrics of the port.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use service_kit::metrics::Metrics;

/// Metrics of the port; refusals by the fence are in the guard's account.
#[derive(Debug)]
pub(super) struct PortCounters {
    /// Connections that were refused before they were admitted.
    pub(super) refused: Counter,
    /// Sessions that a higher token ended.
    pub(super) preempted: Counter,
    /// Cancel requests that were passed on.
    pub(super) cancels: Counter,
    /// Admitted clients.
    pub(super) clients: Gauge,
}

impl PortCounters {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            refused: metrics.counter(
                "postgres_port_connections_refused",
                "Connections that the PostgreSQL port refused with an error",
            ),
            preempted: metrics.counter(
                "postgres_port_sessions_preempted",
                "Sessions of the PostgreSQL port that a higher token ended",
            ),
            cancels: metrics.counter(
                "postgres_port_cancels_forwarded",
                "Cancel requests that the PostgreSQL port passed on",
            ),
            clients: metrics
                .gauge("postgres_port_clients", "Clients admitted at the PostgreSQL port"),
        }
    }
}
