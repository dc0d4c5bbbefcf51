//! Decision from the votes for one proposal.

use fence_protocol::wire::lock::HolderInfo;
use fence_protocol::{LeaseId, Token};

use super::{Decision, Round, Support, commonest};
use crate::engines::quorum::rules::{NodeReply, Vote};

/// Decides by the replies; see [`Decision`].
///
/// A majority for one token of the lease grants it, whichever attempt proposed it. Where the
/// proposed token cannot get there any more, however the open answers turn out, the rest of this
/// decides what to do instead.
pub(super) fn decide(round: &Round, vote: &Vote) -> Decision {
    let supports = Support::of_all(tokens(round, vote));
    let majority = round.majority();
    for support in &supports {
        if let Some(remaining_ms) = support.at_majority(majority) {
            return Decision::Granted { token: support.token, remaining_ms };
        }
    }
    let others = others(round);
    if let Some((_, holder, _)) = others.iter().find(|(_, _, count)| *count >= majority) {
        return Decision::Held { holder: holder.clone() };
    }
    let own = supports.iter().find(|support| support.token == vote.token);
    let possible = own.map_or(0, Support::count) + round.open() >= majority;
    // An earlier token may still turn out to be granted.
    let earlier = supports.iter().any(|support| support.count() + round.open() >= majority);
    if possible || (earlier && round.open() > 0) {
        return Decision::Undecided;
    }
    if let Some((view, members)) = round.newer_view() {
        return Decision::NewView { view, members };
    }
    refusal(round).unwrap_or_else(|| next(round, vote, &supports, others))
}

/// Every token that a node holds the lease with, and for how long.
fn tokens(round: &Round, vote: &Vote) -> impl Iterator<Item = (Token, u64)> {
    round.replies().filter_map(|(_, reply)| match reply {
        NodeReply::Accepted { remaining_ms, .. } => Some((vote.token, *remaining_ms)),
        NodeReply::Yours { token, remaining_ms, .. } => Some((*token, *remaining_ms)),
        _ => None,
    })
}

/// The other leases that nodes hold: which, whose, at how many; the commonest first.
fn others(round: &Round) -> Vec<(LeaseId, HolderInfo, usize)> {
    let mut others: Vec<(LeaseId, HolderInfo, usize)> = Vec::new();
    for (_, reply) in round.replies() {
        if let NodeReply::Held { lease, holder, .. } = reply {
            match others.iter_mut().find(|(known, _, _)| known == lease) {
                Some((_, known, count)) => {
                    *count += 1;
                    // A waiter may come earlier, but hardly be granted before.
                    known.expires_in_ms = known.expires_in_ms.max(holder.expires_in_ms);
                }
                None => others.push((*lease, holder.clone(), 1)),
            }
        }
    }
    others.sort_by_key(|(_, _, count)| std::cmp::Reverse(*count));
    others
}

/// Refusal because the id is another owner's, or has ended.
fn refusal(round: &Round) -> Option<Decision> {
    let mut owners = Vec::new();
    let mut ends = Vec::new();
    for (_, reply) in round.replies() {
        match reply {
            NodeReply::Conflict { owner } => owners.push(owner.clone()),
            NodeReply::Ended { reason, why } => ends.push((*reason, why.clone())),
            _ => {}
        }
    }
    let conflict = commonest(&owners).map(|owner| Decision::Conflict { owner });
    conflict.or_else(|| commonest(&ends).map(|(reason, why)| Decision::Ended { reason, why }))
}

