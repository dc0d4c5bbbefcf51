//! Counters of one route, found without a lookup.

use std::sync::OnceLock;
use std::time::Duration;

use axum::http::Method;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use super::{Metrics, RequestLabels, RouteLabels};

/// Labels must come from a fixed list: a client may send any method it likes.
const METHODS: [&str; 7] = ["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "other"];

/// The statuses that have a counter of their own in a cell; the rest is looked up.
const STATUSES: [u16; 24] = [
    200, 201, 204, 206, 304, 400, 401, 403, 404, 405, 408, 409, 410, 412, 413, 415, 423, 428, 429,
    500, 501, 502, 503, 504,
];

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

    /// Counts a request that was answered.
    pub(crate) fn record(&self, metrics: &Metrics, method: u8, status: u16, took: Duration) {
        self.duration.observe(took.as_secs_f64());
        let method = usize::from(method).min(METHODS.len() - 1);
        let find = || {
            let route = self.route.clone();
            let labels = RequestLabels { method: METHODS[method], route, status };
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
