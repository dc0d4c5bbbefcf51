//! Metrics of TLS at the listeners.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use crate::metrics::Metrics;

#[derive(Debug, Default)]
pub(super) struct TlsFigures {
    pub(super) expires: Gauge,
    pub(super) under_way: Gauge,
    pub(super) failures: Counter,
}

impl TlsFigures {
    pub(super) fn register(&self, metrics: &Metrics) {
        let Self { expires, under_way, failures } = self;
        metrics.registry(|registry| {
            registry.register(
                "tls_certificate_expires_timestamp_seconds",
                "End of the listeners' certificate, in seconds since 1970",
                expires.clone(),
            );
            registry.register(
                "tls_handshakes_in_flight",
                "TLS handshakes under way, at most 256",
                under_way.clone(),
            );
            registry.register(
                "tls_handshake_failures",
                "Connections to a TLS port that ended before they could send a request",
                failures.clone(),
            );
        });
    }
}
