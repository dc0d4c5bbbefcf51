//! Between a grant and its reply: seals the guards first where `--seal` requires it.

use std::time::Duration;

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LockName, SessionId};
use futures_util::future::join_all;
use service_kit::problem::Reject;

use super::Grants;
use super::after_grant::NotSealed;
use super::returned::{is_ended, return_lease};
use crate::store::{Grant, StoreError};

/// Longest look at leases that were sealed just now: they are acknowledged without it.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Reason why a grant is not acknowledged.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The store granted nothing.
    Store(StoreError),
    /// A guard was not sealed.
    Unsealed(NotSealed),
    /// The lease to take over is another principal's; nothing was requested.
    Forbidden(Reject),
}

impl Refused {
    /// `true` if a lease may exist.
    pub(crate) fn is_unknown(&self) -> bool {
        match self {
            Self::Store(refusal) => matches!(refusal, StoreError::Unknown(_)),
            Self::Unsealed(unsealed) => !unsealed.is_rolled_back,
            Self::Forbidden(_) => false,
        }
    }

    /// `true` if it is certain that no lease has this id. For a request of several locks it is not:
    /// other locks may have a lease with it.
    pub(crate) fn has_no_lease(&self) -> bool {
        match self {
            Self::Store(refusal) => matches!(
                refusal,
                StoreError::Lost { .. } | StoreError::Held { .. } | StoreError::Kept { .. }
            ),
            Self::Unsealed(unsealed) => unsealed.is_rolled_back,
            Self::Forbidden(_) => false,
        }
    }

    /// Converts into the problem; `store` converts a store's refusal.
    pub(crate) fn reject(self, store: impl FnOnce(StoreError) -> Reject) -> Reject {
        match self {
            Self::Store(refusal) => store(refusal),
            Self::Unsealed(unsealed) => unsealed.reject,
            Self::Forbidden(reject) => reject,
        }
    }
}

impl Grants {
    /// Returns the grant once it may be acknowledged.
    ///
    /// # Cancel safety
    /// If dropped, the lease stays live and its guards may be sealed or not: callers complete it.
    pub(crate) async fn one(
        &self,
        lock: &LockName,
        session: Option<SessionId>,
        result: Result<Grant, StoreError>,
    ) -> Result<Grant, Refused> {
        let mut grants = [(lock.clone(), result.map_err(Refused::Store)?)];
        let is_new = self.seals.after_grants(&mut grants).await.map_err(Refused::Unsealed)?;
        if let Some((_, refusal)) = self.over(session, &mut grants, is_new).await {
            return Err(Refused::Store(refusal));
        }
        let [(_, grant)] = grants;
        Ok(grant)
    }

    /// Returns the grants of one step once all may be acknowledged, or none of them.
    ///
    /// # Cancel safety
    /// As [`one`](Self::one).
    pub(crate) async fn all(
        &self,
        locks: &[LockName],
        session: Option<SessionId>,
        result: Result<Vec<Grant>, StoreError>,
    ) -> Result<Vec<Grant>, Refused> {
        let grants = result.map_err(Refused::Store)?;
        let mut grants: Vec<_> = locks.iter().cloned().zip(grants).collect();
        let is_new = self.seals.after_grants(&mut grants).await.map_err(Refused::Unsealed)?;
        if let Some((lock, refusal)) = self.over(session, &mut grants, is_new).await {
            if !grants.iter().any(|(_, grant)| grant.is_repeat) {
                join_all(grants.into_iter().map(|grant| self.give_back(grant))).await;
            }
            let refusal = Box::new(refusal);
            return Err(Refused::Store(StoreError::Part { lock, refusal }));
        }
        Ok(grants.into_iter().map(|(_, grant)| grant).collect())
    }

    /// Returns a lock whose lease has ended before the reply could be sent. Where guards were
    /// sealed meanwhile, the store is asked: a release, another server's rollback or the end of a
    /// session may have come first. What that takes is subtracted from what remains of the grants.
    async fn over(
        &self,
        session: Option<SessionId>,
        grants: &mut [(LockName, Grant)],
        is_sealed_now: bool,
    ) -> Option<(LockName, StoreError)> {
        if is_sealed_now {
            let begun_ms = self.kit.clock.monotonic_ms();
            let looks = grants
                .iter()
                .map(|(lock, grant)| tokio::time::timeout(LOOK_MAX, self.ended(lock, grant)));
            if let Some(ended) = join_all(looks).await.into_iter().flatten().flatten().next() {
                return Some(ended);
            }
            let took_ms = self.kit.clock.monotonic_ms().saturating_sub(begun_ms);
            for (_, grant) in &mut *grants {
                grant.remaining_ms = grant.remaining_ms.saturating_sub(took_ms);
            }
        }
        let (lock, _) = grants.iter().find(|(_, grant)| is_over(grant, session))?;
        Some((
            lock.clone(),
            StoreError::Lost { reason: EndReason::Expired, why: None, is_known: true },
        ))
    }

    /// Returns why a lease has ended, if the store knows that it has. An expiry shows in the time
    /// that remains: one node of a quorum may know of it alone.
    async fn ended(&self, lock: &LockName, grant: &Grant) -> Option<(LockName, StoreError)> {
        let shown = self.store.show(lock).await.ok()?;
        let ended = shown.history.into_iter().find(|ended| ended.lease_id == grant.lease_id)?;
        let is_early = ended.reason != EndReason::Expired;
        let lost = StoreError::Lost { reason: ended.reason, why: ended.why, is_known: true };
        is_early.then(|| (lock.clone(), lost))
    }

    /// Ends a lease of a group that is not acknowledged. A tracked task retries where the store
    /// does not confirm it.
    async fn give_back(&self, (lock, grant): (LockName, Grant)) {
        if is_ended(&self.store.release(&lock, grant.lease_id).await) {
            return;
        }
        let store = self.store.clone();
        let kit = self.kit.clone();
        self.kit.tasks.spawn(async move {
            return_lease(&*store, &kit, &lock, grant.lease_id, grant.remaining_ms).await;
        });
    }
}

/// `true` if the lease expired before the reply could be sent. A lease of a session has no time of
/// its own: a heartbeat may have extended it since.
fn is_over(grant: &Grant, session: Option<SessionId>) -> bool {
    session.is_none() && grant.remaining_ms == 0
}
