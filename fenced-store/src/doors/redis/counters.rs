//! Metrics of the port.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use service_kit::metrics::Metrics;

/// Metrics of the port; refusals by the fence are in the guard's account.
#[derive(Debug)]
pub(super) struct PortCounters {
    /// Commands forwarded to Redis.
    pub(super) forwarded: Counter,
    /// Commands that the guard replied to with an error.
    pub(super) refused: Counter,
    /// Scripts that touched a key, command or channel that their connection may not touch.
    pub(super) scripts_denied: Counter,
    /// Commands with an unknown outcome.
    pub(super) unknown: Counter,
    /// Clients that were disconnected because the buffers were full.
    pub(super) over_limit: Counter,
    /// Connected clients.
    pub(super) clients: Gauge,
}

impl PortCounters {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            forwarded: metrics.counter(
                "redis_port_commands_forwarded",
                "Commands that the Redis port forwarded",
            ),
            refused: metrics.counter(
                "redis_port_commands_refused",
                "Commands that the Redis port refused with an error of its own",
            ),
            scripts_denied: metrics.counter(
                "redis_port_scripts_denied",
                "Scripts at the Redis port that were refused a key, a command or a channel",
            ),
            unknown: metrics.counter(
                "redis_port_commands_unknown",
                "Commands of the Redis port whose connection broke before their reply",
            ),
            over_limit: metrics.counter(
                "redis_port_clients_over_limit",
                "Clients that the Redis port disconnected because its buffers were full, or that left at the limit",
            ),
            clients: metrics.gauge(
                "redis_port_clients",
                "Clients connected to the Redis port",
            ),
        }
    }
}
