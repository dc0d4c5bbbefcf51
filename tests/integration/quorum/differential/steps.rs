//! Calls that may reach a node.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, LockName, Owner, Token};
use fence_tests::seed::Seed;
use lock_server::engines::quorum::rules::view::{Accepted, Addressee, MemberReply, View};
use lock_server::engines::quorum::rules::{
    Bucket, End, Members, NodeId, NodeReply, Operation, Refusal, Renew, TopUp, Vote, bucket_of,
    with_principal,
};
use lock_server::engines::quorum::scripts::{Init, Rejoin};

use super::super::reference::Node;

/// Whom a script about a lock is for.
#[derive(Clone, Debug)]
pub(super) struct To {
    pub(super) view: View,
    pub(super) node: NodeId,
}

impl To {
    pub(super) fn addressee(&self) -> Addressee<'_> {
        Addressee { view: &self.view, node: &self.node }
    }
}

/// One call of a script.
#[derive(Clone, Debug)]
pub(super) enum NodeStep {
    /// Several are one call, at one moment.
    Batch(To, Vec<Operation>),
    Init(Init),
    Doubt(String, Option<NodeId>, NodeId),
    Adopt(String, String),
    Bump(View),
    Rejoin(Rejoin),
    Ready(View, NodeId),
    Advance(View),
}

/// Answer to a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Nodes(Vec<NodeReply>),
    Member(MemberReply),
}

/// The node in Rust, the clock, and what the steps are made of.
pub(super) struct World {
    pub(super) node: Node,
    pub(super) now_ms: u64,
    pub(super) locks: Vec<LockName>,
    leases: Vec<LeaseId>,
    fresh_ids: u64,
    /// Most steps are of one retention; some servers have another.
    retention_ms: u64,
    /// One lock, many ids, nothing forgotten: more ids end than are remembered.
    busy: bool,
}

/// Far in the future, so that no key goes away by itself.
const BEGIN_MS: u64 = 4_000_000_000_000;
const ATTEMPTS: [&str; 3] = ["server-1:1", "server-2:1", "server-1:2"];
const OWNERS: [&str; 3] = ["zoë on web-1", "zoë on web-1", "bob * [x] %d"];
const TTLS_MS: [u64; 4] = [1, 40, 300, 86_400_000];

/// Every word that a node answers with.
pub(super) const WORDS: [&str; 24] = [
    "Accepted",
    "Yours",
    "Conflict",
    "Ended",
    "Held",
    "Low",
    "Renewed",
    "Nothing",
    "EndedNow",
    "Kept",
    "Raised",
    "NoMember",
    "Other",
    "NotReady",
    "View",
    "Done",
    "Known",
    "Bumped",
    "Doubted",
    "Wait",
    "Stranger",
    "OtherRun",
    "Refused",
    "AnotherNode",
];

/// The words of an answer.
pub(super) fn words(answer: &Answer) -> Vec<String> {
    let texts = match answer {
        Answer::Nodes(replies) => replies.iter().map(text).collect(),
        Answer::Member(reply) => vec![format!("{reply:?}")],
    };
    let first =
        |text: &String| text.split(|c: char| !c.is_alphanumeric()).next().map(str::to_owned);
    texts.iter().filter_map(first).collect()
}

fn text(reply: &NodeReply) -> String {
    match reply {
        NodeReply::Refused(Refusal::Stranger { .. }) => "AnotherNode".to_owned(),
        NodeReply::Refused(refusal) => format!("{refusal:?}"),
        reply => format!("{reply:?}"),
    }
}

impl World {
    pub(super) fn new(seed: &mut Seed) -> Self {
        let busy = seed.below(3) == 0;
        let first = LockName::new("orders/42").unwrap();
        // Another lock of the same bucket.
        let neighbour = (0..).map(|at| LockName::new(&format!("orders/n{at}")).unwrap());
        let same = neighbour.clone().find(|name| bucket_of(name) == bucket_of(&first)).unwrap();
        let other = neighbour.clone().find(|name| bucket_of(name) != bucket_of(&first)).unwrap();
        let id = |number: u64| LeaseId::new(uuid::Uuid::from_u128(u128::from(number) + 1)).unwrap();
        Self {
            node: Node::default(),
            now_ms: BEGIN_MS + seed.below(100_000),
            locks: vec![first, same, other],
            leases: (0..12).map(id).collect(),
            fresh_ids: 0,
            retention_ms: if busy { 10_000_000 } else { [0, 50, 500][seed.below(3) as usize] },
            busy,
        }
    }

    /// The next step; the clock moves on, or back.
    pub(super) fn step(&mut self, seed: &mut Seed) -> NodeStep {
        self.now_ms = match seed.below(20) {
            0..9 => self.now_ms,
            9..17 => self.now_ms + seed.below(60),
            17 => self.now_ms + seed.below(1_000),
            18 if !self.busy => self.now_ms + seed.below(100_000_000),
            _ => self.now_ms - seed.below(80),
        };
        self.node.expire(self.now_ms);
        let voting = self.node.probe(0).meta.is_some_and(|meta| meta.state.as_str() == "ready");
        let about_locks = if voting { 92 } else { 15 };
        match seed.below(100) < about_locks {
            true => self.about_locks(seed),
            false => self.about_membership(seed),
        }
    }

