//! `POST /v1/locks/{lock}/acquire`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use fence_protocol::wire::lock::{AcquireRequest, LeaseReply, MAX_WAIT_MS};
use fence_protocol::{Code, LeaseId, LockName, Owner, Token};
use service_kit::access::{Caller, Hold};
use service_kit::problem::{ApiJson, ApiPath, Reject};

use super::{Service, error, sessions};
use crate::counters::Operation;
use crate::rules::tokens;
use crate::store::{Acquire, Grant, StoreError, Takeover};

/// The largest metadata, as JSON text, in bytes.
const METADATA_BYTES_MAX: usize = 4_096;
/// Who asks when nobody says so.
const ANONYMOUS: &str = "anonymous";

/// Grants, waits or refuses.
///
/// # Cancel safety
/// The server drops this when the client hangs up. A waiter then leaves the queue, and a grant that
/// was just made for it is taken back (see [`LockStore::acquire`](crate::store::LockStore::acquire)).
/// A grant under an id that this server made up is taken back too, because nobody can ask for it
/// again; one under the client's own id stays, because a repeat will.
pub(super) async fn acquire(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiPath(lock): ApiPath<LockName>,
    ApiJson(request): ApiJson<AcquireRequest>,
) -> Result<Json<LeaseReply>, Reject> {
    let made_up = request.lease_id.is_none();
    let (caller, request) = within_session(&service, caller, request).await?;
    let acquire = check(&service, lock.clone(), request)?;
    let _waits = (acquire.wait_ms > 0).then(|| caller.wait()).transpose()?;
    let counted_ms = acquire.ttl.ms().saturating_add(acquire.wait_ms);
    let hold = caller.hold(&lock, acquire.lease_id, counted_ms, made_up)?;
    let mut undelivered = made_up.then(|| Undelivered::new(&service, &lock, acquire.lease_id));
    let Some(result) = granted(&service, acquire).await else {
        let detail = format!("this server is shutting down; the request left the queue of {lock}");
        return Err(Reject::new(Code::ShuttingDown, detail).retry_after(1));
    };
    if let Some(undelivered) = &mut undelivered {
        undelivered.delivered = true;
    }
    account(hold, &result);
    let grant = service.finish(Operation::Acquire, &lock, result)?;
    Ok(Json(service.lease_reply(lock, grant)))
}

/// Tells the account of the caller what became of the lease.
fn account(hold: Hold, result: &Result<Grant, StoreError>) {
    match result {
        Ok(grant) => hold.granted(grant.remaining_ms),
        Err(StoreError::Unknown(_)) => hold.unknown(),
        Err(_) => hold.refused(),
    }
}

/// The store's answer; none where the server began to shut down while the request waited.
async fn granted(service: &Service, acquire: Acquire) -> Option<Result<Grant, StoreError>> {
    if acquire.wait_ms == 0 {
        return Some(service.store.acquire(acquire).await);
    }
    let shutdown = service.kit.tasks.shutdown_token();
    let _waiting = service.counters.waiting();
    let result = tokio::select! {
        result = service.store.acquire(acquire) => result,
        () = shutdown.cancelled() => return None,
    };
    if let Ok(grant) = &result {
        service.counters.waited(grant.waited_ms);
    }
    Some(result)
}

fn check(service: &Service, lock: LockName, request: AcquireRequest) -> Result<Acquire, Reject> {
    service.check_ttl(request.ttl_ms)?;
    if request.wait_ms > MAX_WAIT_MS {
        let wait_ms = request.wait_ms;
        return Err(error::invalid(format!(
            "wait_ms {wait_ms} is out of range: at most {MAX_WAIT_MS}"
        )));
    }
    if let Some(min_token) = request.min_token {
        check_min_token(service, min_token)?;
    }
    let metadata = metadata(request.metadata.as_ref())?;
    let takeover = takeover(&request)?;
    let owner = match request.owner {
        Some(owner) => owner,
        None => Owner::new(ANONYMOUS)?,
    };
    Ok(Acquire {
        lock,
        lease_id: request.lease_id.unwrap_or_else(service_kit::ids::lease_id),
        owner,
        ttl: request.ttl_ms,
        wait_ms: request.wait_ms,
        metadata,
        min_token: request.min_token,
        session: request.session_id,
        incarnation: request.incarnation,
        takeover,
    })
}

