//! `LOCK` and `UNLOCK /v1/terraform/{lock}`: locks of the `http` backend of Terraform and OpenTofu.
//!
//! The id that Terraform makes for a lock is the id of its lease. Terraform has no place for a
//! token: with a state it sends that id alone, and the guard admits it while its mark is of that
//! lease. So the guards are sealed with the grant before Terraform learns of it, and a lock that
//! `--seal` does not require a seal for is refused here, before anything is changed, instead of
//! there, at the end of an apply.
//!
//! Terraform never renews. A lease that ended while its lock stayed free is no error: its holder
//! was alone.

use std::sync::Arc;

use access_control::{Caller, Verb};
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use fence_protocol::wire::lock::{AcquireRequest, EndReason, ReleaseRequest, RevokeRequest};
use fence_protocol::{Code, Invalid, LeaseId, LockName, Owner, Ttl};
use serde::Deserialize;
use serde_json::{Value, json};
use service_kit::problem::{ApiBytes, ApiJson, ApiPath, ApiQuery, Reject};

use super::{Service, acquire, error, release, revoke};

/// Time to live of a lock whose address names none.
const DEFAULT_TTL_MS: u64 = 3_600_000;
/// Owner of a lock whose request does not say who wants it.
const UNNAMED: &str = "terraform";

/// The query of a lock's address.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Address {
    ttl_ms: Option<Ttl>,
}

/// Locks or unlocks. `PUT` and `DELETE` are for proxies that know no other methods.
pub(super) async fn change(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiPath(lock): ApiPath<LockName>,
    ApiQuery(address): ApiQuery<Address>,
    method: Method,
    ApiBytes(body): ApiBytes,
) -> Result<Response, Reject> {
    match method.as_str() {
        "LOCK" | "PUT" => acquire(service, caller, lock, address, &body).await,
        "UNLOCK" | "DELETE" => unlock(service, caller, lock, &body).await,
        other => {
            let detail = format!("{other} is none of LOCK, PUT, UNLOCK and DELETE");
            Err(Reject::new(Code::MethodNotAllowed, detail))
        }
    }
}

async fn acquire(
    service: Arc<Service>,
    caller: Caller,
    lock: LockName,
    address: Address,
    body: &[u8],
) -> Result<Response, Reject> {
    let Some((info, lease_id)) = lock_info(body)? else {
        let detail = format!("locking {lock} needs a body: the lock's information with its ID");
        return Err(error::invalid(detail));
    };
    if !service.seals.is_required(&lock) {
        let detail = format!(
            "lock {lock} is not sealed at a guard when it is granted, so no guard would take its \
             state"
        );
        let hint = format!(
            "Start lock-server with --guard URL and --seal '{lock}=required' (or a prefix of it)."
        );
        return Err(Reject::new(Code::InvalidRequest, detail).hint(hint));
    }
    let who = info["Who"].as_str().and_then(|who| Owner::new(who).ok());
    let ttl_ms = match address.ttl_ms {
        Some(ttl) => ttl,
        None => Ttl::from_ms(DEFAULT_TTL_MS)?.min(service.ttl_range.1),
    };
    let request = AcquireRequest {
        ttl_ms,
        owner: Some(who.map_or_else(|| Owner::new(UNNAMED), Ok)?),
        lease_id: Some(lease_id),
        metadata: Some(info.clone()),
        ..AcquireRequest::default()
    };
    let state = State(service.clone());
    let granted = acquire::acquire(state, caller, ApiPath(lock.clone()), ApiJson(request)).await;
    match granted {
        Ok(_) => Ok(ApiJson(info).into_response()),
        Err(reject) if reject.code() == Code::LockHeld => {
            let info = info_of_holder(&service, &lock).await?;
            Ok((StatusCode::LOCKED, ApiJson(info)).into_response())
        }
        Err(reject) => Err(reject),
    }
}

/// Terraform shows the refused user who holds the lock.
async fn info_of_holder(service: &Service, lock: &LockName) -> Result<Value, Reject> {
    let now = service.store.show(lock).await.map_err(|refusal| error::reject(lock, refusal))?;
    let Some(holder) = now.holder else {
        return Ok(json!({"ID": "", "Info": "it was held a moment ago, and is free now"}));
    };
    let is_info = |info: &Value| info["ID"].is_string();
    Ok(holder.metadata.filter(is_info).unwrap_or_else(|| {
        json!({
            "ID": holder.lease_id,
            "Operation": "held by another kind of client",
            "Who": holder.info.owner,
        })
    }))
}

/// Releases the lease that the body names. `terraform force-unlock` sends no body: then the guards
/// are sealed and the lock is revoked, so that the former holder's state is refused.
async fn unlock(
    service: Arc<Service>,
    caller: Caller,
    lock: LockName,
    body: &[u8],
) -> Result<Response, Reject> {
    let state = State(service.clone());
    let path = ApiPath(lock.clone());
    let Some((info, lease_id)) = lock_info(body)? else {
        caller.may(Verb::Revoke, lock.as_str())?;
        let reason = Owner::new("force-unlock")?;
        let request = RevokeRequest { reason, lease_id: None };
        let revoked = revoke::revoke(state, caller, path, ApiJson(request)).await?;
        return Ok(revoked.into_response());
    };
    let released =
        release::release(state, caller, path, ApiJson(ReleaseRequest { lease_id })).await;
    match released {
        Err(reject) if !ended_alone(&service, &lock, &reject).await? => Err(reject),
        _ => Ok(ApiJson(info).into_response()),
    }
}

/// Returns `true` if the lease had ended by itself, and no other has the lock now.
async fn ended_alone(service: &Service, lock: &LockName, reject: &Reject) -> Result<bool, Reject> {
    match reject.problem().extension::<EndReason>("reason") {
        Some(EndReason::Expired | EndReason::Released) => {
            let now = service.store.show(lock).await;
            Ok(now.map_err(|refusal| error::reject(lock, refusal))?.holder.is_none())
        }
        _ => Ok(false),
    }
}

/// Parses the lock's information as Terraform sends it; `None` without a body.
fn lock_info(body: &[u8]) -> Result<Option<(Value, LeaseId)>, Reject> {
    if body.trim_ascii().is_empty() {
        return Ok(None);
    }
    let refuse = |why: String| error::invalid(format!("the body is no lock information: {why}"));
    let info: Value = serde_json::from_slice(body).map_err(|error| refuse(error.to_string()))?;
    let id = info["ID"].as_str().ok_or_else(|| refuse("it has no text \"ID\"".to_owned()))?;
    let id: LeaseId = id.parse().map_err(|error: Invalid| refuse(error.to_string()))?;
    Ok(Some((info, id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_the_only_member_that_is_needed() {
        let id = "9db590f1-b6fe-c5f2-2678-8804f089deba";
        let (_, lease) = lock_info(format!("{{\"ID\":\"{id}\"}}").as_bytes()).unwrap().unwrap();
        assert_eq!(lease.to_string(), id);
        assert!(lock_info(b" \n").unwrap().is_none());
        for bad in ["{}", "[]", "x", "{\"ID\":1}", "{\"ID\":\"1\"}", "{\"id\":\"\"}"] {
            assert_eq!(
                lock_info(bad.as_bytes()).unwrap_err().code(),
                Code::InvalidRequest,
                "{bad}"
            );
        }
    }
}
