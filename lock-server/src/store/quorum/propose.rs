//! One proposal: votes at all nodes, above what they have accepted, until a majority has decided.

use std::time::Duration;

use fence_protocol::{LeaseId, Token};
use service_kit::ids;

use super::nodes::budget;
use super::queue::{Holder, Outcome};
use super::round::Asked;
use super::{QuorumStore, VIEW_PATIENCE, random_below};
use crate::rules::quorum::node::TopUp;
use crate::rules::quorum::tally::{Decision, Heard, Round};
use crate::rules::quorum::{End, NodeReply, Vote, bucket_of};
use crate::rules::tokens;
use crate::store::{Acquire, Grant, StoreError};

/// How many rounds a proposal has: each answers the one before, and duels are rare.
const ROUNDS_MAX: u32 = 12;
/// How often a proposal without a majority is made again before its caller is told.
const SPLITS_MAX: u32 = 4;
/// The longest pause after a split, in milliseconds; the first is an eighth of it.
const BACKOFF_MS: u64 = 128;

/// A proposal on its way.
struct Proposal<'a> {
    store: &'a QuorumStore,
    request: &'a Acquire,
    vote: Vote,
    rounds: u32,
    splits: u32,
    /// When the round began, before anything was sent.
    began_ms: u64,
}

/// What a round says about the next.
enum Step {
    Done(Outcome),
    Again,
}

impl QuorumStore {
    /// Proposes a grant. It runs in a task of its own, so that no vote is left to itself.
    pub(super) async fn propose(&self, request: &Acquire) -> Outcome {
        let token = match self.first_token(request).await {
            Ok(token) => token,
            Err(StoreError::Exhausted) => return Outcome::Refused(StoreError::Exhausted),
            Err(error) => return Outcome::Failed(error),
        };
        self.inner.membership.saw_ttl(request.ttl.ms());
        let vote = Vote {
            lock: request.lock.clone(),
            bucket: bucket_of(&request.lock),
            lease: request.lease_id,
            token,
            ttl_ms: request.ttl.ms(),
            owner: request.owner.clone(),
            metadata: request.metadata.clone().unwrap_or_default(),
            attempt: ids::random_hex(8),
            dead: Vec::new(),
            retention_ms: self.inner.options.limits.ended_retention_ms,
        };
        let mut proposal =
            Proposal { store: self, request, vote, rounds: 0, splits: 0, began_ms: 0 };
        loop {
            match proposal.round().await {
                Step::Done(outcome) => return outcome,
                Step::Again if proposal.rounds < ROUNDS_MAX => {
                    self.inner.counters.extra_rounds.inc();
                }
                Step::Again => {
                    proposal.drop_votes();
                    return Outcome::Split { holder: None, backoff_ms: proposal.backoff_ms() };
                }
            }
        }
    }

    /// Above everything that is known, and above the client's wish, which must be credible.
    async fn first_token(&self, request: &Acquire) -> Result<Token, StoreError> {
        let lock = &request.lock;
        let wall_ms = self.inner.clock.wall_ms();
        if let Some(wish) = request.min_token
            && wish.get() > tokens::min_token_ceiling(self.known_p(lock), wall_ms)
        {
            // A server that has just started may not have heard yet how far the nodes are.
            self.look(lock).await?;
            if wish.get() > tokens::min_token_ceiling(self.known_p(lock), wall_ms) {
                return Err(StoreError::Exhausted);
            }
        }
        Self::token_above(self.known_p(lock), request.min_token)
    }
}

