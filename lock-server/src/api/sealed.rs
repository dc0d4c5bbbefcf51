//! Between a grant and its reply: seals the guards first where `--seal` requires it.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LockName, SessionId};
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
/// If dropped, the lease stays as it is: the caller rolls it back if no client can retry.
pub(super) async fn one(
    service: &Service,
    lock: &LockName,
    session: Option<SessionId>,
    result: Result<Grant, StoreError>,
) -> Result<Grant, Refused> {
    let grant = result.map_err(Refused::Store)?;
    let grant = service.seals.after_grant(lock, grant).await.map_err(Refused::Unsealed)?;
    if is_over(&grant, session) { Err(Refused::Store(expired())) } else { Ok(grant) }
}

/// Returns the grants of one step once all may be acknowledged, or none of them.
pub(super) async fn all(
    service: &Service,
    locks: &[LockName],
    session: Option<SessionId>,
    result: Result<Vec<Grant>, StoreError>,
) -> Result<Vec<Grant>, Refused> {
    let grants = result.map_err(Refused::Store)?;
    let mut grants: Vec<_> = locks.iter().cloned().zip(grants).collect();
    service.seals.after_grants(&mut grants).await.map_err(Refused::Unsealed)?;
    match grants.iter().find(|(_, grant)| is_over(grant, session)) {
        None => Ok(grants.into_iter().map(|(_, grant)| grant).collect()),
        Some((lock, _)) => {
            let refusal = Box::new(expired());
            Err(Refused::Store(StoreError::Part { lock: lock.clone(), refusal }))
        }
    }
}

/// `true` if the lease expired before the reply could be sent. A lease of a session has no time of
/// its own: a heartbeat may have extended it since.
fn is_over(grant: &Grant, session: Option<SessionId>) -> bool {
    session.is_none() && grant.remaining_ms == 0
}

fn expired() -> StoreError {
    StoreError::Lost { reason: EndReason::Expired, why: None }
}
