//! Renewing and ending leases, and tokens that no lease has.

use std::sync::atomic::{AtomicU64, Ordering};

use fence_protocol::wire::lock::{EndReason, EndedReply};
use fence_protocol::{LeaseId, LockName, Owner, Token, Ttl};
use service_kit::ids;

use super::effects::{PossibleEffects, changes, changes_for_good};
use super::nodes::budget;
use super::rules::tally::{EndDecision, RaiseDecision, RenewDecision, Round};
use super::rules::{End, Operation, Renew, TopUp, bucket_of};
use super::{QuorumStore, VIEW_PATIENCE, random_below};
use crate::store::{Grant, Mode, Revoke, StoreError};

/// Retries because the nodes are in another view, or above a token.
const ROUNDS_MAX: u32 = 8;

/// The renewals of this lock server, in their order; see [`Renew::order`].
#[derive(Debug)]
pub(super) struct Renewals {
    by: String,
    last: AtomicU64,
}

impl Renewals {
    pub(super) fn new() -> Self {
        Self { by: ids::random_hex(6), last: AtomicU64::new(0) }
    }

    fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl QuorumStore {
    pub(super) async fn renew_lease(
        &self,
        principal: Option<&str>,
        lock: &LockName,
        lease: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError> {
        self.check_principal(principal, lock, lease).await?;
        let renew = Renew {
            lock: lock.clone(),
            bucket: bucket_of(lock),
            lease,
            ttl_ms: ttl.map(Ttl::ms),
            by: self.inner.renewals.by.clone(),
            order: self.inner.renewals.next(),
            retention_ms: self.inner.options.limits.ended_retention_ms,
        };
        self.inner.membership.saw_ttl(renew.ttl_ms.unwrap_or(0));
        let mut effects = PossibleEffects::new(changes);
        for _ in 0..ROUNDS_MAX {
            let began_ms = self.now_ms();
            let decide = |round: &Round| {
                let decision = round.renew();
                (decision != RenewDecision::Undecided).then_some(decision)
            };
            let asked = self.run_round(budget(ttl), Operation::Renew(renew.clone()), decide).await;
            let mut asked = asked.map_err(|error| effects.failed(error))?;
            effects.record(&asked.round);
            match asked.decision.take() {
                Some(RenewDecision::Renewed { token, owner, ttl_ms, remaining_ms, metadata }) => {
                    let spent_ms = self.now_ms().saturating_sub(began_ms);
                    let remaining_ms = remaining_ms.saturating_sub(spent_ms);
                    if remaining_ms == 0 {
                        return Err(StoreError::Unknown(format!(
                            "the nodes took {spent_ms} ms to renew a lease of {ttl_ms} ms"
                        )));
                    }
                    let topup = TopUp {
                        lock: lock.clone(),
                        bucket: renew.bucket,
                        lease,
                        token,
                        remaining_ms,
                        owner: owner.clone(),
                        metadata,
                        attempt: String::new(),
                        ttl_ms,
                        retention_ms: renew.retention_ms,
                    };
                    self.top_up_later(topup, asked);
                    return Ok(exclusive(lease, token, owner, remaining_ms));
                }
                Some(RenewDecision::Lost { reason, why, is_known }) => {
                    return Err(StoreError::Lost { reason, why, is_known });
                }
                Some(RenewDecision::NewView { view, members }) => {
                    self.adopt_view(view, members);
                    self.inner.membership.settled(VIEW_PATIENCE).await;
                }
                Some(RenewDecision::Unknown | RenewDecision::Undecided) | None => {
                    return Err(effects.error(asked.text("answer about the lease")));
                }
            }
        }
        Err(views_change(&effects))
    }

    /// Ends a lease, wakes who waits for its lock.
    pub(super) async fn end(
        &self,
        lock: &LockName,
        lease: LeaseId,
        reason: EndReason,
        why: Option<Owner>,
    ) -> Result<EndedReply, StoreError> {
        let mut effects = PossibleEffects::new(changes_for_good);
        let retention_ms = self.inner.options.limits.ended_retention_ms;
        let end = End::For { reason, why };
        let operation = Operation::End { lock: lock.clone(), lease, end, retention_ms };
        for _ in 0..ROUNDS_MAX {
            let decide = |round: &Round| {
                let decision = round.end();
                (decision != EndDecision::Undecided).then_some(decision)
            };
            let asked = self.run_round(budget(None), operation.clone(), decide).await;
            let mut asked = asked.map_err(|error| effects.failed(error))?;
            effects.record(&asked.round);
            match asked.decision.take() {
                Some(EndDecision::Ended { token, .. }) => {
                    self.queues().wake(lock);
                    return Ok(EndedReply { lock: lock.clone(), lease_id: lease, token, reason });
                }
                Some(EndDecision::Lost { reason, why, is_known }) => {
                    return Err(StoreError::Lost { reason, why, is_known });
                }
                Some(EndDecision::NewView { view, members }) => {
                    self.adopt_view(view, members);
                    self.inner.membership.settled(VIEW_PATIENCE).await;
                }
                Some(EndDecision::Unknown | EndDecision::Undecided) | None => {
                    self.queues().wake(lock);
                    return Err(effects.error(asked.text("say that the lease has ended")));
                }
            }
        }
        self.queues().wake(lock);
        Err(views_change(&effects))
    }

    pub(super) async fn release_lease(
        &self,
        principal: Option<&str>,
        lock: &LockName,
        lease: LeaseId,
    ) -> Result<EndedReply, StoreError> {
        self.check_principal(principal, lock, lease).await?;
        let ended = self.end(lock, lease, EndReason::Released, None).await;
        // The waiter of this id is refused only when the nodes remember that it has ended.
        let released = StoreError::Lost { reason: EndReason::Released, why: None, is_known: true };
        match &ended {
            Ok(_) | Err(StoreError::Lost { .. }) => self.queues().expel(lock, lease, &released),
            Err(_) => {}
        }
        ended
    }

    pub(super) async fn revoke_lease(
        &self,
        lock: &LockName,
        revoke: Revoke,
    ) -> Result<Vec<EndedReply>, StoreError> {
        let named = revoke.lease.is_some();
        let lease = match revoke.lease {
            Some(lease) => lease,
            None => self.read_lock(lock).await?.surely_live()?.ok_or(StoreError::NotHeld)?.lease,
        };
        match self.end(lock, lease, EndReason::Revoked, revoke.reason).await {
            Ok(ended) => Ok(vec![ended]),
            Err(StoreError::Lost { .. }) if !named => Err(StoreError::NotHeld),
            Err(error) => Err(error),
        }
    }

    /// Uses a token up at a majority: later requests get one above it. A request that nodes have
    /// voted for before, and its retry, may still be granted its token.
    pub(super) async fn mint_token(&self, lock: &LockName) -> Result<Token, StoreError> {
        let bucket = bucket_of(lock);
        let mut token = Self::token_above(self.known_p(lock), None)?;
        let mut effects = PossibleEffects::new(changes);
        for attempt in 0..ROUNDS_MAX {
            let operation = Operation::Raise { bucket, token };
            let asked = self.run_round(budget(None), operation, raised).await;
            let mut asked = asked.map_err(|error| effects.failed(error))?;
            effects.record(&asked.round);
            match asked.decision.take() {
                Some(RaiseDecision::Raised) => return Ok(token),
                Some(RaiseDecision::GoAbove { above }) => {
                    let jitter = random_below(1 << attempt.min(8)) * u64::from(attempt > 0);
                    let known = above.max(self.known_p(lock)).saturating_add(jitter);
                    token = Self::token_above(known, None)?;
                }
                Some(RaiseDecision::NewView { view, members }) => {
                    self.adopt_view(view, members);
                    self.inner.membership.settled(VIEW_PATIENCE).await;
                }
                Some(RaiseDecision::TooFew | RaiseDecision::Undecided) | None => {
                    return Err(effects.error(asked.text("raise the counter")));
                }
            }
        }
        Err(effects
            .error("others raise the counter of this lock all the time; try again".to_owned()))
    }

    /// Lifts every counter above what any of them has issued.
    pub(super) async fn floor_of_all_buckets(&self) -> Result<Token, StoreError> {
        let lowest = Self::token_above(0, None)?;
        let issued = self.lift_counters(lowest).await?;
        self.lift_counters(issued).await?;
        Self::token_above(issued.get(), None)
    }

    /// Lifts every counter above a mark, at a majority. Returns the highest token that a node of
    /// that majority has accepted in any bucket: none that was issued before is above it.
    pub(super) async fn lift_counters(&self, mark: Token) -> Result<Token, StoreError> {
        // Later proposals of this server are above it, whatever the nodes reply.
        self.inner.floor.fetch_max(mark.get(), Ordering::Relaxed);
        let mut effects = PossibleEffects::new(changes);
        for _ in 0..ROUNDS_MAX {
            let asked = self.run_round(budget(None), Operation::Lift(mark), raised).await;
            let mut asked = asked.map_err(|error| effects.failed(error))?;
            effects.record(&asked.round);
            match asked.decision.take() {
                Some(RaiseDecision::Raised | RaiseDecision::GoAbove { .. }) => {
                    let accepted = asked.round.replies().filter_map(|(_, reply)| reply.p()).max();
                    return Ok(accepted.and_then(|p| Token::new(p).ok()).unwrap_or(mark));
                }
                Some(RaiseDecision::NewView { view, members }) => {
                    self.adopt_view(view, members);
                    self.inner.membership.settled(VIEW_PATIENCE).await;
                }
                Some(RaiseDecision::TooFew | RaiseDecision::Undecided) | None => {
                    return Err(effects.error(asked.text("lift their counters")));
                }
            }
        }
        Err(views_change(&effects))
    }
}

/// A renewed lease: a quorum has no others than exclusive ones.
fn exclusive(lease_id: LeaseId, token: Token, owner: Owner, remaining_ms: u64) -> Grant {
    Grant {
        lease_id,
        token,
        owner,
        remaining_ms,
        waited_ms: 0,
        mode: Mode::Exclusive,
        slack_ms: None,
        is_repeat: false,
    }
}

fn raised(round: &Round) -> Option<RaiseDecision> {
    let decision = round.raise();
    (decision != RaiseDecision::Undecided).then_some(decision)
}

fn views_change(effects: &PossibleEffects) -> StoreError {
    effects.error("the nodes of the quorum do not agree who belongs to it; try again".to_owned())
}
