//! Between a grant and its reply: seals the guards first where `--seal` requires it.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LockName, SessionId};
use futures_util::future::join_all;
use service_kit::problem::Reject;

use super::Service;
use crate::seals::NotSealed;
use crate::store::{Grant, StoreError};

/// Reason why a grant is not acknowledged.
#[derive(Debug)]
pub(super) enum Refused {
    /// The store granted nothing.
    Store(StoreError),
    /// A guard was not sealed.
    Unsealed(NotSealed),
    /// The lease to take over is another principal's; nothing was requested.
    Forbidden(Reject),
}

impl Refused {
    /// `true` if a lease may exist.
    pub(super) fn is_unknown(&self) -> bool {
        match self {
            Self::Store(refusal) => matches!(refusal, StoreError::Unknown(_)),
            Self::Unsealed(unsealed) => !unsealed.is_rolled_back,
            Self::Forbidden(_) => false,
        }
    }

    /// `true` if it is certain that no lease has this id. For a request of several locks it is not:
    /// other locks may have a lease with it.
    pub(super) fn has_no_lease(&self) -> bool {
        match self {
            Self::Store(refusal) => {
                matches!(refusal, StoreError::Lost { .. } | StoreError::Held { .. })
            }
            Self::Unsealed(unsealed) => unsealed.is_rolled_back,
            Self::Forbidden(_) => false,
        }
    }

    /// Converts into the problem; `store` converts a store's refusal.
    pub(super) fn reject(self, store: impl FnOnce(StoreError) -> Reject) -> Reject {
        match self {
            Self::Store(refusal) => store(refusal),
            Self::Unsealed(unsealed) => unsealed.reject,
            Self::Forbidden(reject) => reject,
        }
    }
}

/// Returns the grant once it may be acknowledged.
///
/// # Cancel safety
/// If dropped, guards are sealed or the lease rolled back all the same; a sealed lease stays as it
/// is: the caller rolls it back if no client can retry.
pub(super) async fn one(
    service: &Service,
    lock: &LockName,
    session: Option<SessionId>,
    result: Result<Grant, StoreError>,
) -> Result<Grant, Refused> {
    let mut grants = [(lock.clone(), result.map_err(Refused::Store)?)];
    let is_new = service.seals.after_grants(&mut grants).await.map_err(Refused::Unsealed)?;
    match over(service, session, &grants, is_new).await {
        None => {
            let [(_, grant)] = grants;
            Ok(grant)
        }
        Some((_, refusal)) => Err(Refused::Store(refusal)),
    }
}

/// Returns the grants of one step once all may be acknowledged, or none of them.
///
/// # Cancel safety
/// As [`one`].
pub(super) async fn all(
    service: &Service,
    locks: &[LockName],
    session: Option<SessionId>,
    result: Result<Vec<Grant>, StoreError>,
) -> Result<Vec<Grant>, Refused> {
    let grants = result.map_err(Refused::Store)?;
    let mut grants: Vec<_> = locks.iter().cloned().zip(grants).collect();
    let is_new = service.seals.after_grants(&mut grants).await.map_err(Refused::Unsealed)?;
    match over(service, session, &grants, is_new).await {
        None => Ok(grants.into_iter().map(|(_, grant)| grant).collect()),
        Some((lock, refusal)) => {
            let refusal = Box::new(refusal);
            Err(Refused::Store(StoreError::Part { lock, refusal }))
        }
    }
}

/// Returns a lock whose lease has ended before the reply could be sent. Where guards were sealed
/// meanwhile, the store is asked: a release, another server's rollback or the end of a session may
/// have come first.
async fn over(
    service: &Service,
    session: Option<SessionId>,
    grants: &[(LockName, Grant)],
    is_sealed_now: bool,
) -> Option<(LockName, StoreError)> {
    if let Some((lock, _)) = grants.iter().find(|(_, grant)| is_over(grant, session)) {
        let reason = EndReason::Expired;
        return Some((lock.clone(), StoreError::Lost { reason, why: None }));
    }
    let asked = grants.iter().filter(|_| is_sealed_now);
    let ended = join_all(asked.map(|(lock, grant)| ended(service, lock, grant))).await;
    ended.into_iter().flatten().next()
}

/// Returns why a lease has ended, if the store knows that it has.
async fn ended(
    service: &Service,
    lock: &LockName,
    grant: &Grant,
) -> Option<(LockName, StoreError)> {
    let shown = service.store.show(lock).await.ok()?;
    let ended = shown.history.iter().find(|ended| ended.lease_id == grant.lease_id)?;
    Some((lock.clone(), StoreError::Lost { reason: ended.reason, why: None }))
}

/// `true` if the lease expired before the reply could be sent. A lease of a session has no time of
/// its own: a heartbeat may have extended it since.
fn is_over(grant: &Grant, session: Option<SessionId>) -> bool {
    session.is_none() && grant.remaining_ms == 0
}
