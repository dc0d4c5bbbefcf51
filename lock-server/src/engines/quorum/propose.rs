//! One proposal: votes at all nodes, above what they have accepted, until a majority has decided.

mod ballot;
mod rollback;

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::{LeaseId, Token};
use service_kit::ids;

use self::ballot::Ballot;
pub(super) use self::ballot::Votes;
use super::nodes::budget;
use super::queue::{Delivery, Granted, Holder, ProposalOutcome};
use super::round::RoundResult;
use super::rules::tally::{Decision, Round};
use super::rules::{NodeReply, Operation, TopUp, Vote, bucket_of, with_principal};
use super::{QuorumStore, VIEW_PATIENCE, random_below};
use crate::store::{Acquire, Grant, StoreError};
use lease::tokens;

/// Most rounds of a proposal: each answers the one before, and duels are rare.
const ROUNDS_MAX: u32 = 12;
/// Most retries of a proposal without a majority before its caller gets an error.
const SPLITS_MAX: u32 = 4;
/// The longest pause after a split, in milliseconds; the first is an eighth of it.
const BACKOFF_MS: u64 = 128;

/// A proposal on its way.
struct Proposal<'a> {
    store: &'a QuorumStore,
    request: &'a Acquire,
    ballot: Ballot,
    /// True if no other token than the first may be proposed.
    is_exact: bool,
    rounds: u32,
    splits: u32,
    /// When the round began, before anything was sent.
    began_ms: u64,
}

/// The consequence of a round.
enum ProposalStep {
    Done(ProposalOutcome),
    Again,
}

impl QuorumStore {
    /// Proposes a grant. It runs in a task of its own, so that no vote is left to itself.
    pub(super) async fn propose(&self, request: &Acquire) -> ProposalOutcome {
        let token = match self.first_token(request).await {
            Ok(token) => token,
            Err(StoreError::Exhausted) => return ProposalOutcome::Refused(StoreError::Exhausted),
            Err(error) => return ProposalOutcome::Failed(error),
        };
        Proposal::new(self, request, token, false).run().await
    }

    /// Has a token confirmed that nodes hold the lease with already. Where they do not any more it
    /// is not granted: no waiter is overtaken. It runs in a task of its own, as a proposal.
    pub(super) async fn confirm(&self, request: &Acquire, token: Token) -> ProposalOutcome {
        Proposal::new(self, request, token, true).run().await
    }

    /// Above everything that is known, and above the client's `min_token`, which must be credible.
    async fn first_token(&self, request: &Acquire) -> Result<Token, StoreError> {
        let lock = &request.lock;
        let wall_ms = self.inner.clock.wall_ms();
        if let Some(wish) = request.min_token
            && wish.get() > tokens::min_token_ceiling(self.known_p(lock), wall_ms)
        {
            // A server that has just started may not know yet how far the nodes are.
            self.read_lock(lock).await?;
            if wish.get() > tokens::min_token_ceiling(self.known_p(lock), wall_ms) {
                return Err(StoreError::Exhausted);
            }
        }
        Self::token_above(self.known_p(lock), request.min_token)
    }
}

impl<'a> Proposal<'a> {
    fn new(store: &'a QuorumStore, request: &'a Acquire, token: Token, is_exact: bool) -> Self {
        store.inner.membership.saw_ttl(request.ttl.ms());
        let vote = Vote {
            lock: request.lock.clone(),
            bucket: bucket_of(&request.lock),
            lease: request.lease_id,
            token,
            ttl_ms: request.ttl.ms(),
            owner: request.owner.clone(),
            metadata: with_principal(request.principal.as_deref(), request.metadata.as_deref()),
            attempt: String::new(),
            dead: Vec::new(),
            retention_ms: store.inner.options.limits.ended_retention_ms,
        };
        let ballot = Ballot::new(vote, store.inner.nodes.len());
        Self { store, request, ballot, is_exact, rounds: 0, splits: 0, began_ms: 0 }
    }

