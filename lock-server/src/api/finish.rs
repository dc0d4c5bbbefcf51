//! Requests that are completed though their client hangs up.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use super::Service;

/// Completes a request that changes something, whether or not its client stays: a store may take several
/// steps, and the event, the metric and the caller's account of it come after the last.
///
/// The time limits of the store and of the body bound it. An acquire that waits is not among these
/// requests: a client that hangs up withdraws it.
pub(super) async fn finish(
    State(service): State<Arc<Service>>,
    request: Request,
    next: Next,
) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    service.kit.tasks.finish(next.run(request)).await
}
