//! Nodes, proposers, and whoever brings a node back that lost its memory.

use std::sync::{Arc, LazyLock};

use lock_server::rules::quorum::node::Node;
use lock_server::rules::quorum::tally::Heard;
use lock_server::rules::quorum::view::{Accepted, MemberReply, View};
use lock_server::rules::quorum::{Bucket, Members, NodeId};
use stateright::{Model, Property};

use super::proposer::{Ask, Message, Phase, Proposer, Request};

pub(super) const UNIQUE: &str = "a token has one lease";
pub(super) const ORDERED: &str = "a later grant has a higher token";
pub(super) const ONE_HOLDER: &str = "a lock has one holder, with one token";

const NODES: usize = 3;
/// The node that loses its memory: they are all alike.
const LOSER: usize = 0;

/// How a node comes back that lost its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recovery {
    /// None does.
    NoLoss,
    /// Under a new view that the others have accepted.
    NewView,
    /// With the highest token that the others told of: unsound.
    Read,
    /// The same, and the others are raised to it as well: unsound.
    ReadAndRaise,
}

/// What the checker walks through.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    pub(super) requests: Vec<Request>,
    pub(super) recovery: Recovery,
    /// Whether the node that comes back waits until all that it may have forgotten is over.
    pub(super) waits: bool,
    /// Tokens from 1 to this one; proposers go above by any number.
    pub(super) tokens: u64,
    /// Whether a proposer may begin with any token; else each begins with the one after its
    /// predecessor's.
    pub(super) guesses: bool,
    /// Rounds of votes a proposer.
    pub(super) rounds: usize,
    /// How far time goes, in milliseconds.
    pub(super) time_ms: u64,
    pub(super) releases: bool,
    pub(super) renewals: usize,
    /// Whether votes are taken back by those that give up.
    pub(super) drops: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    now_ms: u64,
    nodes: Vec<Arc<Node>>,
    proposers: Vec<Proposer>,
    loss: Loss,
    /// Whether anything has happened at one of the nodes that keep their memory.
    told_apart: bool,
}

/// How far the recovery is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Loss {
    Not,
    /// The memory is gone, and these others have been asked.
    Lost {
        asked: Vec<usize>,
        told: Accepted,
    },
    /// Unsound recoveries: these others have been raised.
    Raising {
        raised: Vec<usize>,
        told: Accepted,
    },
    /// It has rejoined and does not vote yet.
    Joining,
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Time goes on.
    Tick,
    /// A proposer asks every node to accept this token.
    Propose {
        proposer: usize,
        token: u64,
        view: u64,
    },
    /// One of its messages arrives, and the answer is heard, or lost.
    Arrive {
        proposer: usize,
        node: usize,
        view: u64,
        ask: Ask,
        heard: bool,
    },
    /// A proposer awaits nothing more.
    Close {
        proposer: usize,
    },
    Renew {
        proposer: usize,
    },
    Release {
        proposer: usize,
    },
    /// A node loses its memory.
    Crash,
    /// A node is asked for what it has accepted, as the recovery wants it.
    AskOther {
        node: usize,
    },
    RaiseOther {
        node: usize,
    },
    /// A ready node hears of the new view from a server.
    Advance {
        node: usize,
    },
    Rejoin,
    Ready,
}

impl Step {
    /// The node at which it happens.
    fn node(&self) -> Option<usize> {
        match self {
            Self::Arrive { node, .. }
            | Self::AskOther { node }
            | Self::RaiseOther { node }
            | Self::Advance { node } => Some(*node),
            Self::Crash | Self::Rejoin | Self::Ready => Some(LOSER),
            _ => None,
        }
    }
}

fn id(name: &str) -> NodeId {
    name.parse().unwrap()
}

/// The number of a node's view, 0 where it has none, and the highest token that it has accepted.
fn view_and_p(node: &Node) -> (u64, u64) {
    (node.view().map_or(0, |view| view.view), node.p(Bucket::new(0)))
}

/// The views that there are: the first, and that under which the node comes back.
fn view(number: u64) -> &'static View {
    static VIEWS: LazyLock<[View; 2]> = LazyLock::new(|| {
        [(1, "x1"), (2, "x2")].map(|(number, loser)| {
            let members: Members = [loser, "b", "c"].into_iter().map(id).collect();
            View { cluster: "c".to_owned(), n: NODES, view: number, members }
        })
    });
    &VIEWS[usize::from(number == 2)]
}

fn ready(at: usize, number: u64, floor: u64) -> Node {
    let own = ["x1", "b", "c"][at];
    let mut node = Node::default();
    node.doubt("run", None, &id(own));
    node.init(view(number), &id(own), "run", floor);
    node.ready(0, view(number), &id(own));
    node
}

