//! The one layer around every handler: request id, trace, site of the caller, limits, metrics,
//! panics.
//!
//! It is one future without a box of its own, because every request pays for it.

use std::convert::Infallible;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, HttpBody as _};
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use fence_protocol::Code;
use http_body_util::Limited;
use tower::{Layer, Service};

use super::{HostNames, HttpOptions, is_page};
use crate::metrics::{Metrics, RouteCell, method_index, method_label};
use crate::problem::{Reject, Rendered, too_large};
use crate::request::{BodyLimits, Id, RequestContext, X_REQUEST_ID};
use crate::spans::Traces;
use crate::trace::RequestTrace;
use crate::{Kit, clock};

/// Label of requests for paths that do not exist.
const NO_ROUTE: &str = "none";

#[derive(Clone, Debug)]
pub(super) struct EdgeLayer {
    metrics: Metrics,
    traces: Traces,
    options: HttpOptions,
    names: HostNames,
    /// Name of the one route; `None` if a router names it.
    route: Option<&'static str>,
}

impl EdgeLayer {
    pub(super) fn new(kit: &Kit, options: HttpOptions, names: &HostNames) -> Self {
        let metrics = kit.metrics.clone();
        let traces = kit.traces.clone();
        Self { metrics, traces, options, names: names.clone(), route: None }
    }

    /// Names the one route.
    pub(super) fn with_route(self, route: &'static str) -> Self {
        Self { route: Some(route), ..self }
    }
}

impl<S> Layer<S> for EdgeLayer {
    type Service = Edge<S>;

    /// Called once a route, so every route gets a cell of its own.
    fn layer(&self, inner: S) -> Edge<S> {
        Edge { inner, route: Arc::new(Route { cell: OnceLock::new(), layer: self.clone() }) }
    }
}

/// Counters that all requests of a route share.
#[derive(Debug)]
struct Route {
    cell: OnceLock<RouteCell>,
    layer: EdgeLayer,
}

#[derive(Clone, Debug)]
pub(super) struct Edge<S> {
    inner: S,
    route: Arc<Route>,
}

impl Edge<()> {
    /// The same route around a handler.
    pub(super) fn around<S>(&self, inner: S) -> Edge<S> {
        Edge { inner, route: self.route.clone() }
    }
}

impl<S> Service<Request> for Edge<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = Response;
    type Error = Infallible;
    type Future = EdgeFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let started = clock::now();
        let id = Id::take_or_make(request.headers());
        let method = method_index(request.method());
        let EdgeLayer { metrics, traces, options, names, route } = &self.route.layer;
        let mut trace = RequestTrace::read(request.headers(), id.as_str(), traces.exporter());
        let _entered = trace.as_ref().map(|trace| trace.enter());
        let cell = self.route.cell.get_or_init(|| {
            let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
            RouteCell::new(metrics, route.or(matched).unwrap_or(NO_ROUTE))
        });
        let HttpOptions { max_body_bytes, max_json_bytes, .. } = *options;
        let limits = BodyLimits { max_body_bytes, max_json_bytes };
        let context = RequestContext { id: id.clone(), limits };
        request.extensions_mut().insert(context);
        let checked = names.check(&request, options.pages);
        let checked = checked.and_then(|()| check_coding(request.headers()));
        let checked = checked.and_then(|()| limit_body(request, options.max_body_bytes));
        if let Some(trace) = &mut trace
            && (checked.is_err() || is_public(cell.route(), options.pages))
        {
            trace.keep();
        }
        let running = match checked {
            Ok(request) => Ok(self.inner.call(request)),
            Err(reject) => Err(Some(reject)),
        };
        metrics.in_flight().inc();
        EdgeFuture { running, id, method, started, trace, route: self.route.clone() }
    }
}

/// True if requests on this route need no access: those of health checks, of pages, and of paths
/// that do not exist.
fn is_public(route: &str, pages: &[&str]) -> bool {
    matches!(route, NO_ROUTE | "/livez" | "/readyz") || is_page(route, pages)
}

