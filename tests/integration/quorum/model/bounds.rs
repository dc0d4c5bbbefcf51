//! Bounds of the checker's walk, and the steps that there are from a state.

use super::proposer::{Ask, Phase, Request};
use super::world::{LOSER, Loss, NODES, World, view_and_p};

/// Return of a node that lost its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recovery {
    /// None does.
    NoLoss,
    /// Under a new view that the others have accepted.
    NewView,
    /// With the highest token that the others reported: unsound.
    Read,
    /// With that token, to which the others are raised as well: unsound.
    ReadAndRaise,
}

/// Bounds of the checker's walk.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    pub(super) requests: Vec<Request>,
    pub(super) recovery: Recovery,
    /// `true` if the node that comes back waits until all that it may have forgotten is over.
    pub(super) waits: bool,
    /// Tokens from 1 to this one; proposers go above by any number.
    pub(super) tokens: u64,
    /// `true` if a proposer may begin with any token; else each begins with the one after its
    /// predecessor's.
    pub(super) guesses: bool,
    /// Rounds of votes a proposer.
    pub(super) rounds: usize,
    /// End of time, in milliseconds.
    pub(super) time_ms: u64,
    pub(super) releases: bool,
    pub(super) renewals: usize,
    /// `true` if proposers that stop roll their votes back.
    pub(super) drops: bool,
    /// `true` if a vote may be counted and its reply lost. Votes that never arrive, or arrive late,
    /// are there in any case.
    pub(super) loses_replies: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ModelStep {
    /// Time advances.
    Tick,
    /// A proposer asks every node to accept this token.
    Propose {
        proposer: usize,
        token: u64,
        view: u64,
    },
    /// One of its messages arrives, and the answer is received, or lost.
    Arrive {
        proposer: usize,
        node: usize,
        view: u64,
        ask: Ask,
        received: bool,
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
    /// A ready node learns of the new view from a server.
    Advance {
        node: usize,
    },
    Rejoin,
    Ready,
}

impl ModelStep {
    /// The node at which it happens.
    pub(super) fn node(&self) -> Option<usize> {
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

impl Bounds {
    /// Proposers of locks that share a bucket. Time does not advance, and the node comes back at
    /// once.
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
            loses_replies: true,
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
            loses_replies: true,
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

    /// `true` if all requests are one, repeated.
    pub(super) fn repeats(&self) -> bool {
        self.requests[0].lease == self.requests[1].lease
    }

    pub(super) fn propose_steps(&self, world: &World, at: usize, steps: &mut Vec<ModelStep>) {
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
            Phase::Again(number) => number + 1..=(number + 1).min(self.tokens),
            Phase::Exactly(number) => number..=number,
            _ => return,
        };
        // A request that begins may know of the new view already.
        let newest = if world.knows_new_view() && proposer.rounds == 0 { 2 } else { proposer.view };
        for view in proposer.view..=newest {
            steps.extend(tokens.clone().map(|token| ModelStep::Propose {
                proposer: at,
                token,
                view,
            }));
        }
    }

    pub(super) fn proposer_steps(&self, world: &World, at: usize, steps: &mut Vec<ModelStep>) {
        let proposer = &world.proposers[at];
        self.propose_steps(world, at, steps);
        for message in &proposer.messages {
            let arrive = |received| ModelStep::Arrive {
                proposer: at,
                node: message.node,
                view: message.view,
                ask: message.ask.clone(),
                received,
            };
            let awaited = proposer.awaits(message);
            if self.loses_replies || !awaited {
                steps.push(arrive(false));
            }
            if awaited {
                steps.push(arrive(true));
            }
        }
        if proposer.is_asking() {
            steps.push(ModelStep::Close { proposer: at });
        }
        if matches!(proposer.phase, Phase::Holds { .. }) && proposer.believes(world.now_ms) {
            if proposer.renewals < self.renewals {
                steps.push(ModelStep::Renew { proposer: at });
            }
            if self.releases {
                steps.push(ModelStep::Release { proposer: at });
            }
        }
    }

    pub(super) fn recovery_steps(&self, world: &World, steps: &mut Vec<ModelStep>) {
        let others = 1..NODES;
        match &world.loss {
            // One that has accepted nothing has nothing to lose.
            Loss::Not
                if self.recovery != Recovery::NoLoss && view_and_p(&world.nodes[LOSER]).1 > 0 =>
            {
                steps.push(ModelStep::Crash);
            }
            Loss::Not | Loss::Over => {}
            Loss::Lost { asked, .. } => {
                let left = others.clone().filter(|node| !asked.contains(node));
                steps.extend(left.map(|node| ModelStep::AskOther { node }));
                if asked.len() == NODES - 1 && self.recovery != Recovery::ReadAndRaise {
                    steps.push(ModelStep::Rejoin);
                }
                if asked.len() == NODES - 1 && self.recovery == Recovery::ReadAndRaise {
                    steps.extend(others.clone().map(|node| ModelStep::RaiseOther { node }));
                }
            }
            Loss::Raising { raised, .. } => {
                let left = others.clone().filter(|node| !raised.contains(node));
                steps.extend(left.map(|node| ModelStep::RaiseOther { node }));
                if raised.len() == NODES - 1 {
                    steps.push(ModelStep::Rejoin);
                }
            }
            Loss::Joining => steps.push(ModelStep::Ready),
        }
        if world.proposers.iter().any(|proposer| proposer.view == 2) {
            steps.extend(others.map(|node| ModelStep::Advance { node }));
        }
    }
}
