use fence_protocol::LeaseId;
use proptest::prelude::*;

use super::super::Bucket;
use super::*;

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn lease(number: u128) -> LeaseId {
    LeaseId::new(uuid::Uuid::from_u128(number + 1)).unwrap()
}

fn owner(name: &str) -> Owner {
    Owner::new(name).unwrap()
}

fn vote(number: u64) -> Vote {
    Vote {
        lock: "a".parse().unwrap(),
        bucket: Bucket::new(0),
        lease: lease(0),
        token: token(number),
        ttl_ms: 100,
        owner: owner("me"),
        metadata: String::new(),
        attempt: "1".to_owned(),
        dead: Vec::new(),
        retention_ms: 10,
    }
}

fn ok(p: u64) -> NodeReply {
    NodeReply::Accepted { p, remaining_ms: 100 }
}

fn yours(number: u64, p: u64) -> NodeReply {
    NodeReply::Yours { token: token(number), remaining_ms: 60, p }
}

fn low(p: u64) -> NodeReply {
    NodeReply::Low { p }
}

/// Another lease, whose token is its number.
fn held(by: u64, p: u64) -> NodeReply {
    let holder =
        HolderInfo { owner: owner("other"), token: token(by), held_ms: 1, expires_in_ms: 50 };
    NodeReply::Held { lease: lease(u128::from(by)), holder, p }
}

fn ended(reason: EndReason) -> NodeReply {
    NodeReply::Ended { reason, why: None }
}

fn in_view(view: u64) -> NodeReply {
    let members = "a,b,c".parse().unwrap();
    NodeReply::Refused(Refusal::View { view, members })
}

/// A round of `n` nodes in view 1 in which these have answered, from the first node on.
fn round(n: usize, replies: &[NodeReply]) -> Round {
    let mut round = Round::new(1, n);
    for (node, reply) in replies.iter().enumerate() {
        round.record(node, NodeAnswer::Replied(reply.clone()));
    }
    round
}

fn closed(n: usize, replies: &[NodeReply]) -> Round {
    let mut round = round(n, replies);
    round.close();
    round
}

#[test]
fn a_majority_grants_without_the_laggard() {
    let granted = Decision::Granted { token: token(5), remaining_ms: 100 };
    assert_eq!(round(3, &[ok(5)]).vote(&vote(5)), Decision::Undecided);
    assert_eq!(round(3, &[ok(5), ok(5)]).vote(&vote(5)), granted);
    assert_eq!(round(3, &[low(7), ok(5), ok(5)]).vote(&vote(5)), granted);
    assert_eq!(round(5, &[ok(5), ok(5)]).vote(&vote(5)), Decision::Undecided);
    assert_eq!(round(5, &[held(1, 9), ok(5), ok(5), ok(5)]).vote(&vote(5)), granted);
}

/// The remaining time is the shortest in the majority; a node outside it does not count.
#[test]
fn what_remains_is_what_remains_at_a_majority() {
    let accepted = |remaining_ms| NodeReply::Accepted { p: 5, remaining_ms };
    let replies = [accepted(10), accepted(90), accepted(70)];
    let granted = Decision::Granted { token: token(5), remaining_ms: 70 };
    assert_eq!(round(3, &replies).vote(&vote(5)), granted);
}

/// Votes for different tokens of one lease are no majority together.
#[test]
fn tokens_are_counted_apart() {
    let two = [ok(7), yours(5, 5)];
    assert_eq!(round(3, &two).vote(&vote(7)), Decision::Undecided);
    assert_eq!(closed(3, &two).vote(&vote(7)), Decision::TooFew);
    let earlier = [ok(7), yours(5, 5), yours(5, 6)];
    let granted = Decision::Granted { token: token(5), remaining_ms: 60 };
    assert_eq!(round(3, &earlier).vote(&vote(7)), granted);
}

#[test]
fn low_goes_above_everything() {
    let above = |above| Decision::GoAbove { above, dead: Vec::new() };
    assert_eq!(round(3, &[low(7), low(9)]).vote(&vote(5)), above(9));
    assert_eq!(round(3, &[ok(5), low(9)]).vote(&vote(5)), Decision::Undecided);
    assert_eq!(closed(3, &[ok(5), low(9)]).vote(&vote(5)), above(9));
    assert_eq!(round(3, &[held(1, 8), low(7), ok(5)]).vote(&vote(5)), above(8));
}

