//! Decisions about renewing and ending a lease.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{Owner, Token};

use super::{EndDecision, RenewDecision, Round, Support, commonest};
use crate::engines::quorum::rules::NodeReply;

pub(super) fn renew(round: &Round) -> RenewDecision {
    let tokens = round.replies().filter_map(|(_, reply)| match reply {
        NodeReply::Renewed { token, remaining_ms, .. } => Some((*token, *remaining_ms)),
        _ => None,
    });
    let supports = Support::of_all(tokens);
    for support in &supports {
        if let Some(remaining_ms) = support.at_majority(round.majority()) {
            return renewed(round, support.token, remaining_ms);
        }
    }
    let most = supports.first().map_or(0, Support::count);
    if most + round.open() >= round.majority() {
        RenewDecision::Undecided
    } else if round.answered() - most > round.faults() {
        // So many nodes do not hold it that the others are no majority, with whatever token.
        let (reason, why, is_known) = how_it_ended(round);
        RenewDecision::Lost { reason, why, is_known }
    } else if let Some((view, members)) = round.newer_view() {
        RenewDecision::NewView { view, members }
    } else if round.open() > 0 {
        RenewDecision::Undecided
    } else {
        RenewDecision::Unknown
    }
}

fn renewed(round: &Round, granted: Token, remaining_ms: u64) -> RenewDecision {
    let of_a_node = round.replies().find_map(|(_, reply)| match reply {
        NodeReply::Renewed { token, owner, ttl_ms, metadata, .. } if *token == granted => {
            Some(RenewDecision::Renewed {
                token: granted,
                owner: owner.clone(),
                ttl_ms: *ttl_ms,
                remaining_ms,
                metadata: metadata.clone(),
            })
        }
        _ => None,
    });
    of_a_node.unwrap_or(RenewDecision::Unknown)
}

pub(super) fn end(round: &Round) -> EndDecision {
    let ended: Vec<(Token, Owner)> = round
        .replies()
        .filter_map(|(_, reply)| match reply {
            NodeReply::EndedNow { token, owner } => Some((*token, owner.clone())),
            _ => None,
        })
        .collect();
    if ended.len() >= round.majority()
        && let Some((token, owner)) = commonest(&ended)
    {
        return EndDecision::Ended { token, owner };
    }
    if ended.len() + round.open() >= round.majority() {
        EndDecision::Undecided
    } else if round.answered() - ended.len() > round.faults() {
        let (reason, why, is_known) = how_it_ended(round);
        EndDecision::Lost { reason, why, is_known }
    } else if let Some((view, members)) = round.newer_view() {
        EndDecision::NewView { view, members }
    } else if round.open() > 0 {
        EndDecision::Undecided
    } else {
        EndDecision::Unknown
    }
}

/// The end that most of the nodes name that know of one, and whether a node knows the lease. Where
/// none does, it was never granted, or is forgotten.
fn how_it_ended(round: &Round) -> (EndReason, Option<Owner>, bool) {
    let ended: Vec<(EndReason, Option<Owner>)> = round
        .replies()
        .filter_map(|(_, reply)| match reply {
            NodeReply::Ended { reason, why } => Some((*reason, why.clone())),
            _ => None,
        })
        .collect();
    let elsewhere =
        |reply: &NodeReply| matches!(reply, NodeReply::Held { .. } | NodeReply::Renewed { .. });
    let has_it =
        |reply: &NodeReply| matches!(reply, NodeReply::Renewed { .. } | NodeReply::EndedNow { .. });
    let is_known = round.count(has_it) > 0;
    match (commonest(&ended), round.count(elsewhere)) {
        (Some((reason, why)), _) => (reason, why, true),
        (None, 0) => (EndReason::Expired, None, is_known),
        (None, _) => (EndReason::Superseded, None, is_known),
    }
}
