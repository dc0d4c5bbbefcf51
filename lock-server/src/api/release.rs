//! `POST /v1/locks/{lock}/release`.

use std::sync::Arc;

use access_control::Caller;
use axum::extract::State;
use fence_protocol::LockName;
use fence_protocol::wire::lock::{EndedReply, ReleaseRequest};
use service_kit::problem::{ApiJson, ApiPath, Reject};

use super::{Service, others};
use crate::counters::Operation;
use crate::store::StoreError;

/// Ends a lease.
pub(super) async fn release(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiPath(lock): ApiPath<LockName>,
    ApiJson(request): ApiJson<ReleaseRequest>,
) -> Result<ApiJson<EndedReply>, Reject> {
    let store = &service.store;
    let result = store.release_as(caller.name(), &lock, request.lease_id).await;
    let again = store.release(&lock, request.lease_id);
    let result = others::unless_own(&caller, &lock, result, again).await?;
    if matches!(result, Ok(_) | Err(StoreError::Lost { .. })) {
        caller.ended(&lock, request.lease_id);
    }
    service.finish(Operation::Release, &lock, result).map(ApiJson)
}