impl Proposal<'_> {
    async fn round(&mut self) -> Step {
        self.rounds += 1;
        self.began_ms = self.store.now_ms();
        let (scripts, vote) = (&self.store.inner.scripts, &self.vote);
        let decide = |round: &Round| {
            let decision = round.vote(vote);
            (decision != Decision::Undecided).then_some(decision)
        };
        let patience = budget(Some(self.request.ttl));
        let asked =
            self.store.ask(&vote.lock, patience, |view| scripts.vote(view, vote), decide).await;
        let mut asked = match asked {
            Ok(asked) => asked,
            Err(error) => return Step::Done(Outcome::Failed(error)),
        };
        match asked.decision.take() {
            Some(decision) => self.decided(decision, asked).await,
            None => self.too_few(&asked),
        }
    }

    async fn decided(&mut self, decision: Decision, asked: Asked<Decision>) -> Step {
        match decision {
            Decision::Granted { token, remaining_ms } => self.granted(token, remaining_ms, asked),
            Decision::Held { holder } => {
                self.drop_votes();
                let lease = who(&asked, holder.token);
                let holder = Holder::heard(lease, holder, self.store.now_ms());
                Step::Done(Outcome::Held(holder))
            }
            Decision::Conflict { owner } => self.refused(StoreError::IdConflict { owner }),
            Decision::Ended { reason, why } => self.refused(StoreError::Lost { reason, why }),
            Decision::GoAbove { above, dead } => self.go_above(above, dead),
            Decision::Help { token, dead } => {
                (self.vote.token, self.vote.dead) = (token, dead);
                Step::Again
            }
            Decision::Split { holder } => {
                self.drop_votes();
                self.store.inner.counters.split_votes.inc();
                self.splits += 1;
                let backoff_ms = self.backoff_ms();
                if self.splits > SPLITS_MAX {
                    let lease = who(&asked, holder.token);
                    let holder = Some(Holder::heard(lease, holder, self.store.now_ms()));
                    return Step::Done(Outcome::Split { holder, backoff_ms });
                }
                tokio::time::sleep(Duration::from_millis(backoff_ms)).await;
                match QuorumStore::token_above(
                    self.store.known_p(&self.vote.lock),
                    self.request.min_token,
                ) {
                    Ok(token) => self.vote.token = token,
                    Err(error) => return Step::Done(Outcome::Refused(error)),
                }
                Step::Again
            }
            Decision::NewView { view, members } => {
                self.store.adopt_view(view, members);
                self.store.inner.membership.settled(VIEW_PATIENCE).await;
                Step::Again
            }
            Decision::TooFew | Decision::Undecided => self.too_few(&asked),
        }
    }

    fn granted(&mut self, token: Token, remaining_ms: u64, asked: Asked<Decision>) -> Step {
        let spent_ms = self.store.now_ms().saturating_sub(self.began_ms);
        let remaining_ms = remaining_ms.saturating_sub(spent_ms);
        if remaining_ms == 0 {
            self.drop_votes();
            return Step::Done(Outcome::Failed(StoreError::Unknown(format!(
                "the nodes took {spent_ms} ms to grant a lease of {} ms: nothing is left of it; \
                 ask for a longer one",
                self.request.ttl.ms()
            ))));
        }
        self.store.top_up_later(self.topup(token, remaining_ms), asked);
        Step::Done(Outcome::Granted(Grant {
            lease_id: self.vote.lease,
            token,
            owner: self.request.owner.clone(),
            remaining_ms,
            waited_ms: 0,
            mode: self.request.mode,
        }))
    }

    fn topup(&self, token: Token, remaining_ms: u64) -> TopUp {
        TopUp {
            lock: self.vote.lock.clone(),
            bucket: self.vote.bucket,
            lease: self.vote.lease,
            token,
            remaining_ms,
            ttl_ms: self.vote.ttl_ms,
            owner: self.vote.owner.clone(),
            metadata: self.vote.metadata.clone(),
            attempt: self.vote.attempt.clone(),
            retention_ms: self.vote.retention_ms,
        }
    }

    fn refused(&self, refusal: StoreError) -> Step {
        self.drop_votes();
        Step::Done(Outcome::Refused(refusal))
    }

    fn go_above(&mut self, above: u64, dead: Vec<Token>) -> Step {
        let known = above.max(self.store.known_p(&self.vote.lock));
        // Two proposers that were told the same number must not propose the same one for ever.
        let jitter = random_below(1 << self.rounds.min(10)) * u64::from(self.rounds > 1);
        match QuorumStore::token_above(known.saturating_add(jitter), self.request.min_token) {
            Ok(token) => {
                (self.vote.token, self.vote.dead) = (token, dead);
                Step::Again
            }
            Err(error) => self.refused(error),
        }
    }

    fn too_few(&self, asked: &Asked<Decision>) -> Step {
        self.drop_votes();
        let error = asked.undecided("take part");
        Step::Done(Outcome::Failed(match error {
            // Some voted, and still too few for a majority: nothing can have been granted.
            StoreError::Unknown(text) if !asked.may_have_a_majority() => {
                StoreError::Unavailable(text)
            }
            error => error,
        }))
    }

    /// Takes back what this attempt has got, in the background: on the connections that its votes
    /// went through, so behind them.
    fn drop_votes(&self) {
        let end = End::Drop { attempt: self.vote.attempt.clone() };
        self.store.end_later(&self.vote.lock, self.vote.lease, &end);
    }

    /// A random pause that grows with every split.
    fn backoff_ms(&self) -> u64 {
        1 + random_below((BACKOFF_MS / 8) << self.splits.min(3))
    }
}

/// Whose token it is, among the leases that nodes told of; an id that nobody has, where none did.
fn who(asked: &Asked<Decision>, token: Token) -> LeaseId {
    let lease = asked.round.replies().find_map(|(_, reply)| match reply {
        NodeReply::Held { lease, holder, .. } if holder.token == token => Some(*lease),
        _ => None,
    });
    lease.unwrap_or_else(ids::lease_id)
}

impl QuorumStore {
    /// Brings a lease to the nodes that a majority was reached without, in the background.
    pub(super) fn top_up_later<D: Send + 'static>(&self, topup: TopUp, mut asked: Asked<D>) {
        let store = self.clone();
        self.inner.tasks.spawn(async move {
            while let Some((node, reply)) = asked.late.next().await {
                if let Ok(reply) = reply {
                    asked.round.hear(node, Heard::Replied(reply));
                }
            }
            let lacks = |heard: &Heard| {
                matches!(
                    heard,
                    Heard::Replied(
                        NodeReply::Held { .. } | NodeReply::Low { .. } | NodeReply::Nothing { .. }
                    )
                )
            };
            let lacking: Vec<bool> = asked.round.heard().iter().map(lacks).collect();
            if !lacking.contains(&true) {
                return;
            }
            let Ok(current) = store.current() else { return };
            let topup = store.inner.scripts.topup(&current.view, &topup);
            for node in &store.inner.nodes {
                if lacking.get(node.index) == Some(&true) && current.has(node) {
                    // A node that cannot be topped up is one of the few that may be missing.
                    let _ = node.link.call(&topup).await;
                }
            }
        });
    }
}
