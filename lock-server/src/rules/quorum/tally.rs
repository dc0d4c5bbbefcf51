//! What a proposer makes of the replies that it has heard so far.

use fence_protocol::wire::lock::{EndReason, HolderInfo};
use fence_protocol::{LeaseId, Owner, Token};

use super::{Members, NodeReply};

/// What is known of one node in a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Heard {
    /// It was asked, or is about to be, and its answer is awaited.
    #[default]
    Waiting,
    /// It was certainly not asked: there is no connection to it.
    NotAsked,
    /// It was asked and its answer is not awaited any more: it may have done what it was asked to.
    Unanswered,
    /// What it answered.
    Replied(NodeReply),
}

/// One question to all nodes, under one view. Replies to an earlier question, or from under another
/// view, must never be put into it: another view is another round.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    /// The number of the view in which it is asked.
    view: u64,
    /// One a node, in the order of the URL.
    heard: Vec<Heard>,
}

/// What a proposal has come to.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// A majority holds the lease with this token.
    Granted {
        /// The token: the proposed one, or that of an earlier proposal for the same lease.
        token: Token,
        /// What remains of it at a majority, in milliseconds; the time since before the first send
        /// is still to be taken off.
        remaining_ms: u64,
    },
    /// A majority holds another lease.
    Held {
        /// Who has it.
        holder: HolderInfo,
    },
    /// The id belongs to somebody else.
    Conflict {
        /// Whose.
        owner: Owner,
    },
    /// The id has ended.
    Ended {
        /// How.
        reason: EndReason,
        /// What was said about it.
        why: Option<Owner>,
    },
    /// Every token that this lease has had is dead: propose one above this, with `again`.
    GoAbove {
        /// The highest token that a node has told of.
        above: u64,
    },
    /// The lease has a token at some node that can still reach a majority: propose exactly that one.
    /// `again` says that every other token of the lease is dead.
    Help {
        /// That token.
        token: Token,
        /// For [`Vote::again`](super::Vote::again).
        again: bool,
    },
    /// The nodes accepted different leases and none has a majority: drop the own votes, wait for a
    /// random time, begin again.
    Split {
        /// Who has most of the others.
        holder: HolderInfo,
    },
    /// A node is in a newer view: learn it, and ask again under it.
    NewView {
        /// Its number.
        view: u64,
        /// Who belongs to it.
        members: Members,
    },
    /// Fewer than a majority take part.
    TooFew,
    /// More replies are needed.
    Undecided,
}

/// What a renewal has come to.
#[derive(Clone, Debug, PartialEq)]
pub enum RenewDecision {
    /// A majority holds the lease with this token, with its new time.
    Renewed {
        /// Its token.
        token: Token,
        /// Who holds it.
        owner: Owner,
        /// The time to live that it has from now on, in milliseconds.
        ttl_ms: u64,
        /// What remains of it at a majority, in milliseconds; the time since before the first send
        /// is still to be taken off.
        remaining_ms: u64,
        /// The metadata that it was acquired with.
        metadata: String,
    },
    /// No majority can hold it.
    Lost {
        /// How it ended, as most nodes say.
        reason: EndReason,
        /// What was said about it.
        why: Option<Owner>,
    },
    /// As [`Decision::NewView`].
    NewView {
        /// Its number.
        view: u64,
        /// Who belongs to it.
        members: Members,
    },
    /// Neither can be said, and nothing more will come.
    Unknown,
    /// More replies are needed.
    Undecided,
}

/// What the end of a lease has come to.
#[derive(Clone, Debug, PartialEq)]
pub enum EndDecision {
    /// It was live at a majority and is not any more.
    Ended {
        /// Its token.
        token: Token,
        /// Who held it.
        owner: Owner,
    },
    /// It was not live at a majority.
    Lost {
        /// How it had ended, as most nodes say.
        reason: EndReason,
        /// What was said about it.
        why: Option<Owner>,
    },
    /// As [`Decision::NewView`].
    NewView {
        /// Its number.
        view: u64,
        /// Who belongs to it.
        members: Members,
    },
    /// Neither can be said, and nothing more will come.
    Unknown,
    /// More replies are needed.
    Undecided,
}

/// What raising a counter has come to (mint, lift).
#[derive(Clone, Debug, PartialEq)]
pub enum RaiseDecision {
    /// A majority is there: no token up to it is ever granted from now on.
    Raised,
    /// It cannot be reached: propose one above this.
    GoAbove {
        /// The highest token that a node has told of.
        above: u64,
    },
    /// As [`Decision::NewView`].
    NewView {
        /// Its number.
        view: u64,
        /// Who belongs to it.
        members: Members,
    },
    /// Fewer than a majority take part.
    TooFew,
    /// More replies are needed.
    Undecided,
}

impl Round {
    /// A question to `n` nodes under the view with this number.
    pub fn new(view: u64, n: usize) -> Self {
        Self { view, heard: vec![Heard::Waiting; n] }
    }

    /// Notes what was heard of a node. Only the first word about a node counts; a node that is not
    /// there is ignored.
    pub fn hear(&mut self, node: usize, heard: Heard) {
        if let Some(known @ Heard::Waiting) = self.heard.get_mut(node) {
            *known = heard;
        }
    }

    /// Nobody is waited for any more.
    pub fn close(&mut self) {
        for node in 0..self.heard.len() {
            self.hear(node, Heard::Unanswered);
        }
    }

    /// What was heard, one a node.
    pub fn heard(&self) -> &[Heard] {
        &self.heard
    }

    /// What nodes replied, with their places.
    pub fn replies(&self) -> impl Iterator<Item = (usize, &NodeReply)> {
        self.heard.iter().enumerate().filter_map(|(node, heard)| match heard {
            Heard::Replied(reply) => Some((node, reply)),
            _ => None,
        })
    }

    /// Whether a node may have done what it was asked to without our knowing.
    pub fn leaves_doubt(&self) -> bool {
        self.heard.iter().any(|heard| matches!(heard, Heard::Waiting | Heard::Unanswered))
    }

    /// What the proposal of `token` for `lease` has come to.
    pub fn vote(&self, lease: LeaseId, token: Token) -> Decision {
        let _ = (lease, token);
        Decision::Undecided
    }

    /// What the renewal has come to.
    pub fn renew(&self) -> RenewDecision {
        RenewDecision::Undecided
    }

    /// What the end of the lease has come to.
    pub fn end(&self) -> EndDecision {
        EndDecision::Undecided
    }

    /// What raising the counter to `token` has come to.
    pub fn raise(&self) -> RaiseDecision {
        RaiseDecision::Undecided
    }
}