/// A token that another attempt may have counted is left alone until it cannot win any more.
#[test]
fn an_earlier_token_is_helped_or_dead() {
    let help = |number, dead: &[u64]| Decision::Help {
        token: token(number),
        dead: dead.iter().copied().map(token).collect(),
    };
    // Node 2 is below 6 and may still take it; 5 is dead, because two are above it without it.
    let replies = [yours(6, 6), yours(5, 5), low(9)];
    let mut asked = vote(8);
    assert_eq!(round(3, &replies).vote(&asked), Decision::TooFew);
    asked.dead = vec![token(5)];
    assert_eq!(round(3, &replies).vote(&asked), help(6, &[5]));
    // Two are above 5, and do not hold it.
    let replies = [yours(5, 5), low(9), low(8)];
    let above = Decision::GoAbove { above: 9, dead: vec![token(5)] };
    assert_eq!(round(3, &replies).vote(&vote(8)), above);
    // One is above it, and the third may have it.
    assert_eq!(closed(3, &replies[..2]).vote(&vote(8)), Decision::TooFew);
}

/// A holder of 6 has accepted 9 since: a mint, or a grant of another lock. A caller that asked
/// before that got no reply about 6, so a majority that is free of it takes a new token; without
/// such a majority the outcome is unknown.
#[test]
fn a_token_that_its_holder_has_passed_is_not_helped() {
    let above = Decision::GoAbove { above: 9, dead: Vec::new() };
    let help = Decision::Help { token: token(6), dead: Vec::new() };
    assert_eq!(round(3, &[yours(6, 9), low(9), ok(5)]).vote(&vote(5)), above);
    assert_eq!(round(3, &[yours(6, 6), low(9), ok(5)]).vote(&vote(5)), help);
    assert_eq!(closed(3, &[yours(6, 9), ok(5)]).vote(&vote(5)), Decision::TooFew);
}

#[test]
fn held_is_what_a_majority_says_of_one_lease() {
    let decision = round(3, &[held(1, 9), held(1, 9)]).vote(&vote(5));
    assert!(matches!(decision, Decision::Held { holder } if holder.token == token(1)));
    let split = round(3, &[held(1, 9), held(2, 8), ok(5)]).vote(&vote(5));
    assert!(matches!(split, Decision::Split { .. }), "{split:?}");
    let open = round(5, &[held(1, 9), held(1, 9), held(2, 8)]).vote(&vote(5));
    assert_eq!(open, Decision::Undecided);
}

#[test]
fn an_id_that_ended_or_is_anothers_is_refused_where_it_cannot_be_granted() {
    let gone = ended(EndReason::Released);
    let lost = Decision::Ended { reason: EndReason::Released, why: None };
    assert_eq!(round(3, &[gone.clone(), gone.clone()]).vote(&vote(5)), lost);
    assert_eq!(closed(3, &[gone.clone(), ok(5)]).vote(&vote(5)), lost);
    let granted = round(3, &[gone, ok(5), ok(5)]).vote(&vote(5));
    assert!(matches!(granted, Decision::Granted { .. }));
    let other = NodeReply::Conflict { owner: owner("you") };
    let conflict = closed(3, &[other, ok(5)]).vote(&vote(5));
    assert_eq!(conflict, Decision::Conflict { owner: owner("you") });
}

#[test]
fn too_few_is_said_when_a_majority_is_out_of_reach() {
    let down = NodeReply::Refused(Refusal::NotReady);
    assert_eq!(round(3, &[down.clone(), down.clone()]).vote(&vote(5)), Decision::TooFew);
    assert_eq!(round(3, &[down.clone(), ok(5)]).vote(&vote(5)), Decision::Undecided);
    assert_eq!(closed(3, &[down, ok(5)]).vote(&vote(5)), Decision::TooFew);
}

#[test]
fn a_newer_view_is_reported() {
    let newer = closed(3, &[in_view(4), ok(5)]).vote(&vote(5));
    assert!(matches!(newer, Decision::NewView { view: 4, .. }), "{newer:?}");
    let older = closed(3, &[in_view(0), ok(5)]).vote(&vote(5));
    assert_eq!(older, Decision::TooFew);
    let enough = round(3, &[in_view(4), ok(5), ok(5)]).vote(&vote(5));
    assert!(matches!(enough, Decision::Granted { .. }));
    assert!(matches!(closed(3, &[in_view(4)]).renew(), RenewDecision::NewView { .. }));
    assert!(matches!(closed(3, &[in_view(4)]).end(), EndDecision::NewView { .. }));
    assert!(matches!(closed(3, &[in_view(4)]).raise(), RaiseDecision::NewView { .. }));
}