    async fn run(mut self) -> ProposalOutcome {
        loop {
            match self.round().await {
                ProposalStep::Done(outcome) => return outcome,
                ProposalStep::Again if self.rounds < ROUNDS_MAX => {
                    self.store.inner.counters.extra_rounds.inc();
                }
                ProposalStep::Again => {
                    self.drop_votes();
                    return self.split();
                }
            }
        }
    }

    async fn round(&mut self) -> ProposalStep {
        self.rounds += 1;
        self.began_ms = self.store.now_ms();
        let vote = &self.ballot.vote;
        let decide = |round: &Round| {
            let decision = round.vote(vote);
            (decision != Decision::Undecided).then_some(decision)
        };
        let patience = budget(Some(self.request.ttl));
        let asked = self.store.run_round(patience, Operation::Vote(vote.clone()), decide).await;
        let mut asked = match asked {
            Ok(asked) => asked,
            Err(error) => return self.failed(error),
        };
        self.ballot.record(&asked.round, &asked.current);
        match asked.decision.take() {
            Some(decision) => self.decided(decision, asked).await,
            None => self.too_few(&asked),
        }
    }

    async fn decided(&mut self, decision: Decision, asked: RoundResult<Decision>) -> ProposalStep {
        match decision {
            Decision::Granted { token, remaining_ms } => self.granted(token, remaining_ms, asked),
            Decision::Held { holder } => {
                self.drop_votes();
                let lease = lease_of_holder(&asked, holder.token);
                let holder = Holder::from_node(lease, holder, self.store.now_ms());
                ProposalStep::Done(ProposalOutcome::Held(holder))
            }
            Decision::Conflict { owner } => self.refused(StoreError::IdConflict { owner }),
            Decision::Ended { reason, why } => {
                self.refused(StoreError::Lost { reason, why, is_known: true })
            }
            Decision::GoAbove { .. } | Decision::Help { .. } | Decision::Split { .. }
                if self.is_exact =>
            {
                self.drop_votes();
                ProposalStep::Done(self.split())
            }
            Decision::GoAbove { above, dead } => self.go_above(above, dead),
            Decision::Help { token, dead } => {
                (self.ballot.vote.token, self.ballot.vote.dead) = (token, dead);
                ProposalStep::Again
            }
            Decision::Split { .. } => self.retry_after_split().await,
            Decision::NewView { view, members } => {
                self.store.adopt_view(view, members);
                self.store.inner.membership.settled(VIEW_PATIENCE).await;
                ProposalStep::Again
            }
            Decision::TooFew | Decision::Undecided => self.too_few(&asked),
        }
    }

    fn granted(
        &mut self,
        token: Token,
        remaining_ms: u64,
        asked: RoundResult<Decision>,
    ) -> ProposalStep {
        let spent_ms = self.store.now_ms().saturating_sub(self.began_ms);
        let remaining_ms = remaining_ms.saturating_sub(spent_ms);
        if remaining_ms == 0 {
            self.drop_votes();
            return ProposalStep::Done(ProposalOutcome::Late(format!(
                "the nodes took {spent_ms} ms to grant a lease of {} ms: nothing is left of it; \
                 ask for a longer one",
                self.request.ttl.ms()
            )));
        }
        let votes = self.ballot.granted();
        let ttl_ms = self.ballot.vote.ttl_ms;
        let is_repeat = asked.round.replies().any(|(_, reply)| match reply {
            NodeReply::Yours { .. } => true,
            // A vote that is new there has all of its time.
            NodeReply::Accepted { remaining_ms, .. } => *remaining_ms < ttl_ms,
            _ => false,
        });
        let topup = self.topup(token, remaining_ms);
        self.store.top_up_unless_rolled_back(topup, asked, votes.clone());
        let grant = Grant {
            lease_id: self.ballot.vote.lease,
            token,
            owner: self.request.owner.clone(),
            remaining_ms,
            waited_ms: 0,
            mode: self.request.mode,
            slack_ms: None,
            is_repeat,
        };
        let delivery = Arc::new(Delivery::new(self.store.clone(), votes));
        ProposalStep::Done(ProposalOutcome::Granted(Granted { grant, delivery }))
    }

