use fence_protocol::Owner;

use super::*;

const LONG_MS: u64 = 60_000;

fn view() -> View {
    let members = "a,b,c".parse().unwrap();
    View { cluster: "c".to_owned(), n: 3, view: 1, members }
}

/// Node `a`, which votes.
fn ready() -> Node {
    let mut node = Node::default();
    let own = "a".parse().unwrap();
    node.doubt("run", None, &own);
    node.init(&view(), &own, "run", 0);
    node.ready(0, &view(), &own);
    node
}

fn vote(attempt: &str) -> Vote {
    let lock = LockName::new("l").unwrap();
    Vote {
        bucket: bucket_of(&lock),
        lock,
        lease: LeaseId::new(uuid::Uuid::from_u128(1)).unwrap(),
        token: Token::new(1).unwrap(),
        ttl_ms: LONG_MS,
        owner: Owner::new("me").unwrap(),
        metadata: String::new(),
        attempt: attempt.to_owned(),
        dead: Vec::new(),
        retention_ms: 10,
    }
}

/// A node that was given the memory of another one says that it is in its view, and is not that
/// node.
#[test]
fn a_copy_of_a_node_does_not_answer_for_another() {
    let view = view();
    let other = "b".parse().unwrap();
    let to = Addressee { view: &view, node: &other };
    let mut copy = ready();
    let vote = vote("1");
    let stranger = Refusal::Stranger { node: "a".parse().unwrap() };
    assert_eq!(copy.vote(1, to, &vote), NodeReply::Refused(stranger.clone()));
    assert_eq!(copy.read(1, to, &vote.lock), Err(stranger));
    assert_eq!(copy.p(vote.bucket), 0, "nothing was accepted");
}

/// A request that arrives behind a later renewal of the same server gets the state of the lease;
/// another server's is a renewal of its own.
#[test]
fn a_renewal_that_was_overtaken_takes_no_time_away() {
    let view = view();
    let own = "a".parse().unwrap();
    let to = Addressee { view: &view, node: &own };
    let mut node = ready();
    let vote = vote("1");
    node.vote(0, to, &vote);
    let renewed = |by: &str, order, ttl_ms| Renew {
        lock: vote.lock.clone(),
        bucket: vote.bucket,
        lease: vote.lease,
        ttl_ms: Some(ttl_ms),
        by: by.to_owned(),
        order,
        retention_ms: 10,
    };
    let mut remains_after = |renew: &Renew| match node.renew(100, to, renew) {
        NodeReply::Renewed { remaining_ms, .. } => remaining_ms,
        other => panic!("{other:?}"),
    };
    assert_eq!(remains_after(&renewed("one", 2, LONG_MS)), LONG_MS);
    assert_eq!(remains_after(&renewed("one", 1, 5)), LONG_MS, "it was overtaken");
    assert_eq!(remains_after(&renewed("one", 3, 700)), 700, "a later one replaces the time");
    assert_eq!(remains_after(&renewed("two", 1, 300)), 300);
}
