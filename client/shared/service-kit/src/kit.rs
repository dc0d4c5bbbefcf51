//! Clock, tasks, metrics and health of a service, and the routes that every service has.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use fence_protocol::wire::version::VersionReply;
use fence_protocol::{Keyring, Namespace};

use crate::clock::{Clock, SystemClock};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::spans::Traces;
use crate::tasks::Tasks;

/// Clock, tasks, metrics and health of one service. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Kit {
    /// The name of the service, as `/version` and the metrics give it.
    pub service: &'static str,
    /// Source of time.
    pub clock: Arc<dyn Clock>,
    /// Task tracker; shutdown begins here.
    pub tasks: Tasks,
    /// Metrics of the process.
    pub metrics: Metrics,
    /// Checks that decide readiness.
    pub health: Health,
    /// Exporter of spans.
    pub traces: Traces,
}

impl Kit {
    /// A kit with the system's clock.
    pub fn new(service: &'static str) -> Self {
        Self {
            service,
            clock: Arc::new(SystemClock::new()),
            tasks: Tasks::new(),
            metrics: Metrics::new(service),
            health: Health::new(),
            traces: Traces::default(),
        }
    }

    /// The same kit with another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }
}

/// `/livez`, `/readyz` (with `?verbose`), `/version` and `/metrics`. `/version` shows the namespace
/// and the digests of the keys of the service's tokens.
///
/// Merge it before [`crate::http::finish`], so that these replies carry request ids too.
pub fn operational_routes(kit: &Kit, namespace: &Namespace, keys: Option<&Keyring>) -> Router {
    let version = VersionReply {
        name: kit.service.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        namespace: namespace.clone(),
        keys: keys.into_iter().flat_map(Keyring::digests).collect(),
    };
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/version", get(async || Json(version)))
        .route("/metrics", get(metrics))
        .with_state(kit.clone())
}

async fn readyz(State(kit): State<Kit>, RawQuery(query): RawQuery) -> Response {
    let verbose = is_verbose(query.as_deref());
    let report = kit.health.report(kit.tasks.is_shutting_down());
    let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let text = match (report.ready, verbose) {
        (_, true) => report.text(),
        (true, false) => "ok\n".to_owned(),
        (false, false) => report.failing_text(),
    };
    (status, text).into_response()
}

/// True if the query of `/readyz` asks for every check: they name files and addresses.
pub fn is_verbose(query: Option<&str>) -> bool {
    query
        .is_some_and(|query| query.split('&').any(|part| part.split('=').next() == Some("verbose")))
}

async fn metrics(State(kit): State<Kit>) -> Response {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], kit.metrics.encode()).into_response()
}