    fn about_locks(&mut self, seed: &mut Seed) -> NodeStep {
        let to = To { view: self.view(seed, 24), node: self.node_id(seed) };
        let more = if seed.below(4) == 0 { 1 + seed.below(4) } else { 0 };
        NodeStep::Batch(to, (0..=more).map(|_| self.operation(seed)).collect())
    }

    fn operation(&mut self, seed: &mut Seed) -> Operation {
        let lock = if self.busy { self.locks[0].clone() } else { pick(seed, &self.locks) };
        let bucket = bucket_of(&lock);
        // Few ids at a time, and in the long run more than are remembered.
        let recent = (self.now_ms / 30) % 9;
        let lease = match self.busy {
            true => pick(seed, &self.leases),
            false => self.leases[(recent + seed.below(4)) as usize],
        };
        let retention_ms = match seed.below(10) {
            0 if !self.busy => seed.below(2_000),
            _ => self.retention_ms,
        };
        let owner = Owner::new(pick(seed, &OWNERS)).unwrap();
        let ttl_ms = pick(seed, &TTLS_MS);
        let metadata = pick(seed, &["", "{\"a\":\"tab\\t, 100%\"}", "[1, 2]"]);
        let principal = pick(seed, &[None, Some("ci"), Some("ops")]);
        let metadata = with_principal(principal, Some(metadata));
        let attempt = pick(seed, &ATTEMPTS).to_owned();
        let token = self.token(seed, bucket);
        match seed.below(20) {
            0..8 => {
                let dead = (0..seed.below(3)).map(|_| self.token(seed, bucket)).collect();
                Operation::Vote(Vote {
                    lock,
                    bucket,
                    lease,
                    token,
                    ttl_ms,
                    owner,
                    metadata,
                    attempt,
                    dead,
                    retention_ms,
                })
            }
            8..11 => {
                let remaining_ms = 1 + seed.below(ttl_ms);
                let attempt = if seed.below(2) == 0 { attempt } else { String::new() };
                Operation::TopUp(TopUp {
                    lock,
                    bucket,
                    lease,
                    token,
                    remaining_ms,
                    ttl_ms,
                    owner,
                    metadata,
                    attempt,
                    retention_ms,
                })
            }
            11..14 => {
                let ttl_ms = (seed.below(2) == 0).then_some(ttl_ms);
                let by = pick(seed, &["one", "two"]).to_owned();
                let order = seed.below(4);
                Operation::Renew(Renew { lock, bucket, lease, ttl_ms, by, order, retention_ms })
            }
            14..16 => Operation::End { lock, lease, end: End::Drop { attempt }, retention_ms },
            16..18 => {
                let reason = pick(seed, &[EndReason::Released, EndReason::Revoked]);
                let why = (seed.below(2) == 0).then_some(owner);
                Operation::End { lock, lease, end: End::For { reason, why }, retention_ms }
            }
            18 => Operation::Raise { bucket, token },
            _ => Operation::Lift(token),
        }
    }

    fn about_membership(&mut self, seed: &mut Seed) -> NodeStep {
        let meta = self.node.probe(0).meta;
        let own = meta.as_ref().map(|meta| meta.node.clone());
        let node = match (seed.below(8), &own) {
            (1.., Some(own)) => own.clone(),
            _ => "another".parse().unwrap(),
        };
        let run_id = meta.as_ref().map(|meta| meta.run_id.clone());
        let run_id = run_id.filter(|_| seed.below(6) > 0).unwrap_or_else(|| "run-9".to_owned());
        let mut view = self.view(seed, 9);
        let moves = seed.below(4) > 0;
        view.view += u64::from(moves);
        if moves || view.members.is_empty() {
            let ids = [node.as_str(), "x", "y"].map(|id| id.parse().unwrap());
            view.members = ids.into_iter().take(1 + seed.below(3) as usize).collect::<Members>();
        }
        match seed.below(10) {
            0 => {
                self.fresh_ids += 1;
                let fresh = format!("node-{}", self.fresh_ids).parse().unwrap();
                let run_id =
                    if seed.below(2) == 0 { run_id } else { format!("run-{}", seed.below(9)) };
                NodeStep::Doubt(run_id, own.filter(|_| seed.below(9) > 0), fresh)
            }
            1 | 2 => NodeStep::Init(Init { view, node, run_id, floor: seed.below(3) }),
            3 => NodeStep::Adopt(run_id, format!("run-{}", seed.below(9))),
            4 => NodeStep::Bump(view),
            5 | 6 => {
                let p = (0..seed.below(4)).map(|_| {
                    let bucket = bucket_of(&pick(seed, &self.locks));
                    (bucket, self.token(seed, bucket).get())
                });
                let p = p.collect();
                let mut floor = seed.below(20);
                let wait_ms = seed.below(40);
                if seed.below(8) == 0 {
                    floor = Token::MAX - seed.below(3);
                }
                let accepted = Accepted { floor, p, wait_ms };
                NodeStep::Rejoin(Rejoin { view, node, run_id, accepted })
            }
            7 | 8 => {
                let known = meta.map(|meta| meta.view).filter(|_| seed.below(6) > 0);
                NodeStep::Ready(known.unwrap_or(view), node)
            }
            _ => NodeStep::Advance(view),
        }
    }

