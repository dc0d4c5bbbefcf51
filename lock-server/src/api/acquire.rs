//! `POST /v1/locks/{lock}/acquire`.

use std::sync::Arc;

use access_control::{Caller, Hold};
use axum::extract::State;
use fence_protocol::wire::lock::{AcquireRequest, LeaseMode, LeaseReply, MAX_WAIT_MS, PERMITS_MAX};
use fence_protocol::{Code, LockName, Owner, SessionId, Token};
use service_kit::problem::{ApiJson, ApiPath, Reject};

use super::{Service, error, metadata, others, sessions};
use crate::counters::Operation;
use crate::grants::sealed::Refused;
use crate::grants::undelivered::Undelivered;
use crate::store::{Acquire, Grant, LockStore, Mode, StoreError, Takeover};
use lease::tokens;

/// Owner of a request that names none.
const ANONYMOUS: &str = "anonymous";

/// Grants, waits or refuses.
///
/// # Cancel safety
/// The server drops this when the client hangs up. A waiter then leaves the queue, and a grant that
/// was just made for it is rolled back (see [`LockStore::acquire`]). A request that does not wait
/// is completed. A grant under an id that this server generated is then rolled back too, because no
/// client can retry with it; one under the client's own id stays for its retry.
pub(super) async fn acquire(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiPath(lock): ApiPath<LockName>,
    ApiJson(request): ApiJson<AcquireRequest>,
) -> Result<ApiJson<LeaseReply>, Reject> {
    let made_up = request.lease_id.is_none();
    let (caller, owner) =
        within_session(&service, caller, request.session_id, request.owner).await?;
    let request = AcquireRequest { owner, ..request };
    let session = request.session_id;
    let acquire = check(&service, &caller, lock.clone(), request)?;
    let _waits = (acquire.wait_ms > 0).then(|| caller.wait(&lock, acquire.lease_id)).transpose()?;
    let counted_ms = acquire.ttl.ms().saturating_add(acquire.wait_ms);
    let takes_over = acquire.takeover != Takeover::Never;
    let hold = caller.hold(&lock, acquire.lease_id, counted_ms, made_up, takes_over)?;
    let mut undelivered = made_up.then(|| {
        Undelivered::new(service.grants.clone(), vec![lock.clone()], acquire.lease_id, counted_ms)
    });
    let wait_ms = acquire.wait_ms;
    let answer = asked(service.store.clone(), caller, acquire);
    let mut holds = Holds::new(vec![hold], made_up);
    let owned = (service.clone(), lock.clone(), holds.take_known());
    let finish = move |result| finish_one(owned, session, result);
    let Some(result) = answered(&service, wait_ms, answer, finish).await else {
        let detail = format!("this server is shutting down; the request left the queue of {lock}");
        return Err(Reject::new(Code::ShuttingDown, detail).retry_after(1));
    };
    holds.account(|_| result.as_ref().map(|grant| grant.remaining_ms));
    // A client that receives an unknown outcome has no id to retry with.
    let is_known = !matches!(&result, Err(refused) if refused.is_unknown());
    if let Some(undelivered) = undelivered.as_mut().filter(|_| is_known) {
        undelivered.is_delivered();
    }
    let result = result.map_err(|refused| refused.reject(|error| error::reject(&lock, error)));
    let grant = service.counted(Operation::Acquire, result)?;
    if wait_ms > 0 {
        service.counters.waited(grant.waited_ms);
    }
    Ok(ApiJson(service.lease_reply(lock, grant)))
}

/// Requests the lock; a second time if it has to be taken over from another principal.
///
/// # Errors
/// As [`others::unless_own`].
async fn asked(
    store: Arc<dyn LockStore>,
    caller: Caller,
    acquire: Acquire,
) -> Result<Result<Grant, StoreError>, Reject> {
    if acquire.takeover == Takeover::Never {
        return Ok(store.acquire(acquire).await);
    }
    let result = store.acquire(acquire.clone()).await;
    let may_supersede = match &result {
        Err(StoreError::OtherPrincipal { lease_id }) => Some(*lease_id),
        _ => None,
    };
    let lock = acquire.lock.clone();
    let again = store.acquire(Acquire { may_supersede, ..acquire });
    others::unless_own(&caller, &lock, result, again).await
}

/// Room in the caller's quota for the leases of one request.
#[derive(Debug, Default)]
pub(super) struct Holds {
    holds: Vec<Hold>,
    made_up: bool,
}

impl Holds {
    /// `made_up` if this server generated the id: a client that hangs up frees the room then, as
    /// its leases are rolled back.
    pub(super) fn new(holds: Vec<Hold>, made_up: bool) -> Self {
        Self { holds, made_up }
    }

    /// Takes those of an id that the client knows. They are accounted for though it hangs up.
    pub(super) fn take_known(&mut self) -> Self {
        if self.made_up { Self::default() } else { std::mem::take(self) }
    }

    /// Updates the quota with the outcome, `remaining_ms` of the lease at each place.
    pub(super) fn account<'a>(&mut self, remaining_ms: impl Fn(usize) -> Result<u64, &'a Refused>) {
        for (at, hold) in self.holds.drain(..).enumerate() {
            match remaining_ms(at) {
                Ok(remaining_ms) => hold.granted(remaining_ms),
                Err(refused) if refused.is_unknown() => hold.unknown(),
                Err(refused) if refused.has_no_lease() => hold.gone(),
                Err(_) => hold.refused(),
            }
        }
    }
}

