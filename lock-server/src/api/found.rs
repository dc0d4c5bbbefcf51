//! The routes that nearly all requests take, found without the router's search. The router has them
//! too: it gets names in which more than `%2F` is encoded, and answers what is wrong with a path or
//! a method.

use std::sync::Arc;

use access_control::Caller;
use axum::extract::{FromRequest as _, Request, State};
use axum::response::IntoResponse as _;
use fence_protocol::LockName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use service_kit::http::{HandlerFuture, LockRoute};
use service_kit::problem::{ApiJson, ApiPath, Reject};

use super::{Service, acquire, release, renew};

/// Acquire, renew and release.
pub(crate) fn found(service: &Arc<Service>) -> Vec<LockRoute> {
    let acquire = handler(service, acquire::acquire);
    let renew = finished(service, handler(service, renew::renew));
    let release = finished(service, handler(service, release::release));
    vec![
        LockRoute::post("/v1/locks/{lock}/acquire", acquire),
        LockRoute::post("/v1/locks/{lock}/renew", renew),
        LockRoute::post("/v1/locks/{lock}/release", release),
    ]
}

/// Reads what the handler takes in the order in which axum does.
fn handler<B, R, F>(
    service: &Arc<Service>,
    handle: impl Fn(State<Arc<Service>>, Caller, ApiPath<LockName>, ApiJson<B>) -> F
    + Copy
    + Send
    + Sync
    + 'static,
) -> impl Fn(LockName, Request) -> HandlerFuture + Send + Sync + 'static
where
    B: DeserializeOwned + Send,
    R: Serialize,
    F: Future<Output = Result<ApiJson<R>, Reject>> + Send,
{
    let service = service.clone();
    move |lock, request| {
        let service = service.clone();
        let caller = request.extensions().get::<Caller>().cloned().unwrap_or_default();
        Box::pin(async move {
            match ApiJson::from_request(request, &()).await {
                Ok(body) => {
                    handle(State(service), caller, ApiPath(lock), body).await.into_response()
                }
                Err(reject) => reject.into_response(),
            }
        })
    }
}

/// See [`FinishLayer`](super::finish::FinishLayer).
fn finished(
    service: &Arc<Service>,
    handle: impl Fn(LockName, Request) -> HandlerFuture + Send + Sync + 'static,
) -> impl Fn(LockName, Request) -> HandlerFuture + Send + Sync + 'static {
    let tasks = service.kit.tasks.clone();
    move |lock, request| Box::pin(tasks.finish_unpin(handle(lock, request)))
}
