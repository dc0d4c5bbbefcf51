//! `POST /v1/acquire`: several locks in one step, or none of them.

use std::collections::HashSet;
use std::sync::Arc;

use access_control::{Caller, Hold, Verb};
use axum::extract::State;
use fence_protocol::wire::lock::LOCKS_PER_ACQUIRE_MAX;
use fence_protocol::wire::lock_set::{AcquireAllRequest, LeasesReply, LockWish};
use fence_protocol::{Code, LeaseId, LockName, SessionId};
use service_kit::problem::{ApiJson, Reject};

use super::acquire::{self, Holds, answered};
use super::{Service, error, metadata};
use crate::counters::Operation;
use crate::grants::sealed::Refused;
use crate::grants::undelivered::Undelivered;
use crate::store::{Acquire, Grant, StoreError, Takeover};

/// Grants a lease of each lock, waits for all of them, or refuses.
///
/// # Cancel safety
/// Like a single acquire: the request leaves every queue, and grants that no client can retry are
/// rolled back.
pub(super) async fn acquire_all(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiJson(request): ApiJson<AcquireAllRequest>,
) -> Result<ApiJson<LeasesReply>, Reject> {
    check_locks(&request.locks)?;
    for wish in &request.locks {
        caller.may(Verb::Acquire, wish.lock.as_str())?;
    }
    let session = request.session_id;
    let owner = request.owner;
    let (caller, owner) = acquire::within_session(&service, caller, session, owner).await?;
    let request = AcquireAllRequest { owner, ..request };
    let made_up = request.lease_id.is_none();
    let lease_id = request.lease_id;
    let wait_ms = request.wait_ms;
    let lease_id = lease_id.unwrap_or_else(service_kit::ids::lease_id);
    let parts = check(&service, &caller, request, lease_id)?;
    let locks: Vec<LockName> = parts.iter().map(|part| part.lock.clone()).collect();
    let first = locks.first().filter(|_| wait_ms > 0);
    let _waits = first.map(|lock| caller.wait(lock, lease_id)).transpose()?;
    let holds = hold(&caller, &parts, made_up)?;
    let lives_ms = parts.iter().map(|part| part.ttl.ms().saturating_add(part.wait_ms)).max();
    let mut undelivered = made_up.then(|| {
        Undelivered::new(
            service.grants.clone(),
            locks.clone(),
            lease_id,
            lives_ms.unwrap_or_default(),
        )
    });
    let store = service.store.clone();
    let answer = async move { store.acquire_all(parts).await };
    let mut holds = Holds::new(holds, made_up);
    let owned = (service.clone(), locks.clone(), holds.take_known());
    let finish = move |result| finish_all(owned, session, result);
    let Some(result) = answered(&service, wait_ms, answer, finish).await else {
        let detail = "this server is shutting down; the request left the queues of its locks";
        return Err(Reject::new(Code::ShuttingDown, detail).retry_after(1));
    };
    account(&mut holds, &result);
    // A client that receives an unknown outcome has no id to retry with.
    let is_known = !matches!(&result, Err(refused) if refused.is_unknown());
    if let Some(undelivered) = undelivered.as_mut().filter(|_| is_known) {
        undelivered.is_delivered();
    }
    let result = result.map_err(|refused| refused.reject(|refusal| reject(&locks, refusal)));
    let grants = service.counted(Operation::AcquireAll, result)?;
    if let Some(grant) = grants.first().filter(|_| wait_ms > 0) {
        service.counters.waited(grant.waited_ms);
    }
    let leases = locks.into_iter().zip(grants);
    let leases = leases.map(|(lock, grant)| service.lease_reply(lock, grant)).collect();
    Ok(ApiJson(LeasesReply { leases }))
}