/// Next proposal, or the reason why there is none.
fn next(
    round: &Round,
    vote: &Vote,
    supports: &[Support],
    others: Vec<(LeaseId, HolderInfo, usize)>,
) -> Decision {
    let majority = round.majority();
    let may_vote = round.count(is_free);
    if may_vote >= majority {
        return above_or_help(round, vote, supports);
    }
    let most = others.first().map_or(0, |(_, _, count)| *count);
    let may_change = may_vote.max(most) + round.open() >= majority;
    if round.open() > 0 && may_change {
        return Decision::Undecided;
    }
    match others.into_iter().next() {
        Some((_, holder, _)) if round.answered() >= majority => Decision::Split { holder },
        _ if round.open() > 0 && round.answered() + round.open() >= majority => Decision::Undecided,
        _ => Decision::TooFew,
    }
}

/// True if the node may accept another token for this lease.
fn is_free(reply: &NodeReply) -> bool {
    matches!(reply, NodeReply::Accepted { .. } | NodeReply::Yours { .. } | NodeReply::Low { .. })
}

/// Proposes the token that another attempt may have counted, where it can still reach a majority; a
/// token above all others, where none can.
///
/// A token that one of its holders has gone beyond is not helped: the token that took that node so
/// far may have been issued, as a minted token is, and a request that begins after that must not be
/// granted less. Such a token is left where it is. A node that holds it keeps it, so where a
/// majority takes the new one, the old one can never have had any.
fn above_or_help(round: &Round, vote: &Vote, supports: &[Support]) -> Decision {
    let mut dead = vote.dead.clone();
    let mut alive = Vec::new();
    let earlier = supports.iter().map(|support| support.token).filter(|token| *token != vote.token);
    for token in earlier.filter(|token| !vote.dead.contains(token)) {
        if is_dead(round, vote, token) { dead.push(token) } else { alive.push(token) }
    }
    let in_reach = alive.iter().find(|token| {
        could_hold(round, vote, **token) >= round.majority() && !is_passed(round, **token)
    });
    match in_reach {
        Some(token) => Decision::Help { token: *token, dead },
        None if alive.is_empty() => Decision::GoAbove { above: round.highest(), dead },
        None if round.open() > 0 => Decision::Undecided,
        None if alive.iter().all(|token| is_passed(round, *token))
            && round.count(|reply| may_change(reply, vote, &dead)) >= round.majority() =>
        {
            Decision::GoAbove { above: round.highest(), dead }
        }
        // Whether it was granted only the nodes know that did not answer.
        None => Decision::TooFew,
    }
}

/// Token that the node holds the lease with.
fn held_with(reply: &NodeReply, vote: &Vote) -> Option<Token> {
    match reply {
        NodeReply::Accepted { .. } => Some(vote.token),
        NodeReply::Yours { token, .. } => Some(*token),
        _ => None,
    }
}

/// True if a token of the lease can never reach a majority: more than `f` nodes have accepted as
/// much and do not hold it.
fn is_dead(round: &Round, vote: &Vote, token: Token) -> bool {
    let beyond = |reply: &NodeReply| {
        reply.p().is_some_and(|p| p >= token.get()) && held_with(reply, vote) != Some(token)
    };
    round.count(beyond) > round.faults()
}

/// True if a node that holds the lease with this token has accepted a higher one since, of another
/// lease or of none.
fn is_passed(round: &Round, token: Token) -> bool {
    round.count(|reply| match reply {
        NodeReply::Yours { token: held, p, .. } => *held == token && *p > token.get(),
        _ => false,
    }) > 0
}

/// True if the node would take another token than it holds the lease with, if it does.
fn may_change(reply: &NodeReply, vote: &Vote, dead: &[Token]) -> bool {
    is_free(reply)
        && held_with(reply, vote).is_none_or(|held| held == vote.token || dead.contains(&held))
}

/// Number of nodes that hold the lease with this token, or would if they were asked to.
fn could_hold(round: &Round, vote: &Vote, token: Token) -> usize {
    round.count(|reply| match held_with(reply, vote) {
        Some(held) if held == token => true,
        Some(held) => held < token && (held == vote.token || vote.dead.contains(&held)),
        None => is_free(reply) && reply.p().is_some_and(|p| p < token.get()),
    })
}