impl Bounds {
    /// Proposers of locks that share a bucket. Time stands still, and the node comes back at once.
    pub(super) fn other_locks(proposers: usize) -> Self {
        Self {
            requests: (0..proposers).map(|at| Request::new(at, at, at, 10)).collect(),
            recovery: Recovery::NewView,
            waits: false,
            tokens: 2,
            guesses: true,
            rounds: 2,
            time_ms: 0,
            releases: false,
            renewals: 0,
            drops: false,
        }
    }

    /// Proposers of one lock; leases last for one moment, and are renewed and released.
    pub(super) fn one_lock(proposers: usize) -> Self {
        Self {
            requests: (0..proposers).map(|at| Request::new(at, 0, at, 1)).collect(),
            recovery: Recovery::NewView,
            waits: true,
            tokens: 2,
            guesses: false,
            rounds: 1,
            time_ms: 2,
            releases: true,
            renewals: 1,
            drops: true,
        }
    }

    /// Attempts of one request, at several servers.
    pub(super) fn one_request(proposers: usize) -> Self {
        Self {
            requests: (0..proposers).map(|at| Request::new(at, 0, 0, 1)).collect(),
            renewals: 0,
            releases: false,
            ..Self::one_lock(proposers)
        }
    }

    /// Whether all requests are one, repeated.
    fn repeats(&self) -> bool {
        self.requests[0].lease == self.requests[1].lease
    }

    fn propose_steps(&self, world: &World, at: usize, steps: &mut Vec<Step>) {
        let proposer = &world.proposers[at];
        // All are alike before they begin, so the first begins first.
        let in_turn = at == 0 || world.proposers[at - 1].rounds > 0;
        if proposer.rounds >= self.rounds || !in_turn {
            return;
        }
        let tokens = match proposer.phase {
            Phase::Above(0) if !self.guesses => {
                let first = (at as u64 + 1).min(self.tokens);
                first..=first
            }
            Phase::Above(number) => number + 1..=self.tokens,
            Phase::Exactly(number) => number..=number,
            _ => return,
        };
        // A request that begins may know of the new view already.
        let newest = if world.knows_new_view() && proposer.rounds == 0 { 2 } else { proposer.view };
        for view in proposer.view..=newest {
            steps.extend(tokens.clone().map(|token| Step::Propose { proposer: at, token, view }));
        }
    }

    fn proposer_steps(&self, world: &World, at: usize, steps: &mut Vec<Step>) {
        let proposer = &world.proposers[at];
        self.propose_steps(world, at, steps);
        for message in &proposer.messages {
            let arrive = |heard| Step::Arrive {
                proposer: at,
                node: message.node,
                view: message.view,
                ask: message.ask.clone(),
                heard,
            };
            steps.push(arrive(false));
            if proposer.awaits(message) {
                steps.push(arrive(true));
            }
        }
        if proposer.is_asking() {
            steps.push(Step::Close { proposer: at });
        }
        if matches!(proposer.phase, Phase::Holds { .. }) && proposer.believes(world.now_ms) {
            if proposer.renewals < self.renewals {
                steps.push(Step::Renew { proposer: at });
            }
            if self.releases {
                steps.push(Step::Release { proposer: at });
            }
        }
    }

    fn recovery_steps(&self, world: &World, steps: &mut Vec<Step>) {
        let others = 1..NODES;
        match &world.loss {
            // One that has accepted nothing has nothing to lose.
            Loss::Not
                if self.recovery != Recovery::NoLoss && view_and_p(&world.nodes[LOSER]).1 > 0 =>
            {
                steps.push(Step::Crash);
            }
            Loss::Not | Loss::Over => {}
            Loss::Lost { asked, .. } => {
                let left = others.clone().filter(|node| !asked.contains(node));
                steps.extend(left.map(|node| Step::AskOther { node }));
                if asked.len() == NODES - 1 && self.recovery != Recovery::ReadAndRaise {
                    steps.push(Step::Rejoin);
                }
                if asked.len() == NODES - 1 && self.recovery == Recovery::ReadAndRaise {
                    steps.extend(others.clone().map(|node| Step::RaiseOther { node }));
                }
            }
            Loss::Raising { raised, .. } => {
                let left = others.clone().filter(|node| !raised.contains(node));
                steps.extend(left.map(|node| Step::RaiseOther { node }));
                if raised.len() == NODES - 1 {
                    steps.push(Step::Rejoin);
                }
            }
            Loss::Joining => steps.push(Step::Ready),
        }
        if world.proposers.iter().any(|proposer| proposer.view == 2) {
            steps.extend(others.map(|node| Step::Advance { node }));
        }
    }
}