/// Last steps of an acquire: seals its grant, and updates the caller's quota.
async fn finish_one(
    (service, lock, mut holds): (Arc<Service>, LockName, Holds),
    session: Option<SessionId>,
    result: Result<Result<Grant, StoreError>, Reject>,
) -> Result<Grant, Refused> {
    let result = match result {
        Ok(result) => service.grants.one(&lock, session, result).await,
        Err(reject) => Err(Refused::Forbidden(reject)),
    };
    holds.account(|_| result.as_ref().map(|grant| grant.remaining_ms));
    result
}

/// Awaits the store's reply, and `finish` of it; returns `None` if the server begins to shut down
/// while the request waits.
///
/// # Cancel safety
/// Dropped, it withdraws a request that waits, and completes one that does not, or that has its
/// reply.
pub(super) async fn answered<T, R, F>(
    service: &Service,
    wait_ms: u64,
    answer: impl Future<Output = T> + Send + 'static,
    finish: impl FnOnce(T) -> F + Send + 'static,
) -> Option<R>
where
    F: Future<Output = R> + Send + 'static,
    R: Send + 'static,
    T: Send + 'static,
{
    if wait_ms == 0 {
        return Some(service.kit.tasks.finish(async move { finish(answer.await).await }).await);
    }
    let shutdown = service.kit.tasks.shutdown_token();
    let waiting = service.counters.waiting();
    let answer = tokio::select! {
        biased;
        answer = answer => answer,
        () = shutdown.cancelled() => return None,
    };
    drop(waiting);
    Some(service.kit.tasks.finish(finish(answer)).await)
}

fn check(
    service: &Service,
    caller: &Caller,
    lock: LockName,
    request: AcquireRequest,
) -> Result<Acquire, Reject> {
    service.check_ttl(request.ttl_ms)?;
    check_wait(request.wait_ms)?;
    check_min_token(service, request.min_token).map_err(error::invalid)?;
    let mode = mode(request.mode, request.size).map_err(error::invalid)?;
    let metadata = metadata::bounded(request.metadata.as_ref())?;
    let takeover = takeover(&request)?;
    let lock_delay_ms = service.lock_delay_ms(&lock);
    let owner = request.owner.map_or_else(anonymous, Ok)?;
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
        mode,
        lock_delay_ms,
        principal: caller.name().map(ToOwned::to_owned),
        may_supersede: None,
    })
}

/// Checks that the session belongs to the caller, and takes the owner from the session where the
// request names none.
pub(super) async fn within_session(
    service: &Service,
    caller: Caller,
    session: Option<SessionId>,
    owner: Option<Owner>,
) -> Result<(Caller, Option<Owner>), Reject> {
    let Some(session) = session else { return Ok((caller, owner)) };
    let owner = match owner {
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
    Ok((caller.within(Some(session)), Some(owner)))
}

/// Owner of a request that names none.
pub(super) fn anonymous() -> Result<Owner, Reject> {
    Ok(Owner::new(ANONYMOUS)?)
}

pub(super) fn check_wait(wait_ms: u64) -> Result<(), Reject> {
    match wait_ms {
        0..=MAX_WAIT_MS => Ok(()),
        _ => {
            Err(error::invalid(format!("wait_ms {wait_ms} is out of range: at most {MAX_WAIT_MS}")))
        }
    }
}

/// Checked mode of the lease, with the size of a semaphore.
pub(super) fn mode(mode: LeaseMode, size: Option<u32>) -> Result<Mode, String> {
    match (mode, size) {
        (LeaseMode::Exclusive, None) => Ok(Mode::Exclusive),
        (LeaseMode::Shared, None) => Ok(Mode::Shared),
        (LeaseMode::Permit, Some(size @ 1..=PERMITS_MAX)) => Ok(Mode::Permit { size }),
        (LeaseMode::Permit, Some(size)) => {
            Err(format!("size {size} is out of range: a semaphore has 1 to {PERMITS_MAX} permits"))
        }
        (LeaseMode::Permit, None) => {
            Err(format!("mode permit needs size: how many there are in all, 1 to {PERMITS_MAX}"))
        }
        (LeaseMode::Exclusive | LeaseMode::Shared, Some(size)) => {
            let mode = mode.as_str();
            Err(format!("size {size} goes with mode permit alone; this request is {mode}"))
        }
    }
}

/// Checked takeover of the request, which must name its own owner.
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
    if !request.mode.is_exclusive() {
        let mode = request.mode.as_str();
        return Err(error::invalid(format!(
            "a takeover takes the whole lock: it is exclusive, and mode {mode} is not"
        )));
    }
    Ok(takeover)
}

/// Refuses a `min_token` above every token that a guard can have seen: it would use up the tokens
/// that are left.
pub(super) fn check_min_token(service: &Service, min_token: Option<Token>) -> Result<(), String> {
    let ceiling = tokens::min_token_ceiling(0, service.kit.clock.wall_ms());
    match min_token {
        Some(min_token) if min_token.get() > ceiling => Err(format!(
            "min_token {min_token} is out of range: no guard can have seen more than {ceiling}"
        )),
        _ => Ok(()),
    }
}
