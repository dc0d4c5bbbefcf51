//! Random walks: several requests at real nodes, their messages delayed, reordered and lost.

use std::collections::BTreeMap;

use fence_protocol::{LeaseId, LockName, Owner, Token};
use proptest::prelude::*;

use lock_server::engines::quorum::rules::tally::{Decision, NodeAnswer, Round};
use lock_server::engines::quorum::rules::view::{NodeState, View};
use lock_server::engines::quorum::rules::{
    Addressee, Bucket, End, Members, NodeId, NodeReply, Vote, majority,
};

use super::reference::Node;

const TTL_MS: u64 = 1_000_000;

/// One request: it proposes until it is granted, refused, or out of rounds.
struct Request {
    vote: Vote,
    round: Round,
    /// For which nodes the vote of this round is still on its way.
    on_its_way: Vec<bool>,
    rounds: usize,
    /// Attempts whose votes are being rolled back, and from which nodes they are not yet.
    drops: Vec<(String, Vec<bool>)>,
    gave_up: bool,
    over: bool,
}

struct Walk {
    nodes: Vec<Node>,
    view: View,
    requests: Vec<Request>,
    /// Per lease its token; per token its lease.
    granted: BTreeMap<LeaseId, Token>,
    tokens: BTreeMap<Token, LeaseId>,
    /// Per lock the lease that has been granted and not been rolled back.
    holders: BTreeMap<LockName, LeaseId>,
}

fn view(n: usize) -> View {
    let members: Members = (0..n).map(id).collect();
    View { cluster: "c".to_owned(), n, view: 1, members }
}

fn id(at: usize) -> NodeId {
    format!("node-{at}").parse().unwrap()
}

fn ready_nodes(n: usize) -> Vec<Node> {
    let view = view(n);
    let mut nodes = vec![Node::default(); n];
    for (at, node) in nodes.iter_mut().enumerate() {
        node.doubt("run", None, &id(at));
        node.init(&view, &id(at), "run", 0);
        node.ready(0, &view, &id(at));
        assert_eq!(node.probe(0).meta.map(|meta| meta.state), Some(NodeState::Ready));
    }
    nodes
}

fn request(n: usize, attempt: usize, lock: usize, lease: usize) -> Request {
    let vote = Vote {
        lock: LockName::new(&format!("lock-{lock}")).unwrap(),
        bucket: Bucket::new(0),
        lease: LeaseId::new(uuid::Uuid::from_u128((lock * 10 + lease + 1) as u128)).unwrap(),
        token: Token::new(1).unwrap(),
        ttl_ms: TTL_MS,
        owner: Owner::new("me").unwrap(),
        metadata: String::new(),
        attempt: attempt.to_string(),
        dead: Vec::new(),
        retention_ms: TTL_MS,
    };
    let round = Round::new(1, n);
    Request {
        vote,
        round,
        on_its_way: vec![true; n],
        rounds: 0,
        drops: Vec::new(),
        gave_up: false,
        over: false,
    }
}

impl Request {
    /// Its votes are to be rolled back; its next request is another attempt.
    fn take_back(&mut self) {
        let next = format!("{}+", self.vote.attempt);
        let attempt = std::mem::replace(&mut self.vote.attempt, next);
        self.drops.push((attempt, vec![true; self.on_its_way.len()]));
    }
}

impl Walk {
    fn step(&mut self, request: usize, node: usize, what: u8) {
        let at = request % self.requests.len();
        let node = node % self.nodes.len();
        let view = self.view.clone();
        let id = id(node);
        let to = Addressee { view: &view, node: &id };
        let asked = &mut self.requests[at];
        // What takes votes back comes whenever it comes, also after votes of the next attempt.
        let mut drops = asked.drops.iter_mut();
        if (asked.gave_up || what > 7)
            && let Some((attempt, left)) = drops.find(|(_, left)| left[node])
        {
            left[node] = false;
            let end = End::Drop { attempt: attempt.clone() };
            let lock = &asked.vote.lock;
            let lease = asked.vote.lease;
            self.nodes[node].end(1, to, lock, lease, &end, TTL_MS);
            return;
        }
        if asked.gave_up || !asked.on_its_way[node] {
            return;
        }
        asked.on_its_way[node] = false;
        if asked.over {
            // A laggard's vote arrives after the grant was acknowledged.
            self.nodes[node].vote(1, to, &asked.vote);
            return;
        }
        match what {
            // The vote is lost.
            0 => asked.round.record(node, NodeAnswer::Unanswered),
            // The vote is counted, and its reply is lost.
            1 => {
                self.nodes[node].vote(1, to, &asked.vote);
                asked.round.record(node, NodeAnswer::Unanswered);
            }
            _ => {
                let reply = self.nodes[node].vote(1, to, &asked.vote);
                asked.round.record(node, NodeAnswer::Replied(reply));
            }
        }
        self.decide(at);
    }