impl World {
    fn knows_new_view(&self) -> bool {
        self.nodes.iter().any(|node| view_and_p(node).0 == 2)
    }

    /// Forgets messages that nobody awaits an answer to and that do nothing whenever they arrive, so
    /// that states which differ in nothing else are one.
    fn tidy(&mut self, bounds: &Bounds) {
        let attempts_differ = bounds.repeats();
        let forgets = !matches!(self.loss, Loss::Over)
            && matches!(bounds.recovery, Recovery::Read | Recovery::ReadAndRaise);
        let nodes: Vec<(u64, u64)> = self.nodes.iter().map(|node| view_and_p(node)).collect();
        for proposer in &mut self.proposers {
            let mut messages = std::mem::take(&mut proposer.messages);
            messages.retain(|message| {
                let (view, p) = nodes[message.node];
                let mind = proposer.awaits(message) || (forgets && message.node == LOSER);
                let low = matches!(message.ask, Ask::Vote { token, .. } if token <= p);
                let dropped = message.ask == Ask::Drop && !bounds.drops;
                !dropped && (mind || !(view > message.view || (low && !attempts_differ)))
            });
            proposer.messages = messages;
        }
    }

    /// The highest token that anybody has been granted.
    fn highest_granted(&self) -> u64 {
        self.proposers.iter().filter_map(Proposer::granted).max().unwrap_or(0)
    }

    fn node(&mut self, at: usize) -> &mut Node {
        Arc::make_mut(&mut self.nodes[at])
    }

    fn arrive(&mut self, bounds: &Bounds, step: &Step) -> Option<()> {
        let Step::Arrive { proposer: at, node, view: number, ask, heard } = step else {
            return None;
        };
        let (request, now_ms) = (&bounds.requests[*at], self.now_ms);
        let reply = request.arrive(now_ms, self.node(*node), view(*number), ask);
        let proposer = &mut self.proposers[*at];
        let awaited = proposer.awaits(&Message { node: *node, view: *number, ask: ask.clone() });
        let same =
            |message: &Message| (message.node, message.view, &message.ask) == (*node, *number, ask);
        let index = proposer.messages.iter().position(same)?;
        proposer.messages.remove(index);
        if awaited {
            let heard = if *heard { Heard::Replied(reply) } else { Heard::Unanswered };
            proposer.hear(now_ms, request, *node, heard);
        }
        Some(())
    }

    fn ask_other(&mut self, bounds: &Bounds, node: usize) -> Option<()> {
        let now_ms = self.now_ms;
        let accepted = match bounds.recovery {
            Recovery::NewView => match self.node(node).bump(now_ms, view(2)) {
                MemberReply::Bumped(accepted) => accepted,
                _ => return None,
            },
            _ => {
                let look = self.nodes[node].look(now_ms);
                let floor = look.meta.map_or(0, |meta| meta.floor);
                Accepted { floor, p: look.p, wait_ms: 0 }
            }
        };
        let Loss::Lost { asked, told } = &mut self.loss else { return None };
        *told = std::mem::take(told).merge(accepted);
        asked.push(node);
        asked.sort_unstable();
        Some(())
    }

    fn raise_other(&mut self, node: usize) -> Option<()> {
        let (mut raised, told) = match std::mem::replace(&mut self.loss, Loss::Over) {
            Loss::Lost { told, .. } => (Vec::new(), told),
            Loss::Raising { raised, told } => (raised, told),
            _ => return None,
        };
        for (bucket, p) in &told.p {
            // One that is there already stays as it is.
            self.node(node).raise(view(1), *bucket, (*p).try_into().ok()?);
        }
        raised.push(node);
        raised.sort_unstable();
        self.loss = Loss::Raising { raised, told };
        Some(())
    }

    fn rejoin(&mut self, bounds: &Bounds) -> Option<()> {
        let now_ms = self.now_ms;
        let mut told = match std::mem::replace(&mut self.loss, Loss::Joining) {
            Loss::Lost { told, .. } | Loss::Raising { told, .. } => told,
            _ => return None,
        };
        if bounds.recovery != Recovery::NewView {
            let floor = told.p.values().copied().fold(told.floor, u64::max);
            self.nodes[LOSER] = Arc::new(ready(LOSER, 1, floor));
            self.loss = Loss::Over;
            return Some(());
        }
        if !bounds.waits {
            told.wait_ms = 0;
        }
        let node = self.node(LOSER);
        assert_eq!(node.rejoin(now_ms, view(2), &id("x2"), "run-2", &told), MemberReply::Done);
        Some(())
    }
}

