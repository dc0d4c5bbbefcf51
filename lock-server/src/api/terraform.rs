//! `LOCK` and `UNLOCK /v1/terraform/{lock}`: locks of the `http` backend of Terraform and OpenTofu.
//!
//! Terraform makes an id for its lock and has no place for a token: with a state it sends that id
//! alone. The lease has the [digest](fence_protocol::terraform) of the id, and the guard admits the
//! state while its mark is of that lease. So the guards are sealed with the grant before Terraform
//! learns of it, and a lock that `--seal` does not require a seal for is refused here, before
//! anything is changed, instead of there, at the end of an apply.
//!
//! A forced unlock comes without the id: with that of the lease, which Terraform showed to the run
//! that was refused, or with none at all.
//!
//! Terraform never renews. A lease that ended while its lock stayed free is no error: its holder
//! was alone.

use std::sync::Arc;

use access_control::{Caller, Verb};
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use fence_protocol::terraform::{LockInfo, lease_of_lock_id};
use fence_protocol::wire::lock::{AcquireRequest, EndReason, ReleaseRequest, RevokeRequest};
use fence_protocol::{Code, LeaseId, LockName, Owner, Ttl};
use serde::Deserialize;
use service_kit::problem::{ApiBytes, ApiJson, ApiPath, ApiQuery, Reject};

use super::{Service, acquire, error, release, revoke};
use crate::guards::revoke::Unsealed;

/// Methods that lock, and that unlock.
const METHODS: &str = "LOCK, POST, PUT, UNLOCK, DELETE";
/// Time to live of a lock whose address names none.
const DEFAULT_TTL_MS: u64 = 3_600_000;
/// Owner of a lock whose request does not say who wants it.
const UNNAMED: &str = "terraform";
/// Shown as the id of a lock that no lease holds, because Terraform takes an empty one for an error
/// of the protocol.
const NO_LEASE: &str = "none";

/// The query of a lock's address.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Address {
    ttl_ms: Option<Ttl>,
}

