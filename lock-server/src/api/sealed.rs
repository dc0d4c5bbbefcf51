//! Between a grant and its reply: `--seal` may want the guards to know first.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LockName, SessionId};
use service_kit::problem::Reject;

use super::Service;
use crate::seals::NotSealed;
use crate::store::{Grant, StoreError};

/// Why the client is not told of a grant.
#[derive(Debug)]
pub(super) enum Refused {
    /// There is none.
    Store(StoreError),
    /// A guard was not sealed.
    Unsealed(NotSealed),
}

impl Refused {
    /// Whether nobody knows that there is no lease.
    pub(super) fn is_unknown(&self) -> bool {
        match self {
            Self::Store(refusal) => matches!(refusal, StoreError::Unknown(_)),
            Self::Unsealed(unsealed) => !unsealed.is_given_back,
        }
    }

    /// Whether it is certain that no lease has this id, whoever asked for it first. Of a request for
    /// several locks it is not: others of them may have one.
    pub(super) fn has_no_lease(&self) -> bool {
        match self {
            Self::Store(refusal) => {
                matches!(refusal, StoreError::Lost { .. } | StoreError::Held { .. })
            }
            Self::Unsealed(unsealed) => unsealed.is_given_back,
        }
    }

    /// The problem; `store` makes that of a store's refusal.
    pub(super) fn reject(self, store: impl FnOnce(StoreError) -> Reject) -> Reject {
        match self {
            Self::Store(refusal) => store(refusal),
            Self::Unsealed(unsealed) => unsealed.reject,
        }
    }
}

/// The grant, once its client may be told of it.
///
/// # Cancel safety
/// Dropped, it leaves the lease as it is: the caller takes it back where nobody can ask again.
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

/// The grants of one step, once their client may be told of them; none of them otherwise.
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

/// Whether the time of a lease was over before its client could be sent the reply. A lease of a session
/// has no time of its own: a heartbeat may have extended it since.
fn is_over(grant: &Grant, session: Option<SessionId>) -> bool {
    session.is_none() && grant.remaining_ms == 0
}

fn expired() -> StoreError {
    StoreError::Lost { reason: EndReason::Expired, why: None }
}