impl Model for Bounds {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            now_ms: 0,
            nodes: (0..NODES).map(|at| Arc::new(ready(at, 1, 0))).collect(),
            proposers: vec![Proposer::new(); self.requests.len()],
            loss: Loss::Not,
            told_apart: false,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.now_ms < self.time_ms {
            steps.push(Step::Tick);
        }
        for at in 0..world.proposers.len() {
            self.proposer_steps(world, at, steps);
        }
        self.recovery_steps(world, steps);
        if !world.told_apart {
            // The nodes that keep their memory are alike until then, so it happens at the first one.
            steps.retain(|step| step.node().is_none_or(|node| node < 2));
        }
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        let now_ms = world.now_ms;
        match &step {
            Step::Tick => {
                world.now_ms += 1;
                for at in 0..NODES {
                    world.node(at).expire(now_ms + 1);
                }
            }
            Step::Propose { proposer, token, view } => {
                let granted = world.highest_granted();
                let proposer = &mut world.proposers[*proposer];
                proposer.view = *view;
                proposer.propose(now_ms, NODES, *token, granted);
            }
            Step::Arrive { .. } => world.arrive(self, &step)?,
            Step::Close { proposer } => {
                world.proposers[*proposer].close(now_ms, &self.requests[*proposer]);
            }
            Step::Renew { proposer } => world.proposers[*proposer].renew(now_ms, NODES),
            Step::Release { proposer } => world.proposers[*proposer].release(NODES),
            Step::Crash => {
                let mut node = Node::default();
                node.doubt("run-2", None, &id("x2"));
                world.nodes[LOSER] = Arc::new(node);
                world.loss = Loss::Lost { asked: Vec::new(), told: Accepted::default() };
            }
            Step::AskOther { node } => world.ask_other(self, *node)?,
            Step::RaiseOther { node } => world.raise_other(*node)?,
            Step::Advance { node } => {
                world.node(*node).advance(view(2));
            }
            Step::Rejoin => world.rejoin(self)?,
            Step::Ready => match world.node(LOSER).ready(now_ms, view(2), &id("x2")) {
                MemberReply::Done => world.loss = Loss::Over,
                _ => return None,
            },
        }
        world.told_apart |= step.node().is_some_and(|node| node != LOSER);
        world.tidy(self);
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(UNIQUE, |bounds: &Self, world: &World| {
                pairs(bounds, world).all(|(one, other, same_lease)| {
                    let (one, other) = (one.granted(), other.granted());
                    same_lease || one.is_none() || one != other
                })
            }),
            Property::always(ORDERED, |bounds: &Self, world: &World| {
                world.proposers.iter().all(|proposer| match proposer.granted() {
                    // A repeat of a request that was granted before is told of the same token.
                    Some(token) if bounds.repeats() => Some(token) >= proposer.granted_before,
                    Some(token) => Some(token) > proposer.granted_before,
                    None => true,
                })
            }),
            Property::always(ONE_HOLDER, |bounds: &Self, world: &World| {
                // Other locks are no rivals.
                bounds.requests[0].lock != bounds.requests[1].lock
                    || pairs(bounds, world).all(|(one, other, same_lease)| {
                        let both = one.believes(world.now_ms) && other.believes(world.now_ms);
                        !both || (same_lease && one.granted() == other.granted())
                    })
            }),
        ];
        // Where the bounds leave room for it: what never happens is not checked either.
        let rivals = self.requests[0].lock == self.requests[1].lock && !self.releases;
        let room = self.tokens >= self.requests.len() as u64 && !(rivals && self.time_ms == 0);
        if room || self.repeats() {
            properties.push(Property::sometimes("everybody is granted", |_, world: &World| {
                world.proposers.iter().all(|proposer| proposer.granted().is_some())
            }));
        }
        if self.recovery != Recovery::NoLoss && (!self.waits || self.time_ms > 1) {
            properties.push(Property::sometimes("the loser votes again", |_, world: &World| {
                world.loss == Loss::Over
            }));
        }
        properties
    }
}

/// Every two proposers, and whether they are of one lease.
fn pairs<'a>(
    bounds: &'a Bounds,
    world: &'a World,
) -> impl Iterator<Item = (&'a Proposer, &'a Proposer, bool)> {
    let of = |at: usize| (&world.proposers[at], bounds.requests[at].lease);
    let count = world.proposers.len();
    (0..count).flat_map(move |one| {
        (one + 1..count).map(move |other| {
            let ((a, a_lease), (b, b_lease)) = (of(one), of(other));
            (a, b, a_lease == b_lease)
        })
    })
}