fn renewed(number: u64, remaining_ms: u64) -> NodeReply {
    NodeReply::Renewed {
        token: token(number),
        owner: owner("me"),
        ttl_ms: 100,
        remaining_ms,
        metadata: String::new(),
    }
}

#[test]
fn renewals_need_a_majority_of_one_token() {
    let nothing = NodeReply::Nothing { p: 9 };
    let good = round(3, &[renewed(5, 90), nothing.clone(), renewed(5, 80)]).renew();
    assert!(matches!(good, RenewDecision::Renewed { remaining_ms: 80, .. }), "{good:?}");
    let lost = |reason, is_known| RenewDecision::Lost { reason, why: None, is_known };
    let apart = [renewed(5, 90), renewed(7, 90), nothing.clone()];
    assert_eq!(round(3, &apart).renew(), lost(EndReason::Superseded, true));
    assert_eq!(
        round(3, &[nothing.clone(), nothing.clone()]).renew(),
        lost(EndReason::Expired, false)
    );
    let said = [nothing.clone(), ended(EndReason::Revoked)];
    assert_eq!(round(3, &said).renew(), lost(EndReason::Revoked, true));
    assert_eq!(round(3, &[renewed(5, 9), nothing.clone()]).renew(), RenewDecision::Undecided);
    assert_eq!(closed(3, &[renewed(5, 9), nothing]).renew(), RenewDecision::Unknown);
}

#[test]
fn an_end_counts_where_it_was_live() {
    let now = NodeReply::EndedNow { token: token(5), owner: owner("me") };
    let before = ended(EndReason::Released);
    let over = EndDecision::Ended { token: token(5), owner: owner("me") };
    assert_eq!(round(3, &[now.clone(), now.clone()]).end(), over);
    assert_eq!(round(3, &[now.clone(), before.clone()]).end(), EndDecision::Undecided);
    assert_eq!(closed(3, &[now, before.clone()]).end(), EndDecision::Unknown);
    let lost = EndDecision::Lost { reason: EndReason::Released, why: None, is_known: true };
    assert_eq!(round(3, &[before.clone(), before]).end(), lost);
}

#[test]
fn raising_needs_a_majority() {
    let raised = NodeReply::Raised { p: 5 };
    assert_eq!(round(3, &[raised.clone(), raised.clone()]).raise(), RaiseDecision::Raised);
    assert_eq!(round(3, &[raised.clone(), low(9)]).raise(), RaiseDecision::Undecided);
    let above = RaiseDecision::GoAbove { above: 9 };
    assert_eq!(closed(3, &[raised.clone(), low(9)]).raise(), above);
    assert_eq!(closed(3, &[raised]).raise(), RaiseDecision::TooFew);
}

/// The first word about a node counts: a late one, or a second, changes nothing.
#[test]
fn a_node_counts_once() {
    let mut round = closed(3, &[ok(5)]);
    round.record(1, NodeAnswer::Replied(ok(5)));
    round.record(7, NodeAnswer::Replied(ok(5)));
    assert_eq!(round.vote(&vote(5)), Decision::TooFew);
}

/// Some reply to a vote for token 5, of which others got 3 and 7 earlier, or to anything else.
fn any_reply() -> impl Strategy<Value = NodeReply> {
    prop_oneof![
        4 => (5_u64..9).prop_map(ok),
        2 => (3_u64..9).prop_map(|p| yours(3, p)),
        2 => (7_u64..9).prop_map(|p| yours(7, p)),
        2 => (5_u64..9).prop_map(low),
        2 => (1_u64..3, 1_u64..9).prop_map(|(by, p)| held(by, p)),
        1 => Just(ended(EndReason::Released)),
        1 => Just(NodeReply::Conflict { owner: owner("you") }),
        1 => Just(NodeReply::Refused(Refusal::NotReady)),
        1 => Just(in_view(3)),
        1 => Just(renewed(5, 50)),
        1 => Just(NodeReply::EndedNow { token: token(5), owner: owner("me") }),
        1 => Just(NodeReply::Nothing { p: 9 }),
    ]
}

