//! Fuzz target: what a quorum's proposer makes of replies.

use fence_protocol::{LeaseId, LockName, Owner, Token};

use super::tally::{Decision, NodeAnswer, RenewDecision, Round};
use super::{Bucket, NodeReply, Vote};

/// Replies of three nodes to a vote, a renewal, an end and a raise. Whatever they say, a majority
/// decides, and no longer than its replies allow.
pub(crate) fn round(replies: &[NodeReply]) {
    let mut round = Round::new(1, 3);
    for (node, reply) in replies.iter().take(3).enumerate() {
        round.record(node, NodeAnswer::Replied(reply.clone()));
    }
    for _ in 0..2 {
        if let Decision::Granted { remaining_ms, .. } = round.vote(&vote()) {
            let most = replies.iter().filter_map(remaining).max();
            assert!(most.is_some_and(|most| remaining_ms <= most) && replies.len() > 1);
        }
        if let RenewDecision::Renewed { remaining_ms, .. } = round.renew() {
            let most = replies.iter().filter_map(remaining).max();
            assert!(most.is_some_and(|most| remaining_ms <= most) && replies.len() > 1);
        }
        let _ = (round.end(), round.raise());
        round.close();
    }
}

fn remaining(reply: &NodeReply) -> Option<u64> {
    match reply {
        NodeReply::Accepted { remaining_ms, .. }
        | NodeReply::Yours { remaining_ms, .. }
        | NodeReply::Renewed { remaining_ms, .. } => Some(*remaining_ms),
        _ => None,
    }
}

fn vote() -> Vote {
    let (Ok(token), Ok(owner)) = (Token::new(34), Owner::new("o")) else { panic!("a vote") };
    Vote {
        lock: lock(),
        bucket: Bucket::new(0),
        lease: LeaseId::MAX,
        token,
        ttl_ms: 1_000,
        owner,
        metadata: String::new(),
        attempt: "a".to_owned(),
        dead: Vec::new(),
        retention_ms: 1_000,
    }
}

fn lock() -> LockName {
    let Ok(lock) = LockName::new("orders/42") else { panic!("a lock") };
    lock
}
