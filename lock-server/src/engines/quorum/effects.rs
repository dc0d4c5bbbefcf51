//! Possible effects of a request that takes several rounds.

use super::rules::NodeReply;
use super::rules::tally::{NodeAnswer, Round};
use crate::store::StoreError;

/// Effects that any round of a question may have had at the nodes. A change that one round has left
/// at a node is not gone because a later one, in another view, left nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct PossibleEffects {
    changes: fn(&NodeReply) -> bool,
    is_open: bool,
}

impl PossibleEffects {
    /// Before the first round; `changes` says which answers mean that the node did something.
    pub(super) fn new(changes: fn(&NodeReply) -> bool) -> Self {
        Self { changes, is_open: false }
    }

    /// Notes what a round may have left behind.
    pub(super) fn record(&mut self, round: &Round) {
        self.is_open |= !left_nothing(round, self.changes);
    }

    /// Returns the error of a request without a decision: nothing was done, as long as no node can
    /// have done anything.
    pub(super) fn error(&self, text: String) -> StoreError {
        if self.is_open { StoreError::Unknown(text) } else { StoreError::Unavailable(text) }
    }

    /// Returns the error of a request whose next round could not begin.
    pub(super) fn failed(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::Unavailable(text) => self.error(text),
            other => other,
        }
    }
}

/// Returns whether no node can have done anything in this round.
fn left_nothing(round: &Round, changes: impl Fn(&NodeReply) -> bool) -> bool {
    round.answers().iter().all(|answer| match answer {
        NodeAnswer::NotSent => true,
        NodeAnswer::Replied(reply) => !changes(reply),
        NodeAnswer::Waiting | NodeAnswer::Unanswered => false,
    })
}

/// Returns whether the node changed a vote, a renewal, a drop or a counter.
pub(super) fn changes(reply: &NodeReply) -> bool {
    !matches!(
        reply,
        NodeReply::Refused(_)
            | NodeReply::Conflict { .. }
            | NodeReply::Ended { .. }
            | NodeReply::Held { .. }
            | NodeReply::Low { .. }
            | NodeReply::Nothing { .. }
            | NodeReply::Kept
    )
}

/// The same about an end for good, which is remembered also where the lease was not live.
pub(super) fn changes_for_good(reply: &NodeReply) -> bool {
    changes(reply) || matches!(reply, NodeReply::Held { .. } | NodeReply::Nothing { .. })
}

#[cfg(test)]
mod tests {
    use fence_protocol::wire::lock::EndReason;
    use fence_protocol::{Owner, Token};

    use super::*;
    use crate::engines::quorum::rules::{Members, Refusal};

    const NOTHING: NodeAnswer = NodeAnswer::Replied(NodeReply::Nothing { p: 9 });

    fn newer() -> NodeAnswer {
        let members: Members = std::iter::empty().collect();
        NodeAnswer::Replied(NodeReply::Refused(Refusal::View { view: 2, members }))
    }

    fn ended_now() -> NodeAnswer {
        let token = Token::new(7).unwrap();
        let owner = Owner::new("me").unwrap();
        NodeAnswer::Replied(NodeReply::EndedNow { token, owner })
    }

    fn round(answer: [NodeAnswer; 3]) -> Round {
        let mut round = Round::new(1, 3);
        for (node, answer) in answer.into_iter().enumerate() {
            round.record(node, answer);
        }
        round
    }

    /// The answer to a question of these rounds that were never decided.
    fn after(changes: fn(&NodeReply) -> bool, rounds: &[[NodeAnswer; 3]]) -> StoreError {
        let mut effects = PossibleEffects::new(changes);
        for answer in rounds {
            effects.record(&round(answer.clone()));
        }
        effects.error("it was not decided".to_owned())
    }

    #[test]
    fn what_a_round_did_is_not_undone_by_the_next() {
        let away = [NodeAnswer::NotSent, NodeAnswer::NotSent, NodeAnswer::NotSent];
        let moved = [ended_now(), newer(), newer()];
        let none = [newer(), newer(), newer()];
        let unknown = after(changes_for_good, &[moved.clone(), away.clone()]);
        assert!(matches!(unknown, StoreError::Unknown(_)), "{unknown:?}");
        let rounds: Vec<_> = std::iter::repeat_n(moved, 8).collect();
        let unknown = after(changes_for_good, &rounds);
        assert!(matches!(unknown, StoreError::Unknown(_)), "{unknown:?}");
        let nothing = after(changes_for_good, &[none, away]);
        assert!(matches!(nothing, StoreError::Unavailable(_)), "{nothing:?}");
    }

    #[test]
    fn a_round_that_could_not_begin_says_what_was_done_before() {
        let mut effects = PossibleEffects::new(changes);
        let error = StoreError::Unavailable("no view".to_owned());
        assert_eq!(effects.failed(error.clone()), error);
        effects.record(&round([NodeAnswer::Unanswered, newer(), newer()]));
        assert_eq!(effects.failed(error), StoreError::Unknown("no view".to_owned()));
    }

    /// A node that says why it did nothing did nothing.
    #[test]
    fn refusals_of_all_kinds_leave_nothing() {
        let ended = NodeReply::Ended { reason: EndReason::Released, why: None };
        let conflict = NodeReply::Conflict { owner: Owner::new("you").unwrap() };
        for reply in [ended, conflict, NodeReply::Low { p: 3 }, NodeReply::Kept] {
            let answer = [NodeAnswer::Replied(reply), NOTHING, NodeAnswer::NotSent];
            let renewal = after(changes, std::slice::from_ref(&answer));
            assert!(matches!(renewal, StoreError::Unavailable(_)), "{answer:?}: {renewal:?}");
            // An end for good is remembered by the second node.
            let end = after(changes_for_good, std::slice::from_ref(&answer));
            assert!(matches!(end, StoreError::Unknown(_)), "{answer:?}: {end:?}");
        }
    }
}
