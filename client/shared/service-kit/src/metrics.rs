//! Metrics, and their text for Prometheus.

mod process;

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use axum::http::Method;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use self::process::ProcessFigures;

/// Beginning of every metric's name.
const PREFIX: &str = "fencepost";

/// Bounds in seconds: from a grant out of memory to a long poll.
const DURATION_BOUNDS_SECONDS: [f64; 15] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 10.0,
    60.0,
];

/// Labels must come from a fixed list: a client may send any method it likes.
const METHODS: [&str; 7] = ["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "other"];

/// The statuses that have a counter of their own in a cell; the rest is looked up.
const STATUSES: [u16; 24] = [
    200, 201, 204, 206, 304, 400, 401, 403, 404, 405, 408, 409, 410, 412, 413, 415, 423, 428, 429,
    500, 501, 502, 503, 504,
];

/// The labels of one counter of requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    route: String,
}

/// Sets gauges before they are read.
type Refresh = Box<dyn Fn() + Send + Sync>;

/// The metrics of one service. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Metrics {
    shared: Arc<Shared>,
}

struct Shared {
    registry: RwLock<Registry>,
    process: ProcessFigures,
    refreshes: RwLock<Vec<Refresh>>,
    requests: Family<RequestLabels, Counter>,
    durations: Family<RouteLabels, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
    panics: Counter,
}

impl Metrics {
    /// Metrics with the HTTP families and `fencepost_build_info`, which names the service.
    pub fn new(service: &'static str) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let requests = Family::default();
        let durations: Family<_, _, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(DURATION_BOUNDS_SECONDS));
        let in_flight = Gauge::default();
        let panics = Counter::default();
        registry.register(
            "http_requests",
            "Requests answered, by method, route and status",
            requests.clone(),
        );
        registry.register(
            "http_request_duration_seconds",
            "From the request's head until the reply's head, by route; waiting in a queue included",
            durations.clone(),
        );
        registry.register("http_requests_in_flight", "Requests being handled", in_flight.clone());
        registry.register("http_handler_panics", "Handlers that panicked", panics.clone());
        let info = [("service", service), ("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "What runs", prometheus_client::metrics::info::Info::new(info));
        let shared = Shared {
            registry: RwLock::new(registry),
            process: ProcessFigures::new(),
            refreshes: RwLock::default(),
            requests,
            durations,
            in_flight,
            panics,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Registers further families: `metrics.registry(|r| r.register("name", "help", family))`
    /// shows `fencepost_name`.
    pub fn registry<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.shared.registry.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Registers a metric, and returns it. Metrics are shown in the order of registration.
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.registry(|registry| registry.register(name, help, metric.clone()));
        metric
    }

    /// Registers a counter.
    pub fn counter(&self, name: &str, help: &str) -> Counter {
        self.register(name, help, Counter::default())
    }

    /// Registers a gauge.
    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        self.register(name, help, Gauge::default())
    }

    /// Calls `refresh` before each reading, for gauges that are cheaper to set then than with every
    /// change. It must not block.
    pub fn on_read(&self, refresh: impl Fn() + Send + Sync + 'static) {
        let refreshes = &self.shared.refreshes;
        refreshes.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(refresh));
    }

    /// All metrics as OpenMetrics text: this service's, and those of its process.
    pub fn encode(&self) -> String {
        let refreshes = self.shared.refreshes.read().unwrap_or_else(PoisonError::into_inner);
        refreshes.iter().for_each(|refresh| refresh());
        let mut text = String::new();
        let registry = self.shared.registry.read().unwrap_or_else(PoisonError::into_inner);
        let encoded = encode_registry(&mut text, &registry)
            .and_then(|()| encode_registry(&mut text, self.shared.process.read()))
            .and_then(|()| encode_eof(&mut text));
        if let Err(error) = encoded {
            // Only a collector that reports an error by itself gets here.
            tracing::error!(%error, "metrics could not be written");
        }
        text
    }

    pub(crate) fn in_flight(&self) -> &Gauge {
        &self.shared.in_flight
    }

    pub(crate) fn panics(&self) -> &Counter {
        &self.shared.panics
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// The counters of one route. A lookup by labels hashes strings under a lock; a cell remembers
/// what it found, so that a request costs two atomic additions.
#[derive(Debug)]
pub(crate) struct RouteCell {
    route: String,
    duration: Histogram,
    requests: [[OnceLock<Counter>; STATUSES.len()]; METHODS.len()],
}

impl RouteCell {
    /// The cell of a route, as a template: `/v1/locks/{lock}/acquire`.
    pub(crate) fn new(metrics: &Metrics, route: &str) -> Self {
        let labels = RouteLabels { route: route.to_owned() };
        Self {
            route: route.to_owned(),
            duration: metrics.shared.durations.get_or_create_owned(&labels),
            requests: Default::default(),
        }
    }

    pub(crate) fn route(&self) -> &str {
        &self.route
    }

    /// Counts a request that was answered.
    pub(crate) fn record(&self, metrics: &Metrics, method: u8, status: u16, took: Duration) {
        self.duration.observe(took.as_secs_f64());
        let label = method_label(method);
        let method = usize::from(method).min(METHODS.len() - 1);
        let find = || {
            let route = self.route.clone();
            let labels = RequestLabels { method: label, route, status };
            metrics.shared.requests.get_or_create_owned(&labels)
        };
        match STATUSES.binary_search(&status) {
            Ok(at) => self.requests[method][at].get_or_init(find).inc(),
            Err(_) => find().inc(),
        };
    }
}

/// The place of a method in the list of labels.
pub(crate) fn method_index(method: &Method) -> u8 {
    let known = METHODS.iter().position(|known| *known == method.as_str());
    u8::try_from(known.unwrap_or(METHODS.len() - 1)).unwrap_or(u8::MAX)
}

/// The label of a place in that list.
pub(crate) fn method_label(index: u8) -> &'static str {
    METHODS[usize::from(index).min(METHODS.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_families_are_rendered_too() {
        let metrics = Metrics::new("test");
        let grants: Counter = Counter::default();
        metrics.registry(|registry| registry.register("grants", "Grants", grants.clone()));
        grants.inc();
        let text = metrics.encode();
        assert!(text.contains("\nfencepost_grants_total 1"), "{text}");
        assert!(text.contains("service=\"test\""), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
        assert_eq!(text.matches("# EOF").count(), 1, "{text}");
    }

    #[test]
    fn gauges_are_refreshed_before_they_are_read() {
        let metrics = Metrics::new("test");
        let held: Gauge = Gauge::default();
        metrics.registry(|registry| registry.register("held", "Held", held.clone()));
        metrics.on_read(move || {
            held.inc();
        });
        assert!(metrics.encode().contains("\nfencepost_held 1\n"));
        assert!(metrics.encode().contains("\nfencepost_held 2\n"));
    }
}