/// Locks or unlocks. `POST`, which GitLab's settings name, `PUT` and `DELETE` are for proxies that
/// know no other methods.
pub(super) async fn change(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiPath(lock): ApiPath<LockName>,
    ApiQuery(address): ApiQuery<Address>,
    method: Method,
    ApiBytes(body): ApiBytes,
) -> Result<Response, Reject> {
    match method.as_str() {
        "LOCK" | "POST" | "PUT" => acquire(service, caller, lock, address, &body).await,
        "UNLOCK" | "DELETE" => unlock(service, caller, lock, &body).await,
        other => {
            let detail = format!("{other} neither locks nor unlocks");
            Err(Reject::new(Code::MethodNotAllowed, detail).allow(METHODS))
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
    let Some(info) = lock_info(body)? else {
        let detail = format!("locking {lock} needs a body: the lock's information with its ID");
        return Err(error::invalid(detail));
    };
    info.check()?;
    let lease_id = lease_of_lock_id(&info.id)?;
    if !service.grants.seals.is_required(&lock) {
        let detail = format!(
            "lock {lock} is not sealed at a guard when it is granted, so no guard would take its \
             state"
        );
        let hint = format!(
            "Start lock-server with --guard URL and --seal '{lock}=required' (or a prefix of it)."
        );
        return Err(Reject::new(Code::InvalidRequest, detail).hint(hint));
    }
    let ttl_ms = match address.ttl_ms {
        Some(ttl) => ttl,
        None => Ttl::from_ms(DEFAULT_TTL_MS)?.min(service.ttl_range.1),
    };
    let shown = LockInfo { id: lease_id.to_string(), ..info };
    let request = || -> Result<AcquireRequest, Reject> {
        Ok(AcquireRequest {
            ttl_ms,
            owner: Some(Owner::new(shown.who.clone()).or_else(|_| Owner::new(UNNAMED))?),
            lease_id: Some(lease_id),
            metadata: serde_json::to_value(&shown).ok(),
            ..AcquireRequest::default()
        })
    };
    let granted = acquire::acquire(
        State(service.clone()),
        caller,
        ApiPath(lock.clone()),
        ApiJson(request()?),
    );
    match granted.await {
        Ok(_) => Ok(ApiJson(shown).into_response()),
        Err(reject) if reject.code() == Code::LockHeld => {
            let info = info_of_holder(&service, &lock, &reject).await?;
            Ok((StatusCode::LOCKED, ApiJson(info)).into_response())
        }
        Err(reject) => Err(reject),
    }
}

/// Terraform shows the refused user who holds the lock.
async fn info_of_holder(
    service: &Service,
    lock: &LockName,
    held: &Reject,
) -> Result<LockInfo, Reject> {
    let now = service.store.show(lock).await.map_err(|refusal| error::reject(lock, refusal))?;
    let Some(holder) = now.holder else {
        // It is delayed, or was released a moment ago.
        let info = held.problem().detail.clone();
        return Ok(LockInfo { id: NO_LEASE.to_owned(), info, ..LockInfo::default() });
    };
    // Any client can hold the lock, with any metadata.
    let info = holder.metadata.and_then(|metadata| serde_json::from_value(metadata).ok());
    let info = info.filter(|info: &LockInfo| info.check().is_ok()).unwrap_or_default();
    let who = holder.info.owner.to_string();
    Ok(LockInfo { id: holder.lease_id.to_string(), who, ..info })
}

async fn unlock(
    service: Arc<Service>,
    caller: Caller,
    lock: LockName,
    body: &[u8],
) -> Result<Response, Reject> {
    let now = service.store.show(&lock).await.map_err(|refusal| error::reject(&lock, refusal))?;
    let live = now.holder.as_ref().map(|holder| holder.lease_id);
    let Some(info) = lock_info(body)? else {
        return force(&service, &caller, &lock, None).await;
    };
    if live.is_some_and(|live| info.id == live.to_string()) {
        return force(&service, &caller, &lock, live).await;
    }
    let lease_id = lease_of_lock_id(&info.id)?;
    let request = ApiJson(ReleaseRequest { lease_id });
    let released =
        release::release(State(service.clone()), caller, ApiPath(lock.clone()), request).await;
    match released {
        Err(reject) => {
            let reason = reject.problem().extension::<EndReason>("reason");
            let ended = matches!(reason, Some(EndReason::Expired | EndReason::Released));
            if ended && is_last(&service, &lock, lease_id).await? {
                return Ok(StatusCode::OK.into_response());
            }
            Err(reject)
        }
        Ok(_) => Ok(StatusCode::OK.into_response()),
    }
}

/// Returns `true` if no other lease began after `lease_id`, which has ended: read once that is
/// known, so that a lease granted through any server is found.
async fn is_last(service: &Service, lock: &LockName, lease_id: LeaseId) -> Result<bool, Reject> {
    let now = service.store.show(lock).await.map_err(|refusal| error::reject(lock, refusal))?;
    let last = now.history.first().map(|ended| ended.lease_id);
    Ok(now.holder.is_none() && last.is_none_or(|last| last == lease_id))
}

/// Seals the guards, then ends the lease: the former holder's state is refused. Nothing is done if
/// a guard cannot be sealed, whatever `--revoke-unsealed` is: Terraform shows no more than success.
async fn force(
    service: &Service,
    caller: &Caller,
    lock: &LockName,
    lease: Option<LeaseId>,
) -> Result<Response, Reject> {
    caller.begin(Verb::Revoke, lock.as_str())?;
    if let Some(lease) = lease {
        caller.record("forced", lease);
    }
    let request = RevokeRequest { reason: Owner::new("force-unlock")?, lease_id: lease };
    let revoked = revoke::audited(service, caller, lock, request, Unsealed::Refuse).await?;
    Ok(ApiJson(revoked).into_response())
}

/// Parses the lock's information as Terraform sends it; `None` without a body.
fn lock_info(body: &[u8]) -> Result<Option<LockInfo>, Reject> {
    if body.trim_ascii().is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(body)
        .map(Some)
        .map_err(|error| error::invalid(format!("the body is no lock information: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_the_only_member_that_is_needed() {
        let id = "9db590f1-b6fe-c5f2-2678-8804f089deba";
        let info = lock_info(format!("{{\"ID\":\"{id}\"}}").as_bytes()).unwrap().unwrap();
        assert_eq!(info.id, id);
        assert!(lock_info(b" \n").unwrap().is_none());
        for bad in ["x", "{\"ID\":1}", "{\"Who\":7}"] {
            assert_eq!(
                lock_info(bad.as_bytes()).unwrap_err().code(),
                Code::InvalidRequest,
                "{bad}"
            );
        }
    }
}
