//! Nodes, proposers, and the recovery of a node that lost its memory.

use std::sync::{Arc, LazyLock};

use lock_server::engines::quorum::rules::tally::NodeAnswer;
use lock_server::engines::quorum::rules::view::{Accepted, MemberReply, View};
use lock_server::engines::quorum::rules::{Addressee, Bucket, Members, NodeId};
use stateright::{Model, Property};

use super::super::reference::Node;
use super::bounds::{Bounds, ModelStep, Recovery};
use super::proposer::{Ask, Message, Phase, Proposer};

pub(super) const NODES: usize = 3;
/// The node that loses its memory: they are all alike.
pub(super) const LOSER: usize = 0;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) now_ms: u64,
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) proposers: Vec<Proposer>,
    pub(super) loss: Loss,
    /// `true` if anything has happened at one of the nodes that keep their memory.
    pub(super) are_distinct: bool,
}

/// Progress of the recovery.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Loss {
    Not,
    /// The memory is gone, and these others have been asked.
    Lost {
        asked: Vec<usize>,
        accepted: Accepted,
    },
    /// Unsound recoveries: these others have been raised.
    Raising {
        raised: Vec<usize>,
        accepted: Accepted,
    },
    /// It has rejoined and does not vote yet.
    Joining,
    Over,
}

fn id(name: &str) -> NodeId {
    name.parse().unwrap()
}

/// The number of a node's view, 0 where it has none, and the highest token that it has accepted.
pub(super) fn view_and_p(node: &Node) -> (u64, u64) {
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

/// Node `at` as a member of a view.
fn member(at: usize, number: u64) -> Addressee<'static> {
    static IDS: LazyLock<[NodeId; 4]> = LazyLock::new(|| ["x1", "b", "c", "x2"].map(id));
    let known = if at == LOSER && number == 2 { 3 } else { at };
    Addressee { view: view(number), node: &IDS[known] }
}

fn ready(at: usize, number: u64, floor: u64) -> Node {
    let own = ["x1", "b", "c"][at];
    let mut node = Node::default();
    node.doubt("run", None, &id(own));
    node.init(view(number), &id(own), "run", floor);
    node.ready(0, view(number), &id(own));
    node
}

impl World {
    pub(super) fn knows_new_view(&self) -> bool {
        self.nodes.iter().any(|node| view_and_p(node).0 == 2)
    }

    /// Forgets messages whose answer is not awaited and that do nothing whenever they arrive, so
    /// that states which differ in nothing else are one.
    fn tidy(&mut self, bounds: &Bounds) {
        let attempts_differ = bounds.repeats();
        let forgets = !matches!(self.loss, Loss::Over)
            && matches!(bounds.recovery, Recovery::Read | Recovery::ReadAndRaise);
        let nodes: Vec<(u64, u64)> = self.nodes.iter().map(|node| view_and_p(node)).collect();
        for proposer in &mut self.proposers {
            if matches!(proposer.phase, Phase::Again(_)) && proposer.rounds >= bounds.rounds {
                proposer.phase = Phase::Over;
            }
            let attempts_differ = attempts_differ || proposer.attempt > 0;
            let mut messages = std::mem::take(&mut proposer.messages);
            messages.retain(|message| {
                let (view, p) = nodes[message.node];
                let mind = proposer.awaits(message) || (forgets && message.node == LOSER);
                let low = matches!(message.ask, Ask::Vote { token, .. } if token <= p);
                let dropped = matches!(message.ask, Ask::Drop { .. }) && !bounds.drops;
                !dropped && (mind || !(view > message.view || (low && !attempts_differ)))
            });
            proposer.messages = messages;
        }
    }

    /// The highest token that has been granted.
    fn highest_granted(&self) -> u64 {
        self.proposers.iter().filter_map(Proposer::granted).max().unwrap_or(0)
    }

    fn node(&mut self, at: usize) -> &mut Node {
        Arc::make_mut(&mut self.nodes[at])
    }

    fn arrive(&mut self, bounds: &Bounds, step: &ModelStep) -> Option<()> {
        let ModelStep::Arrive { proposer: at, node, view: number, ask, received } = step else {
            return None;
        };
        let request = &bounds.requests[*at];
        let now_ms = self.now_ms;
        let reply = request.arrive(now_ms, self.node(*node), member(*node, *number), ask);
        let proposer = &mut self.proposers[*at];
        let awaited = proposer.awaits(&Message { node: *node, view: *number, ask: ask.clone() });
        let same =
            |message: &Message| (message.node, message.view, &message.ask) == (*node, *number, ask);
        let index = proposer.messages.iter().position(same)?;
        proposer.messages.remove(index);
        if awaited {
            let answer =
                if *received { NodeAnswer::Replied(reply) } else { NodeAnswer::Unanswered };
            proposer.receive(now_ms, request, *node, answer);
        }
        Some(())
    }

