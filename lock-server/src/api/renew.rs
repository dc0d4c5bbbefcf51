//! `POST /v1/locks/{lock}/renew`.

use std::sync::Arc;

use access_control::Caller;
use axum::extract::State;
use fence_protocol::LockName;
use fence_protocol::wire::lock::{LeaseReply, RenewRequest};
use service_kit::problem::{ApiJson, ApiPath, Reject};

use super::Service;
use crate::counters::Operation;
use crate::store::StoreError;

/// Replaces what remains of a live lease; a retry is idempotent.
pub(super) async fn renew(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiPath(lock): ApiPath<LockName>,
    ApiJson(request): ApiJson<RenewRequest>,
) -> Result<ApiJson<LeaseReply>, Reject> {
    if let Some(ttl) = request.ttl_ms {
        service.check_ttl(ttl)?;
    }
    let result = service.store.renew(&lock, request.lease_id, request.ttl_ms).await;
    match &result {
        Ok(grant) => caller.kept(&lock, grant.lease_id, grant.remaining_ms),
        Err(StoreError::Lost { .. }) => caller.ended(&lock, request.lease_id),
        Err(_) => {}
    }
    let grant = service.finish(Operation::Renew, &lock, result)?;
    if let Some(slack_ms) = grant.slack_ms {
        service.counters.renewed(slack_ms, grant.remaining_ms);
    }
    Ok(ApiJson(service.lease_reply(lock, grant)))
}