    /// The node's view, or one time in `odds` another one.
    fn view(&self, seed: &mut Seed, odds: u64) -> View {
        let known = self.node.probe(0).meta.map(|meta| meta.view);
        let known = known.filter(|view| !view.cluster.is_empty());
        let mut view = known.unwrap_or_else(first_view);
        match seed.below(odds * 4) {
            0 => view.cluster = "c2".to_owned(),
            1 => view.n = 5,
            2 => view.view = view.view.saturating_sub(1),
            3 => view.members = "x,y".parse().unwrap(),
            _ => {}
        }
        view
    }

    /// Mostly the node itself.
    fn node_id(&self, seed: &mut Seed) -> NodeId {
        let own = self.node.probe(0).meta.map(|meta| meta.node);
        let own = own.filter(|_| seed.below(30) > 0);
        own.unwrap_or_else(|| "x".parse().unwrap())
    }

    /// A vote for each lock.
    pub(super) fn votes(&self) -> Vec<Operation> {
        let vote = |(at, lock): (usize, &LockName)| {
            Operation::Vote(Vote {
                lock: lock.clone(),
                bucket: bucket_of(lock),
                lease: self.leases[at],
                token: Token::new(1 + at as u64).unwrap(),
                ttl_ms: 1_000,
                owner: Owner::new("me").unwrap(),
                metadata: String::new(),
                attempt: "a".to_owned(),
                dead: Vec::new(),
                retention_ms: 1_000,
            })
        };
        self.locks.iter().enumerate().map(vote).collect()
    }

    /// Mostly near to what was accepted, sometimes at the end of all tokens.
    fn token(&self, seed: &mut Seed, bucket: Bucket) -> Token {
        let look = self.node.probe(0);
        let floor = look.meta.map_or(0, |meta| meta.floor);
        let p = look.p.get(&bucket).copied().unwrap_or(0).max(floor);
        let number = match seed.below(400) {
            0 => Token::MAX - seed.below(3),
            1 => 1 << 46,
            _ => (p + 4).saturating_sub(seed.below(8)),
        };
        Token::new(number.clamp(1, Token::MAX)).unwrap()
    }
}

pub(super) fn first_view() -> View {
    let members = "node-1,x,y".parse().unwrap();
    View { cluster: "c1".to_owned(), n: 3, view: 1, members }
}

fn pick<T: Clone>(seed: &mut Seed, from: &[T]) -> T {
    from[seed.below(from.len() as u64) as usize].clone()
}

fn at_node(node: &mut Node, now_ms: u64, to: Addressee<'_>, operation: &Operation) -> NodeReply {
    match operation {
        Operation::Vote(vote) => node.vote(now_ms, to, vote),
        Operation::TopUp(topup) => node.topup(now_ms, to, topup),
        Operation::Renew(renew) => node.renew(now_ms, to, renew),
        Operation::End { lock, lease, end, retention_ms } => {
            node.end(now_ms, to, lock, *lease, end, *retention_ms)
        }
        Operation::Raise { bucket, token } => node.raise(to, *bucket, *token),
        Operation::Lift(mark) => node.lift(to, *mark),
        Operation::Read(_) => panic!("what is read is compared after every step"),
    }
}

impl NodeStep {
    /// The step at the node in Rust.
    pub(super) fn at_rules(&self, world: &mut World) -> Answer {
        let node = &mut world.node;
        let now_ms = world.now_ms;
        match self {
            Self::Batch(to, operations) => {
                let to = to.addressee();
                let one = |operation| at_node(node, now_ms, to, operation);
                Answer::Nodes(operations.iter().map(one).collect())
            }
            Self::Init(init) => {
                Answer::Member(node.init(&init.view, &init.node, &init.run_id, init.floor))
            }
            Self::Doubt(run_id, seen, fresh) => {
                Answer::Member(node.doubt(run_id, seen.as_ref(), fresh))
            }
            Self::Adopt(old, new) => Answer::Member(node.adopt(old, new)),
            Self::Bump(view) => Answer::Member(node.bump(now_ms, view)),
            Self::Rejoin(Rejoin { view, node: id, run_id, accepted }) => {
                Answer::Member(node.rejoin(now_ms, view, id, run_id, accepted))
            }
            Self::Ready(view, id) => Answer::Member(node.ready(now_ms, view, id)),
            Self::Advance(view) => Answer::Member(node.advance(view)),
        }
    }
}
