//! Random walks: several requests at real nodes, their messages delayed, reordered and lost.

use std::collections::BTreeMap;

use fence_protocol::{LeaseId, LockName, Owner, Token};
use proptest::prelude::*;

use super::node::Node;
use super::tally::{Decision, Heard, Round};
use super::view::{State, View};
use super::{Bucket, End, Members, NodeId, Vote, majority};

const TTL_MS: u64 = 1_000_000;

/// One request: it proposes until it is granted, refused, or out of rounds.
struct Request {
    vote: Vote,
    round: Round,
    /// For which nodes the vote of this round is still on its way.
    on_its_way: Vec<bool>,
    rounds: usize,
    /// Whether its votes are being taken back, from which nodes.
    dropping: Option<Vec<bool>>,
    over: bool,
}

struct Walk {
    nodes: Vec<Node>,
    view: View,
    requests: Vec<Request>,
    /// Per lease its token; per token its lease.
    granted: BTreeMap<LeaseId, Token>,
    tokens: BTreeMap<Token, LeaseId>,
    /// Per lock the lease that has been granted and not been taken back.
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
        assert_eq!(node.look(0).meta.map(|meta| meta.state), Some(State::Ready));
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
    Request { vote, round, on_its_way: vec![true; n], rounds: 0, dropping: None, over: false }
}

impl Walk {
    fn step(&mut self, request: usize, node: usize, what: u8) {
        let (at, node) = (request % self.requests.len(), node % self.nodes.len());
        let asked = &mut self.requests[at];
        if let Some(left) = &mut asked.dropping {
            if std::mem::take(&mut left[node]) {
                let end = End::Drop { attempt: asked.vote.attempt.clone() };
                let (lock, lease) = (&asked.vote.lock, asked.vote.lease);
                self.nodes[node].end(1, &self.view, lock, lease, &end, TTL_MS);
            }
            return;
        }
        if !asked.on_its_way[node] {
            return;
        }
        asked.on_its_way[node] = false;
        if asked.over {
            // A laggard's vote arrives after the grant was told.
            self.nodes[node].vote(1, &self.view, &asked.vote);
            return;
        }
        match what {
            // The vote is lost.
            0 => asked.round.hear(node, Heard::Unanswered),
            // The vote is counted, and its reply is lost.
            1 => {
                self.nodes[node].vote(1, &self.view, &asked.vote);
                asked.round.hear(node, Heard::Unanswered);
            }
            _ => {
                let reply = self.nodes[node].vote(1, &self.view, &asked.vote);
                asked.round.hear(node, Heard::Replied(reply));
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
                let (lock, lease) = (asked.vote.lock.clone(), asked.vote.lease);
                self.note(lock, lease, token);
                return;
            }
            Decision::GoAbove { above, dead } => (above + 1, dead),
            Decision::Help { token, dead } => (token.get(), dead),
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
            _ => asked.dropping = Some(vec![true; n]),
        }
    }

    fn note(&mut self, lock: LockName, lease: LeaseId, token: Token) {
        let before = self.granted.insert(lease, token);
        assert!(before.is_none_or(|before| before == token), "{lease}: {before:?}, then {token}");
        let other = self.tokens.insert(token, lease);
        assert!(other.is_none_or(|other| other == lease), "{token} for {other:?} and {lease}");
        let holder = self.holders.insert(lock, lease);
        assert!(holder.is_none_or(|holder| holder == lease), "{holder:?}, then {lease}");
        let holds = |node: &&Node| {
            let seen = node.read(1, &self.view, &self.lock_of(lease)).unwrap();
            seen.live.is_some_and(|live| live.lease == lease && live.info.token == token)
        };
        assert!(self.nodes.iter().filter(holds).count() >= majority(self.nodes.len()));
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

    /// Nothing expires here, so that every grant stands: each token has one lease, each lease has one
    /// token however often it is asked for, and each lock has one holder. A grant is never undone by
    /// an attempt of the same request that gives up.
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
            requests: requests.map(|(at, (lock, lease))| request(n, at + 1, *lock, *lease)).collect(),
            granted: BTreeMap::new(),
            tokens: BTreeMap::new(),
            holders: BTreeMap::new(),
        };
        for (request, node, what) in steps {
            walk.step(request, node, what);
            for (lock, lease) in &walk.holders {
                let token = walk.granted[lease];
                let holds = |node: &&Node| {
                    let seen = node.read(1, &walk.view, lock).unwrap();
                    seen.live.is_some_and(|live| live.lease == *lease && live.info.token == token)
                };
                let count = walk.nodes.iter().filter(holds).count();
                prop_assert!(count >= majority(n), "{lock}: {count} of {n} hold {lease}");
            }
        }
    }
}
