//! The votes of one proposal over all its rounds: what they may have granted, and what rolls them
//! back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fence_protocol::{LeaseId, LockName};
use service_kit::ids;

use super::super::Current;
use crate::engines::quorum::rules::tally::{NodeAnswer, Round};
use crate::engines::quorum::rules::{NodeReply, Vote, majority};

/// The votes that a proposal asks for.
#[derive(Debug)]
pub(super) struct Ballot<V = Arc<Current>> {
    pub(super) vote: Vote,
    /// One a node: whether it may hold a vote of this attempt.
    touched: Vec<bool>,
    /// Every view in which this attempt has asked.
    views: Vec<V>,
    /// True if an attempt that was rolled back since may have had a majority.
    possibly_granted: bool,
}

/// Votes of one attempt, to roll them back: no other attempt's, and none that another one has
/// counted.
#[derive(Clone, Debug)]
pub(crate) struct Votes<V = Arc<Current>> {
    pub(super) lock: LockName,
    pub(super) lease: LeaseId,
    pub(super) attempt: String,
    /// One a node: whether it may hold one.
    pub(super) nodes: Vec<bool>,
    /// The views in which they were asked for.
    pub(super) views: Vec<V>,
    is_rolled_back: Arc<AtomicBool>,
}

impl Votes {
    /// From now on nothing may bring them to further nodes.
    pub(super) fn mark_rolled_back(&self) {
        self.is_rolled_back.store(true, Ordering::SeqCst);
    }

    pub(super) fn are_rolled_back(&self) -> bool {
        self.is_rolled_back.load(Ordering::SeqCst)
    }
}

impl<V: Clone + PartialEq> Ballot<V> {
    /// A proposal to `n` nodes; the vote's attempt becomes its first.
    pub(super) fn new(vote: Vote, n: usize) -> Self {
        let vote = Vote { attempt: new_attempt(), ..vote };
        Self { vote, touched: vec![false; n], views: Vec::new(), possibly_granted: false }
    }

    /// Records the outcome of a round that was asked in this view.
    pub(super) fn record(&mut self, round: &Round, view: &V) {
        for (touched, answer) in self.touched.iter_mut().zip(round.answers()) {
            // What an earlier round may have left there is not gone because a later one left
            // nothing.
            *touched |= may_hold(answer);
        }
        if !self.views.contains(view) {
            self.views.push(view.clone());
        }
    }

    /// True if a majority may hold the lease, of all rounds and views together.
    pub(super) fn may_be_granted(&self) -> bool {
        let touched = self.touched.iter().filter(|touched| **touched).count();
        self.possibly_granted || touched >= majority(self.touched.len())
    }

    /// The votes to roll back for this attempt. Whatever is asked for from now on is another one:
    /// the order may come late, and must not hit a vote that was counted after it.
    pub(super) fn roll_back(&mut self) -> Votes<V> {
        self.possibly_granted = self.may_be_granted();
        let nodes = self.touched.clone();
        let votes = self.votes(nodes);
        self.vote.attempt = new_attempt();
        self.touched.fill(false);
        self.views.clear();
        votes
    }

    /// The votes to roll back for a grant, wherever it was brought to.
    pub(super) fn granted(&self) -> Votes<V> {
        self.votes(vec![true; self.touched.len()])
    }

    fn votes(&self, nodes: Vec<bool>) -> Votes<V> {
        Votes {
            lock: self.vote.lock.clone(),
            lease: self.vote.lease,
            attempt: self.vote.attempt.clone(),
            nodes,
            views: self.views.clone(),
            is_rolled_back: Arc::default(),
        }
    }
}

/// True if the node may hold the vote; an unknown outcome counts.
fn may_hold(answer: &NodeAnswer) -> bool {
    matches!(
        answer,
        NodeAnswer::Waiting
            | NodeAnswer::Unanswered
            | NodeAnswer::Replied(NodeReply::Accepted { .. } | NodeReply::Yours { .. })
    )
}

fn new_attempt() -> String {
    ids::random_hex(8)
}

#[cfg(test)]
mod tests {
    use fence_protocol::{Owner, Token};

    use super::*;
    use crate::engines::quorum::rules::{Bucket, Members, Refusal};

    const ACCEPTED: NodeAnswer =
        NodeAnswer::Replied(NodeReply::Accepted { p: 7, remaining_ms: 1_000 });

    fn ballot() -> Ballot<u64> {
        let vote = Vote {
            lock: LockName::new("l").unwrap(),
            bucket: Bucket::new(0),
            lease: ids::lease_id(),
            token: Token::new(7).unwrap(),
            ttl_ms: 1_000,
            owner: Owner::new("me").unwrap(),
            metadata: String::new(),
            attempt: String::new(),
            dead: Vec::new(),
            retention_ms: 0,
        };
        Ballot::new(vote, 3)
    }

    fn newer() -> NodeAnswer {
        let members: Members = std::iter::empty().collect();
        NodeAnswer::Replied(NodeReply::Refused(Refusal::View { view: 2, members }))
    }

    fn low() -> NodeAnswer {
        NodeAnswer::Replied(NodeReply::Low { p: 9 })
    }

    fn run_round(ballot: &mut Ballot<u64>, view: u64, answers: [NodeAnswer; 3]) {
        let mut round = Round::new(view, 3);
        for (node, answer) in answers.into_iter().enumerate() {
            round.record(node, answer);
        }
        ballot.record(&round, &view);
    }

    #[test]
    fn what_an_earlier_round_left_open_stays_open() {
        let mut ballot = ballot();
        run_round(&mut ballot, 1, [ACCEPTED, newer(), NodeAnswer::Unanswered]);
        run_round(&mut ballot, 2, [newer(), ACCEPTED, NodeAnswer::NotSent]);
        assert!(ballot.may_be_granted(), "nodes 1 and 3 may have granted it in view 1");
        let votes = ballot.roll_back();
        assert_eq!(votes.nodes, [true, true, true]);
        assert_eq!(votes.views, [1, 2]);
        run_round(&mut ballot, 2, [low(), low(), low()]);
        assert!(ballot.may_be_granted(), "and it is unknown whether it was rolled back");
    }

    #[test]
    fn too_few_votes_leave_no_doubt() {
        let mut ballot = ballot();
        run_round(&mut ballot, 1, [ACCEPTED, low(), NodeAnswer::NotSent]);
        assert!(!ballot.may_be_granted());
        assert_eq!(ballot.roll_back().nodes, [true, false, false]);
        assert!(!ballot.may_be_granted());
    }

    #[test]
    fn votes_in_two_views_may_be_a_majority() {
        let mut ballot = ballot();
        run_round(&mut ballot, 1, [ACCEPTED, newer(), NodeAnswer::NotSent]);
        run_round(&mut ballot, 2, [newer(), ACCEPTED, NodeAnswer::NotSent]);
        assert!(ballot.may_be_granted());
    }

    #[test]
    fn what_is_asked_for_after_a_taking_back_is_another_attempt() {
        let mut ballot = ballot();
        run_round(&mut ballot, 1, [ACCEPTED, low(), low()]);
        let votes = ballot.roll_back();
        assert_ne!(ballot.vote.attempt, votes.attempt);
        assert_eq!(ballot.granted().attempt, ballot.vote.attempt);
    }
}
