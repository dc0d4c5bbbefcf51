//! What the port counts.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use service_kit::metrics::Metrics;

/// The port's own figures; refusals by the fence are on the guard's account.
#[derive(Debug, Default)]
pub(super) struct PortCounters {
    /// Commands sent on.
    pub(super) forwarded: Counter,
    /// Commands answered with an error by the guard.
    pub(super) refused: Counter,
    /// Scripts that touched what their connection may not touch.
    pub(super) scripts_denied: Counter,
    /// Commands whose outcome could not be told.
    pub(super) unknown: Counter,
    /// Clients that are connected.
    pub(super) clients: Gauge,
}

impl PortCounters {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let counters = Self::default();
        metrics.registry(|registry| {
            registry.register(
                "redis_port_commands_forwarded",
                "Commands that the Redis port sent on",
                counters.forwarded.clone(),
            );
            registry.register(
                "redis_port_commands_refused",
                "Commands that the Redis port answered with an error of its own",
                counters.refused.clone(),
            );
            registry.register(
                "redis_port_scripts_denied",
                "Scripts at the Redis port that were refused a key, a command or a channel",
                counters.scripts_denied.clone(),
            );
            registry.register(
                "redis_port_commands_unknown",
                "Commands of the Redis port whose connection broke before their reply",
                counters.unknown.clone(),
            );
            registry.register(
                "redis_port_clients",
                "Clients that are connected to the Redis port",
                counters.clients.clone(),
            );
        });
        counters
    }
}