/// Last steps: seals the grants, and updates the caller's quotas.
async fn finish_all(
    (service, locks, mut holds): (Arc<Service>, Vec<LockName>, Holds),
    session: Option<SessionId>,
    result: Result<Vec<Grant>, StoreError>,
) -> Result<Vec<Grant>, Refused> {
    let result = service.grants.all(&locks, session, result).await;
    account(&mut holds, &result);
    result
}

fn account(holds: &mut Holds, result: &Result<Vec<Grant>, Refused>) {
    holds.account(|at| {
        let grants = result.as_ref()?;
        Ok(grants.get(at).map(|grant| grant.remaining_ms).unwrap_or_default())
    });
}

/// Checks the number of locks, and that each is named once.
fn check_locks(locks: &[LockWish]) -> Result<(), Reject> {
    if locks.is_empty() || locks.len() > LOCKS_PER_ACQUIRE_MAX {
        let count = locks.len();
        return Err(error::invalid(format!(
            "locks has {count} entries: one request acquires 1 to {LOCKS_PER_ACQUIRE_MAX}"
        )));
    }
    let mut seen = HashSet::new();
    match locks.iter().find(|wish| !seen.insert(&wish.lock)) {
        None => Ok(()),
        Some(twice) => Err(error::invalid(format!(
            "lock {} is named twice: one request has one lease of each lock",
            twice.lock
        ))),
    }
}

fn check(
    service: &Service,
    caller: &Caller,
    request: AcquireAllRequest,
    lease_id: LeaseId,
) -> Result<Vec<Acquire>, Reject> {
    service.check_ttl(request.ttl_ms)?;
    acquire::check_wait(request.wait_ms)?;
    let metadata = metadata::bounded(request.metadata.as_ref())?;
    let of_lock = |lock: &LockName, text| error::invalid(format!("lock {lock}: {text}"));
    let mut modes = Vec::with_capacity(request.locks.len());
    for LockWish { lock, mode, size, min_token } in &request.locks {
        modes.push(acquire::mode(*mode, *size).map_err(|text| of_lock(lock, text))?);
        acquire::check_min_token(service, *min_token).map_err(|text| of_lock(lock, text))?;
    }
    let owner = request.owner.map_or_else(acquire::anonymous, Ok)?;
    let parts = request.locks.into_iter().zip(modes).map(|(wish, mode)| Acquire {
        lock_delay_ms: service.lock_delay_ms(&wish.lock),
        lock: wish.lock,
        lease_id,
        owner: owner.clone(),
        ttl: request.ttl_ms,
        wait_ms: request.wait_ms,
        metadata: metadata.clone(),
        min_token: wish.min_token,
        session: request.session_id,
        incarnation: request.incarnation.clone(),
        takeover: Takeover::Never,
        mode,
        principal: caller.name().map(ToOwned::to_owned),
        may_supersede: None,
    });
    Ok(parts.collect())
}

/// Reserves quota for every lease, or for none of them.
fn hold(caller: &Caller, parts: &[Acquire], made_up: bool) -> Result<Vec<Hold>, Reject> {
    let mut holds: Vec<Hold> = Vec::with_capacity(parts.len());
    for part in parts {
        let counted_ms = part.ttl.ms().saturating_add(part.wait_ms);
        match caller.hold(&part.lock, part.lease_id, counted_ms, made_up, false) {
            Ok(hold) => holds.push(hold),
            Err(reject) => {
                holds.into_iter().for_each(Hold::refused);
                return Err(reject);
            }
        }
    }
    Ok(holds)
}

/// Converts a refusal of the whole request, or of the one lock that it names, into its problem.
fn reject(locks: &[LockName], refusal: StoreError) -> Reject {
    match (refusal, locks) {
        (StoreError::Unknown(reason), _) => Reject::new(
            Code::OutcomeUnknown,
            format!("whether the {} locks were acquired is not known: {reason}", locks.len()),
        )
        .with("outcome", "unknown"),
        (refusal, [first, ..]) => error::reject(first, refusal),
        (refusal, []) => Reject::new(Code::Internal, refusal.to_string()),
    }
}