/// Answers a request whose body stays unread: the connection cannot carry another request, and the
/// client has to know before it sends one.
fn unread(reject: Reject) -> Response {
    let mut response = reject.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Refuses transfer codings other than chunked: nothing here undoes them (RFC 9112 section 6.1).
fn check_coding(headers: &HeaderMap) -> Result<(), Reject> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if is_chunked(coding) => Ok(()),
        _ => {
            let detail = "Transfer-Encoding may be chunked and nothing else";
            Err(Reject::new(Code::InvalidRequest, detail))
        }
    }
}

/// Refuses a body that is declared too large before a byte of it is read; one of unknown length is
/// counted while it is read.
fn limit_body(request: Request, limit_bytes: usize) -> Result<Request, Reject> {
    let hint = request.body().size_hint();
    let limit = u64::try_from(limit_bytes).unwrap_or(u64::MAX);
    if hint.lower() > limit {
        return Err(too_large(limit_bytes));
    }
    if hint.upper().is_some() {
        return Ok(request);
    }
    Ok(request.map(|body| Body::new(Limited::new(body, limit_bytes))))
}

#[derive(Debug)]
pub(super) struct EdgeFuture<F> {
    running: Result<F, Option<Reject>>,
    id: Id,
    method: u8,
    started: Instant,
    trace: Option<Box<RequestTrace>>,
    route: Arc<Route>,
}

impl<F> Future for EdgeFuture<F>
where
    F: Future<Output = Result<Response, Infallible>> + Unpin,
{
    type Output = Result<Response, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let _entered = this.trace.as_ref().map(|trace| trace.enter());
        let response = match &mut this.running {
            Err(reject) => reject.take().map_or_else(Response::default, unread),
            // The handler's future is dropped after a panic, so its broken state is never seen.
            Ok(future) => match catch_unwind(AssertUnwindSafe(|| Pin::new(future).poll(cx))) {
                Ok(Poll::Pending) => return Poll::Pending,
                Ok(Poll::Ready(Ok(response))) => response,
                Err(panic) => {
                    this.running = Err(None);
                    this.panicked(panic.as_ref())
                }
            },
        };
        Poll::Ready(Ok(this.finish(response)))
    }
}

impl<F> EdgeFuture<F> {
    fn metrics(&self) -> &Metrics {
        &self.route.layer.metrics
    }

    fn panicked(&self, panic: &(dyn std::any::Any + Send)) -> Response {
        self.metrics().panics().inc();
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        tracing::error!(request_id = self.id.as_str(), panic = text, "a handler panicked");
        Reject::new(Code::Internal, "the handler of this request failed unexpectedly")
            .into_response()
    }

    fn finish(&self, mut response: Response) -> Response {
        let status = response.status();
        if let Some(cell) = self.route.cell.get() {
            let took = self.started.elapsed();
            cell.record(self.metrics(), self.method, status.as_u16(), took);
            if let Some(trace) = &self.trace {
                trace.ended(method_label(self.method), cell.route(), status.as_u16(), took);
            }
        }
        if let Some(Rendered(text)) = response.extensions_mut().remove() {
            response.headers_mut().remove(header::CONTENT_LENGTH);
            *response.body_mut() = Body::from(with_request_id(&text, self.id.as_str()));
        }
        if status.is_server_error() {
            tracing::debug!(
                request_id = self.id.as_str(),
                status = status.as_u16(),
                "server error"
            );
        }
        response.headers_mut().insert(X_REQUEST_ID, self.id.header());
        response
    }
}

impl<F> Drop for EdgeFuture<F> {
    fn drop(&mut self) {
        self.metrics().in_flight().dec();
    }
}

/// Adds the last member to a JSON object. The id is of plain characters: it needs no escaping.
pub(crate) fn with_request_id(object: &[u8], id: &str) -> Vec<u8> {
    let Some((b'}', start)) = object.split_last() else {
        return object.to_vec();
    };
    let mut out = Vec::with_capacity(object.len() + id.len() + 20);
    out.extend_from_slice(start);
    out.extend_from_slice(b",\"request_id\":\"");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b"\"}");
    out
}