    fn ask_other(&mut self, bounds: &Bounds, node: usize) -> Option<()> {
        let now_ms = self.now_ms;
        let reported = match bounds.recovery {
            Recovery::NewView => match self.node(node).bump(now_ms, view(2)) {
                MemberReply::Bumped(accepted) => accepted,
                _ => return None,
            },
            _ => {
                let look = self.nodes[node].probe(now_ms);
                let floor = look.meta.map_or(0, |meta| meta.floor);
                Accepted { floor, p: look.p, wait_ms: 0 }
            }
        };
        let Loss::Lost { asked, accepted } = &mut self.loss else { return None };
        *accepted = std::mem::take(accepted).merge(reported);
        asked.push(node);
        asked.sort_unstable();
        Some(())
    }

    fn raise_other(&mut self, node: usize) -> Option<()> {
        let (mut raised, accepted) = match std::mem::replace(&mut self.loss, Loss::Over) {
            Loss::Lost { accepted, .. } => (Vec::new(), accepted),
            Loss::Raising { raised, accepted } => (raised, accepted),
            _ => return None,
        };
        for (bucket, p) in &accepted.p {
            // One that is there already stays as it is.
            self.node(node).raise(member(node, 1), *bucket, (*p).try_into().ok()?);
        }
        raised.push(node);
        raised.sort_unstable();
        self.loss = Loss::Raising { raised, accepted };
        Some(())
    }

    fn rejoin(&mut self, bounds: &Bounds) -> Option<()> {
        let now_ms = self.now_ms;
        let mut accepted = match std::mem::replace(&mut self.loss, Loss::Joining) {
            Loss::Lost { accepted, .. } | Loss::Raising { accepted, .. } => accepted,
            _ => return None,
        };
        if bounds.recovery != Recovery::NewView {
            let floor = accepted.p.values().copied().fold(accepted.floor, u64::max);
            self.nodes[LOSER] = Arc::new(ready(LOSER, 1, floor));
            self.loss = Loss::Over;
            return Some(());
        }
        if !bounds.waits {
            accepted.wait_ms = 0;
        }
        let node = self.node(LOSER);
        assert_eq!(node.rejoin(now_ms, view(2), &id("x2"), "run-2", &accepted), MemberReply::Done);
        Some(())
    }
}

impl Model for Bounds {
    type State = World;
    type Action = ModelStep;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            now_ms: 0,
            nodes: (0..NODES).map(|at| Arc::new(ready(at, 1, 0))).collect(),
            proposers: vec![Proposer::new(); self.requests.len()],
            loss: Loss::Not,
            are_distinct: false,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<ModelStep>) {
        if world.now_ms < self.time_ms {
            steps.push(ModelStep::Tick);
        }
        for at in 0..world.proposers.len() {
            self.proposer_steps(world, at, steps);
        }
        self.recovery_steps(world, steps);
        if !world.are_distinct {
            // The nodes that keep their memory are alike until then, so it happens at the first
            // one.
            steps.retain(|step| step.node().is_none_or(|node| node < 2));
        }
    }

    fn next_state(&self, before: &World, step: ModelStep) -> Option<World> {
        let mut world = before.clone();
        let now_ms = world.now_ms;
        match &step {
            ModelStep::Tick => {
                world.now_ms += 1;
                for at in 0..NODES {
                    world.node(at).expire(now_ms + 1);
                }
            }
            ModelStep::Propose { proposer, token, view } => {
                let granted = world.highest_granted();
                let proposer = &mut world.proposers[*proposer];
                proposer.view = *view;
                proposer.propose(now_ms, NODES, *token, granted);
            }
            ModelStep::Arrive { .. } => world.arrive(self, &step)?,
            ModelStep::Close { proposer } => {
                world.proposers[*proposer].close(now_ms, &self.requests[*proposer]);
            }
            ModelStep::Renew { proposer } => world.proposers[*proposer].renew(now_ms, NODES),
            ModelStep::Release { proposer } => world.proposers[*proposer].release(NODES),
            ModelStep::Crash => {
                let mut node = Node::default();
                node.doubt("run-2", None, &id("x2"));
                world.nodes[LOSER] = Arc::new(node);
                world.loss = Loss::Lost { asked: Vec::new(), accepted: Accepted::default() };
            }
            ModelStep::AskOther { node } => world.ask_other(self, *node)?,
            ModelStep::RaiseOther { node } => world.raise_other(*node)?,
            ModelStep::Advance { node } => {
                world.node(*node).advance(view(2));
            }
            ModelStep::Rejoin => world.rejoin(self)?,
            ModelStep::Ready => match world.node(LOSER).ready(now_ms, view(2), &id("x2")) {
                MemberReply::Done => world.loss = Loss::Over,
                _ => return None,
            },
        }
        world.are_distinct |= step.node().is_some_and(|node| node != LOSER);
        world.tidy(self);
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.all_properties()
    }
}
