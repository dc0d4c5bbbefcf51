//! Layers around every request, and the names of locks in paths.

mod caller_site;
mod edge;
mod fold;
mod lock_route;
mod router;

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, Uri, header};
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use fence_protocol::Code;
use tower::Layer as _;

use crate::Kit;
use crate::problem::{Reject, shown};
use crate::request::BODY_BYTES;

pub use caller_site::{HostName, HostNames};
pub use fold::{Fold, fold_name};
pub use lock_route::LockRoute;
pub use router::{ApiFuture, ApiRouter};

pub use crate::request::{RequestId, X_REQUEST_ID};

/// The reply of a handler, to come.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Response> + Send>>;

/// The limits of a router, and which paths carry names.
#[derive(Clone, Copy, Debug)]
pub struct HttpOptions {
    /// The largest body that any handler gets to see, in bytes.
    pub max_body_bytes: usize,
    /// The largest body that [`crate::problem::ApiJson`] reads, in bytes.
    pub max_json_bytes: usize,
    /// Paths whose names may contain plain slashes.
    pub folds: &'static [Fold],
    /// Paths, with all below them, of pages that show no data by themselves: a link on a page of
    /// another origin may open them.
    pub pages: &'static [&'static str],
}

impl Default for HttpOptions {
    /// 64 KiB for any body, no paths with names, and no pages.
    fn default() -> Self {
        Self { max_body_bytes: BODY_BYTES, max_json_bytes: BODY_BYTES, folds: &[], pages: &[] }
    }
}

/// Puts everything that both services share around a router whose routes are complete.
///
/// Every reply carries `X-Request-Id`, and every problem body `request_id`; paths and methods that
/// do not exist are problems (404; 405 with `Allow`); bodies are bounded; requests are counted by
/// route; a handler that panics becomes a 500 problem while the process continues. Unless a request
/// id of at most 64 bytes of `[A-Za-z0-9._-]` came in, one is made. Requests for a host that is no
/// address, not `localhost` and none of `names` are 421, and those that a browser sends for a page
/// of another origin are 403.
pub fn finish(router: Router, kit: &Kit, options: HttpOptions, names: &HostNames) -> ApiRouter {
    finish_with(router, &[], kit, options, names)
}

/// As [`finish`], with routes of the router that are found without its search.
pub fn finish_with(
    router: Router,
    found: &[LockRoute],
    kit: &Kit,
    options: HttpOptions,
    names: &HostNames,
) -> ApiRouter {
    let edge = edge::EdgeLayer::new(kit, options, names);
    let found = found.iter();
    let found = found.map(|route| (route.clone(), edge.clone().with_route(route.name()).layer(())));
    let found = found.collect();
    let routes = router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(edge)
        // Handlers become routes here, once; otherwise it would happen for every request.
        .with_state(());
    ApiRouter::new(routes, found, options.folds)
}

/// Puts the same around one handler that serves every path and method, without the cost of looking
/// for a route. `route` names it in metrics.
pub fn finish_single(
    handler: impl Fn(Request) -> HandlerFuture + Send + Sync + 'static,
    route: &'static str,
    kit: &Kit,
    options: HttpOptions,
    names: &HostNames,
) -> ApiRouter {
    let edge = edge::EdgeLayer::new(kit, options, names).with_route(route);
    ApiRouter::single(edge.layer(router::SingleHandler(Arc::new(handler))))
}

/// The route of an API's OpenAPI document.
pub fn described_by<S>(document: &'static str) -> MethodRouter<S>
where
    S: Clone + Send + Sync + 'static,
{
    get(move || async move { ([(header::CONTENT_TYPE, "application/json")], document) })
}

/// `true` if the path is one of the pages, or below one.
fn is_page(path: &str, pages: &[&str]) -> bool {
    let is_below = |rest: &str| rest.is_empty() || rest.starts_with('/');
    pages.iter().any(|page| path.strip_prefix(page).is_some_and(is_below))
}

async fn not_found(method: Method, uri: Uri) -> Reject {
    let detail = format!("there is nothing at {} {}", shown(method.as_str()), shown(uri.path()));
    Reject::new(Code::NotFound, detail)
}

async fn method_not_allowed(request: Request) -> Reject {
    let method = shown(request.method().as_str());
    let path = shown(request.uri().path());
    Reject::new(Code::MethodNotAllowed, format!("{path} does not know the method {method}"))
}