    fn topup(&self, token: Token, remaining_ms: u64) -> TopUp {
        let vote = &self.ballot.vote;
        TopUp {
            lock: vote.lock.clone(),
            bucket: vote.bucket,
            lease: vote.lease,
            token,
            remaining_ms,
            ttl_ms: vote.ttl_ms,
            owner: vote.owner.clone(),
            metadata: vote.metadata.clone(),
            attempt: vote.attempt.clone(),
            retention_ms: vote.retention_ms,
        }
    }

    fn refused(&mut self, refusal: StoreError) -> ProposalStep {
        self.drop_votes();
        ProposalStep::Done(ProposalOutcome::Refused(refusal))
    }

    fn go_above(&mut self, above: u64, dead: Vec<Token>) -> ProposalStep {
        let known = above.max(self.store.known_p(&self.ballot.vote.lock));
        // Two proposers that got the same number must not propose the same one for ever.
        let jitter = random_below(1 << self.rounds.min(10)) * u64::from(self.rounds > 1);
        match QuorumStore::token_above(known.saturating_add(jitter), self.request.min_token) {
            Ok(token) => {
                (self.ballot.vote.token, self.ballot.vote.dead) = (token, dead);
                ProposalStep::Again
            }
            Err(error) => self.refused(error),
        }
    }

    /// No proposer has a majority: the votes are rolled back, and others get a chance before the
    /// next try.
    async fn retry_after_split(&mut self) -> ProposalStep {
        self.drop_votes();
        self.store.inner.counters.split_votes.inc();
        self.splits += 1;
        if self.splits > SPLITS_MAX {
            return ProposalStep::Done(self.split());
        }
        tokio::time::sleep(Duration::from_millis(self.backoff_ms())).await;
        let known = self.store.known_p(&self.ballot.vote.lock);
        match QuorumStore::token_above(known, self.request.min_token) {
            Ok(token) => {
                self.ballot.vote.token = token;
                ProposalStep::Again
            }
            Err(error) => self.refused(error),
        }
    }

    /// Result where no proposer gets a majority; the votes have been rolled back.
    fn split(&self) -> ProposalOutcome {
        ProposalOutcome::Split {
            possibly_granted: self.ballot.may_be_granted(),
            backoff_ms: self.backoff_ms(),
        }
    }

    fn too_few(&mut self, asked: &RoundResult<Decision>) -> ProposalStep {
        self.failed(StoreError::Unavailable(asked.text("take part")))
    }

    /// Nothing was decided; where a majority may hold it all the same, of whatever rounds, the
    /// outcome is unknown.
    fn failed(&mut self, error: StoreError) -> ProposalStep {
        self.drop_votes();
        ProposalStep::Done(ProposalOutcome::Failed(match error {
            StoreError::Unavailable(text) if self.ballot.may_be_granted() => {
                StoreError::Unknown(text)
            }
            error => error,
        }))
    }

    /// Rolls this attempt back, in the background. Votes that are requested afterwards belong to
    /// another attempt.
    fn drop_votes(&mut self) {
        drop(self.store.roll_back(self.ballot.roll_back()));
    }

    /// A random pause that grows with every split.
    fn backoff_ms(&self) -> u64 {
        1 + random_below((BACKOFF_MS / 8) << self.splits.min(3))
    }
}

/// The lease of a token, among the leases in the nodes' replies; an unused id where there is none.
fn lease_of_holder(asked: &RoundResult<Decision>, token: Token) -> LeaseId {
    let lease = asked.round.replies().find_map(|(_, reply)| match reply {
        NodeReply::Held { lease, holder, .. } if holder.token == token => Some(*lease),
        _ => None,
    });
    lease.unwrap_or_else(ids::lease_id)
}
