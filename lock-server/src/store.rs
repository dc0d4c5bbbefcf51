//! Interface between the HTTP service and the stores of leases.
//!
//! The driver implements it over an engine's records, and the quorum by votes. One conformance
//! suite (package `fence-tests`) runs over every engine, so that they cannot drift apart.

use std::sync::Arc;

use async_trait::async_trait;
use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::{LeaseId, LockName, Token, Ttl};
pub use lease::{
    Acquire, Grant, Kind, Limits, ListQuery, Mode, NewSession, NoSession, NoTakeover, Revoke,
    SessionRefusal, StoreError, Takeover,
};

pub(crate) mod figures;
pub mod report;
pub mod session;

use self::report::Report;
use self::session::SessionStore;
use crate::engines::contract::ServerId;

/// A store of leases, each with its holder, token and expiry.
///
/// # Contract
/// - Every operation is atomic: it happened entirely or not at all, and operations on one lock have
///   one order.
/// - L1: a grant's token is greater than every token that the namespace has issued before.
/// - L2: a lock has at most one live exclusive lease and no other lease beside it, or shared ones
///   alone, or at most as many permits as its size, by the store's own clock.
/// - L3: a lease id is granted at most once; while the lease lives, the same id gets the same
///   grant.
/// - L4: what was answered survives a restart of the process, except in the `memory` store.
/// - Waiters are granted in arrival order; no later request overtakes them.
/// - [`StoreError::Unknown`] is returned wherever the operation may or may not have happened; it is
///   never turned into success or failure by guessing, and never retried inside the store when it
///   could mint a token.
#[async_trait]
pub trait LockStore: SessionStore {
    /// Grants the lock, now or within `request.wait_ms`.
    ///
    /// # Cancel safety
    /// Dropping the future of a request that waits in the queue withdraws it: the waiter leaves
    /// the queue, and a grant that was just made for it is rolled back at once. Dropping the future
    /// of a request with `wait_ms` 0 leaves its outcome: a retry with the same id returns it.
    async fn acquire(&self, request: Acquire) -> Result<Grant, StoreError>;

    /// Grants several locks in one step, a token each, or none of them: now, or within `wait_ms`.
    ///
    /// Every part has the same lease id, owner, time to live, patience, session and metadata, names
    /// another lock, and takes nothing over. The grants come in the order of the parts. While such
    /// a request waits it holds nothing: it has an entry in each queue, all added in one step, so
    /// that any two requests have the same order in every queue, and no deadlock can form. A retry
    /// with the same lease id returns the same grants while all of them live.
    ///
    /// # Errors
    /// [`StoreError::Part`] names the lock that refused, with why; nothing was changed.
    ///
    /// # Cancel safety
    /// Like [`acquire`](Self::acquire): if dropped while it waits, it leaves every queue.
    async fn acquire_all(&self, parts: Vec<Acquire>) -> Result<Vec<Grant>, StoreError>;

    /// Replaces the remaining time of a live lease by `ttl`, or by its own time to live.
    ///
    /// # Errors
    /// [`StoreError::Lost`] when the lease has ended: a renewal never resurrects.
    /// [`StoreError::OtherPrincipal`] when it [is another's](lease::is_anothers) than `principal`.
    async fn renew_as(
        &self,
        principal: Option<&str>,
        lock: &LockName,
        lease: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError>;

    /// As [`renew_as`](Self::renew_as), of any principal's lease.
    async fn renew(
        &self,
        lock: &LockName,
        lease: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError> {
        self.renew_as(None, lock, lease, ttl).await
    }

    /// Ends a lease; the next waiter is granted in the same step.
    ///
    /// An unknown id is remembered as ended, so that its acquire is refused if it arrives later.
    ///
    /// # Errors
    /// [`StoreError::Lost`] when the lease had ended before, and for an id that is not known.
    /// [`StoreError::OtherPrincipal`] when it [is another's](lease::is_anothers) than `principal`,
    /// or waits for another.
    async fn release_as(
        &self,
        principal: Option<&str>,
        lock: &LockName,
        lease: LeaseId,
    ) -> Result<EndedReply, StoreError>;

    /// As [`release_as`](Self::release_as), of any principal's lease.
    async fn release(&self, lock: &LockName, lease: LeaseId) -> Result<EndedReply, StoreError> {
        self.release_as(None, lock, lease).await
    }

    /// Ends one live lease, or every live lease of the lock, and a lock-delay that runs; waiters
    /// are granted in the same step. Returns the leases that ended, the oldest first.
    ///
    /// # Errors
    /// [`StoreError::NotHeld`] when nothing is live; [`StoreError::Lost`] when the one that was
    /// named is not.
    async fn revoke(&self, lock: &LockName, revoke: Revoke) -> Result<Vec<EndedReply>, StoreError>;

    /// Issues a token that no lease has: above every token issued for the lock before. Guards are
    /// sealed with it.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`], [`StoreError::Unavailable`]; [`StoreError::Unknown`] where a
    /// token may have been used up.
    async fn mint(&self, lock: &LockName) -> Result<Token, StoreError>;

    /// A token above every one that the namespace had issued before the call, in every lock, such
    /// that every one issued after the reply is above or equal. No lease has it. Guards that lost
    /// their marks admit from it on.
    ///
    /// # Errors
    /// As [`mint`](Self::mint).
    async fn floor(&self) -> Result<Token, StoreError>;

    /// Holder, queue and recent history of one lock. An unknown lock is free.
    async fn show(&self, lock: &LockName) -> Result<LockReply, StoreError>;

    /// Held locks in the order of their names.
    async fn list(&self, query: ListQuery) -> Result<LockPage, StoreError>;

    /// Raises the counter, so that the next token is above `mark`, which a guard has seen. A
    /// missing counter has lost its data: it continues above every token that can have been issued,
    /// not just above `mark`. A counter at `mark` or above stays as it is.
    ///
    /// # Errors
    /// [`StoreError`], after which the counter may or may not be raised.
    async fn lift(&self, mark: Token) -> Result<(), StoreError>;

    /// Reports the transitions of locks from now on, under the id that is returned; `None` if the
    /// store cannot: then its replies have to be observed.
    fn report_to(&self, _reports: Arc<dyn Report>) -> Option<ServerId> {
        None
    }

    /// Name for logs and `/readyz?verbose`, such as `memory` or `redis`.
    fn name(&self) -> &'static str;
}
