//! `POST /v1/locks/{lock}/renew`.

use std::sync::Arc;

use access_control::Caller;
use axum::extract::State;
use fence_protocol::LockName;
use fence_protocol::wire::lock::{LeaseReply, RenewRequest};
use service_kit::problem::{ApiJson, ApiPath, Reject};

use super::{Service, others};
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
    let store = &service.store;
    let RenewRequest { lease_id, ttl_ms } = request;
    let result = store.renew_as(caller.name(), &lock, lease_id, ttl_ms).await;
    let is_own = !matches!(result, Err(StoreError::OtherPrincipal { .. }));
    let again = store.renew(&lock, lease_id, ttl_ms);
    let result = others::unless_own(&caller, &lock, result, again).await?;
    match &result {
        Ok(grant) if is_own => caller.kept(&lock, grant.lease_id, grant.remaining_ms),
        Err(StoreError::Lost { .. }) => caller.ended(&lock, lease_id),
        Ok(_) | Err(_) => {}
    }
    let grant = service.finish(Operation::Renew, &lock, result)?;
    if let Some(slack_ms) = grant.slack_ms {
        service.counters.renewed(slack_ms, grant.remaining_ms);
    }
    Ok(ApiJson(service.lease_reply(lock, grant)))
}
