//! `POST /v1/locks/{lock}/revoke`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use fence_protocol::LockName;
use fence_protocol::wire::lock::{EndedReply, RevokeRequest, RevokedReply};
use service_kit::access::Caller;
use service_kit::problem::{ApiJson, ApiPath, Reject};

use super::{Service, error};
use crate::counters::Operation;
use crate::store::{Revoke, StoreError};

/// Ends whatever lease is live, and writes down why.
pub(super) async fn revoke(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiPath(lock): ApiPath<LockName>,
    ApiJson(request): ApiJson<RevokeRequest>,
) -> Result<Json<RevokedReply>, Reject> {
    caller.note("reason", &request.reason);
    let wish = Revoke { lease: request.lease_id, reason: Some(request.reason.clone()) };
    let result = service.store.revoke(&lock, wish).await;
    let mut ended = service.finish(Operation::Revoke, &lock, result)?.into_iter();
    let Some(first) = ended.next() else {
        return Err(error::reject(&lock, StoreError::NotHeld));
    };
    let others: Vec<EndedReply> = ended.collect();
    let ended = first;
    caller.note("lease_id", ended.lease_id);
    caller.note("token", ended.token);
    service.events.tell_end(&ended, Some(request.reason.to_string()));
    tracing::info!(
        target: "audit",
        %lock,
        lease_id = %ended.lease_id,
        token = %ended.token,
        reason = %request.reason,
        "a lease was revoked"
    );
    Ok(Json(RevokedReply { ended, others, guards: Vec::new() }))
}