    fn decide(&mut self, at: usize) {
        let n = self.nodes.len();
        let asked = &mut self.requests[at];
        let decision = asked.round.vote(&asked.vote);
        let (token, dead) = match decision {
            Decision::Undecided => return,
            Decision::Granted { token, .. } => {
                asked.over = true;
                let lock = asked.vote.lock.clone();
                let lease = asked.vote.lease;
                self.record(lock, lease, token);
                return;
            }
            Decision::GoAbove { above, dead } => (above + 1, dead),
            Decision::Help { token, dead } => (token.get(), dead),
            Decision::Split { .. } => {
                let p = asked.round.replies().filter_map(|(_, reply)| reply.p()).max();
                asked.take_back();
                (p.unwrap_or(0) + 1, Vec::new())
            }
            _ => (0, Vec::new()),
        };
        asked.rounds += 1;
        match Token::new(token) {
            Ok(token) if asked.rounds < 6 => {
                (asked.vote.token, asked.vote.dead) = (token, dead);
                asked.round = Round::new(1, n);
                asked.on_its_way = vec![true; n];
            }
            // What is still on its way is lost with the connections.
            _ => {
                asked.take_back();
                asked.gave_up = true;
            }
        }
    }

    fn record(&mut self, lock: LockName, lease: LeaseId, token: Token) {
        let before = self.granted.insert(lease, token);
        assert!(before.is_none_or(|before| before == token), "{lease}: {before:?}, then {token}");
        let other = self.tokens.insert(token, lease);
        assert!(other.is_none_or(|other| other == lease), "{token} for {other:?} and {lease}");
        let holder = self.holders.insert(lock, lease);
        assert!(holder.is_none_or(|holder| holder == lease), "{holder:?}, then {lease}");
        assert!(self.holders(&self.lock_of(lease), lease, token) >= majority(self.nodes.len()));
    }

    /// Number of nodes that hold the lease with this token.
    fn holders(&self, lock: &LockName, lease: LeaseId, token: Token) -> usize {
        let holds = |(at, node): &(usize, &Node)| {
            let seen = node.read(1, Addressee { view: &self.view, node: &id(*at) }, lock).unwrap();
            seen.live.is_some_and(|live| live.lease == lease && live.info.token == token)
        };
        self.nodes.iter().enumerate().filter(holds).count()
    }

    fn lock_of(&self, lease: LeaseId) -> LockName {
        let found = self.requests.iter().find(|request| request.vote.lease == lease);
        found.unwrap().vote.lock.clone()
    }
}

/// Requests, as lock and lease: some are repeats of one id, some are for other locks of the bucket.
const REQUESTS: [(usize, usize); 6] = [(0, 0), (0, 0), (0, 1), (1, 0), (1, 0), (2, 0)];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Nothing expires here, so that every grant stands: each token has one lease, each lease has
    /// one token however often it is asked for, and each lock has one holder. A grant is never
    /// undone by an attempt of the same request that stops.
    #[test]
    fn grants_never_contradict_each_other(
        five in any::<bool>(),
        steps in proptest::collection::vec((0_usize..6, 0_usize..5, 0_u8..12), 10..200),
    ) {
        let n = if five { 5 } else { 3 };
        let requests = REQUESTS.iter().enumerate();
        let mut walk = Walk {
            nodes: ready_nodes(n),
            view: view(n),
            requests: requests
                            .map(|(at, (lock, lease))| request(n, at + 1, *lock, *lease))
                            .collect(),
            granted: BTreeMap::new(),
            tokens: BTreeMap::new(),
            holders: BTreeMap::new(),
        };
        for (request, node, what) in steps {
            walk.step(request, node, what);
            for (lock, lease) in &walk.holders {
                let token = walk.granted[lease];
                let count = walk.holders(lock, *lease, token);
                prop_assert!(count >= majority(n), "{lock}: {count} of {n} hold {lease}");
            }
        }
    }
}

/// A lock server got one vote and died; then a token was minted above it. The repeat at another
/// server is granted more than that.
#[test]
fn what_was_minted_is_below_whatever_is_granted_after_it() {
    let mut nodes = ready_nodes(3);
    let view = view(3);
    let ids: Vec<NodeId> = (0..3).map(id).collect();
    let to = |at: usize| Addressee { view: &view, node: &ids[at] };
    let mut dead = request(3, 1, 0, 0).vote;
    dead.token = Token::new(5).unwrap();
    nodes[0].vote(1, to(0), &dead);
    let minted = Token::new(100).unwrap();
    for (at, node) in nodes.iter_mut().enumerate().take(2) {
        assert_eq!(node.raise(to(at), dead.bucket, minted), NodeReply::Raised { p: 100 });
    }
    let mut vote = request(3, 2, 0, 0).vote;
    for _ in 0..6 {
        let mut round = Round::new(1, 3);
        for (at, node) in nodes.iter_mut().enumerate() {
            round.record(at, NodeAnswer::Replied(node.vote(1, to(at), &vote)));
        }
        let token = match round.vote(&vote) {
            Decision::Granted { token, .. } => {
                assert!(token > minted, "{token} was granted after {minted} was minted");
                return;
            }
            Decision::GoAbove { above, dead } => {
                vote.dead = dead;
                above + 1
            }
            Decision::Help { token, dead } => {
                vote.dead = dead;
                token.get()
            }
            other => panic!("{other:?}"),
        };
        vote.token = Token::new(token).unwrap();
    }
    panic!("it is never granted");
}