/// A lease of a session is that owner's, who need not say so again, and its principal's alone.
async fn within_session(
    service: &Service,
    caller: Caller,
    request: AcquireRequest,
) -> Result<(Caller, AcquireRequest), Reject> {
    let Some(session) = request.session_id else { return Ok((caller, request)) };
    let owner = match request.owner {
        Some(owner) => {
            sessions::own(service, &caller, session).await?;
            owner
        }
        None => {
            let shown = service.store.look_session(session).await.map_err(sessions::reject)?;
            sessions::mine(&caller, &shown)?;
            shown.owner
        }
    };
    Ok((caller.within(Some(session)), AcquireRequest { owner: Some(owner), ..request }))
}

/// Metadata as JSON text, within its bound.
pub(super) fn metadata(metadata: Option<&serde_json::Value>) -> Result<Option<String>, Reject> {
    let metadata = metadata.map(ToString::to_string);
    let too_many = metadata.as_ref().map(String::len).filter(|len| *len > METADATA_BYTES_MAX);
    match too_many {
        None => Ok(metadata),
        Some(bytes) => Err(Reject::new(
            Code::PayloadTooLarge,
            format!("metadata has {bytes} bytes as JSON; at most {METADATA_BYTES_MAX} are allowed"),
        )),
    }
}

/// Whom the request wants to take the lock from; it must say who it is itself.
fn takeover(request: &AcquireRequest) -> Result<Takeover, Reject> {
    let takeover = match (request.takeover, request.takeover_of) {
        (false, None) => return Ok(Takeover::Never),
        (true, Some(_)) => {
            return Err(error::invalid(
                "takeover and takeover_of exclude each other: an earlier incarnation, or one lease",
            ));
        }
        (true, None) if request.incarnation.is_none() => {
            return Err(error::invalid(
                "takeover needs incarnation: a text that every restart of the owner changes",
            ));
        }
        (true, None) => Takeover::EarlierSelf,
        (false, Some(lease_id)) if request.lease_id == Some(lease_id) => {
            return Err(error::invalid(format!(
                "takeover_of {lease_id} is the lease_id of this request; the grant needs a new one"
            )));
        }
        (false, Some(lease_id)) => Takeover::Of(lease_id),
    };
    if request.owner.is_none() {
        return Err(error::invalid("a takeover needs owner: it never crosses owners"));
    }
    Ok(takeover)
}

/// A wish that no guard can have had a reason for would use up the tokens that are left.
fn check_min_token(service: &Service, min_token: Token) -> Result<(), Reject> {
    let ceiling = tokens::min_token_ceiling(0, service.kit.clock.wall_ms());
    if min_token.get() <= ceiling {
        return Ok(());
    }
    Err(error::invalid(format!(
        "min_token {min_token} is out of range: no guard can have seen more than {ceiling}"
    )))
}

/// Takes a grant back that the client cannot have heard of.
struct Undelivered {
    service: Arc<Service>,
    lock: LockName,
    lease_id: LeaseId,
    delivered: bool,
}

impl Undelivered {
    fn new(service: &Arc<Service>, lock: &LockName, lease_id: LeaseId) -> Self {
        Self { service: service.clone(), lock: lock.clone(), lease_id, delivered: false }
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if self.delivered {
            return;
        }
        let (service, lock, lease_id) = (self.service.clone(), self.lock.clone(), self.lease_id);
        self.service.kit.tasks.spawn(async move {
            // Where this fails too, the lease's time ends it.
            let _ = service.store.release(&lock, lease_id).await;
        });
    }
}