fn any_replies() -> impl Strategy<Value = Vec<(usize, NodeReply)>> {
    prop_oneof![Just(3_usize), Just(5)].prop_flat_map(|n| {
        let replies = proptest::collection::vec(any_reply(), n);
        replies.prop_map(|all| all.into_iter().enumerate().collect::<Vec<_>>()).prop_shuffle()
    })
}

/// `true` if a majority says it, so that no other answer can follow.
fn is_final(decision: &Decision) -> bool {
    matches!(decision, Decision::Granted { .. } | Decision::Held { .. })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever comes later, and in whatever order: what a majority has said stays.
    #[test]
    fn laggards_change_nothing(replies in any_replies()) {
        let mut round = Round::new(1, replies.len());
        let mut before: Option<Decision> = None;
        for (node, reply) in replies {
            round.record(node, NodeAnswer::Replied(reply));
            let decision = round.vote(&vote(5));
            match (&before, &decision) {
                (Some(Decision::Granted { token, .. }), now) => {
                    let same = matches!(now, Decision::Granted { token: now, .. } if now == token);
                    prop_assert!(same, "{before:?} became {now:?}");
                }
                (Some(Decision::Held { holder }), now) => {
                    let same = matches!(
                        now,
                        Decision::Held { holder: now } if now.token == holder.token
                    );
                    prop_assert!(same, "{before:?} became {now:?}");
                }
                _ => {}
            }
            if is_final(&decision) {
                before = Some(decision);
            }
        }
    }

    /// When no more replies come, the decision is made; and a grant has a majority of the replies.
    #[test]
    fn everything_is_decided_in_the_end(replies in any_replies(), answer in 0_usize..6) {
        let n = replies.len();
        let mut round = Round::new(1, n);
        for (node, reply) in replies.iter().take(answer) {
            round.record(*node, NodeAnswer::Replied(reply.clone()));
        }
        round.close();
        prop_assert_ne!(round.vote(&vote(5)), Decision::Undecided);
        prop_assert_ne!(round.renew(), RenewDecision::Undecided);
        prop_assert_ne!(round.end(), EndDecision::Undecided);
        prop_assert_ne!(round.raise(), RaiseDecision::Undecided);
        if let Decision::Granted { token: granted, .. } = round.vote(&vote(5)) {
            let says = |reply: &NodeReply| match reply {
                NodeReply::Accepted { .. } => granted == token(5),
                NodeReply::Yours { token, .. } => *token == granted,
                _ => false,
            };
            let count = round.replies().filter(|(_, reply)| says(reply)).count();
            prop_assert!(count * 2 > n, "{count} of {n}");
        }
    }

    /// If a proposer goes above, a token that another attempt may have counted is dead, because
    /// more than f nodes are above it without holding it; or it is left alone if one of its holders
    /// is above it, and a majority takes the new one without it.
    #[test]
    fn going_above_harms_no_token_that_may_be_counted(replies in any_replies()) {
        let n = replies.len();
        let mut round = Round::new(1, n);
        for (node, reply) in replies {
            round.record(node, NodeAnswer::Replied(reply));
        }
        if let Decision::GoAbove { above, dead } = round.vote(&vote(5)) {
            for (_, reply) in round.replies() {
                prop_assert!(reply.p().is_none_or(|p| p <= above));
                if let NodeReply::Yours { token: earlier, .. } = reply
                    && dead.contains(earlier)
                {
                    let cannot = |reply: &NodeReply| {
                        let holds =
                            matches!(reply, NodeReply::Yours { token, .. } if token == earlier);
                        reply.p().is_some_and(|p| p >= earlier.get()) && !holds
                    };
                    let count = round.replies().filter(|(_, reply)| cannot(reply)).count();
                    prop_assert!(count > n / 2, "{count} of {n} are above {earlier}");
                } else if let NodeReply::Yours { token: earlier, .. } = reply {
                    let passed = |reply: &NodeReply| {
                        let NodeReply::Yours { token, p, .. } = reply else { return false };
                        token == earlier && *p > token.get()
                    };
                    prop_assert!(round.replies().any(|(_, reply)| passed(reply)));
                    let takes = |reply: &NodeReply| match reply {
                        NodeReply::Accepted { .. } | NodeReply::Low { .. } => true,
                        NodeReply::Yours { token, .. } => dead.contains(token),
                        _ => false,
                    };
                    let count = round.replies().filter(|(_, reply)| takes(reply)).count();
                    prop_assert!(count > n / 2, "{count} of {n} are free of {earlier}");
                }
            }
        }
    }
}
