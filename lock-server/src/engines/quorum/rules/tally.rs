//! Decisions of a proposer from the replies so far.

use std::cmp::Reverse;

use fence_protocol::wire::lock::{EndReason, HolderInfo};
use fence_protocol::{Owner, Token};

use super::{Members, NodeReply, Refusal, Vote};

mod leases;
mod votes;

/// State of one node in a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum NodeAnswer {
    /// It was asked, or is about to be, and its answer is awaited.
    #[default]
    Waiting,
    /// It was certainly not asked: there is no connection to it.
    NotSent,
    /// It was asked and its answer is not awaited any more: it may have done what it was asked to.
    Unanswered,
    /// Its reply.
    Replied(NodeReply),
}

/// One question to all nodes, under one view. Replies to an earlier question, or from under another
/// view, must never be put into it: another view is another round.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    /// The number of the view in which it is asked.
    view: u64,
    /// One a node, in the order of the URL.
    answers: Vec<NodeAnswer>,
}

/// Decision about a proposal.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// A majority holds the lease with this token.
    Granted {
        /// The token: the proposed one, or that of an earlier proposal for the same lease.
        token: Token,
        /// Remaining time of it at a majority, in milliseconds; the time since before the first
        /// send is still to be subtracted.
        remaining_ms: u64,
    },
    /// A majority holds another lease.
    Held {
        /// Holder of the lock.
        holder: HolderInfo,
    },
    /// The id belongs to another owner or principal.
    Conflict {
        /// Whose.
        owner: Owner,
    },
    /// The id has ended.
    Ended {
        /// Reason of the end.
        reason: EndReason,
        /// Text that was given with it.
        why: Option<Owner>,
    },
    /// Propose a token above this one: none that the lease has can reach a majority, or none of
    /// those that can needs to, and a majority would take a new one.
    GoAbove {
        /// The highest token in a node's reply.
        above: u64,
        /// For [`Vote::dead`].
        dead: Vec<Token>,
    },
    /// An earlier attempt got the lease this token at some nodes, and it can still reach a
    /// majority: propose exactly that one.
    Help {
        /// That token.
        token: Token,
        /// For [`Vote::dead`].
        dead: Vec<Token>,
    },
    /// The nodes accepted different leases and none has a majority: drop the own votes, wait for a
    /// random time, begin again.
    Split {
        /// The one that has most of the others.
        holder: HolderInfo,
    },
    /// A node is in a newer view: learn it, and retry under it.
    NewView {
        /// Its number.
        view: u64,
        /// Members of the view.
        members: Members,
    },
    /// Fewer than a majority take part.
    TooFew,
    /// More replies are needed.
    Undecided,
}

/// Decision about a renewal.
#[derive(Clone, Debug, PartialEq)]
pub enum RenewDecision {
    /// A majority holds the lease with this token, with its new time.
    Renewed {
        /// Its token.
        token: Token,
        /// Owner of the lease.
        owner: Owner,
        /// The time to live that it has from now on, in milliseconds.
        ttl_ms: u64,
        /// Remaining time of it at a majority, in milliseconds; the time since before the first
        /// send is still to be subtracted.
        remaining_ms: u64,
        /// The metadata that it was acquired with.
        metadata: String,
    },
    /// No majority can hold it.
    Lost {
        /// Reason of the end, in most replies.
        reason: EndReason,
        /// Text that was given with it.
        why: Option<Owner>,
        /// A node knows the lease.
        is_known: bool,
    },
    /// As [`Decision::NewView`].
    NewView {
        /// Its number.
        view: u64,
        /// Members of the view.
        members: Members,
    },
    /// Neither can be said, and nothing more will come.
    Unknown,
    /// More replies are needed.
    Undecided,
}

/// Decision about the end of a lease.
#[derive(Clone, Debug, PartialEq)]
pub enum EndDecision {
    /// It was live at a majority and is not any more.
    Ended {
        /// Its token.
        token: Token,
        /// Owner of the lease.
        owner: Owner,
    },
    /// It was not live at a majority.
    Lost {
        /// Reason of the earlier end, in most replies.
        reason: EndReason,
        /// Text that was given with it.
        why: Option<Owner>,
        /// A node knows the lease.
        is_known: bool,
    },
    /// As [`Decision::NewView`].
    NewView {
        /// Its number.
        view: u64,
        /// Members of the view.
        members: Members,
    },
    /// Neither can be said, and nothing more will come.
    Unknown,
    /// More replies are needed.
    Undecided,
}

/// Decision about raising a counter (mint, lift).
#[derive(Clone, Debug, PartialEq)]
pub enum RaiseDecision {
    /// A majority is there: no request that begins from now on is granted a token up to it. One
    /// that nodes have voted for already may be, and a retry of it may learn that.
    Raised,
    /// It cannot be reached: propose one above this.
    GoAbove {
        /// The highest token in a node's reply.
        above: u64,
    },
    /// As [`Decision::NewView`].
    NewView {
        /// Its number.
        view: u64,
        /// Members of the view.
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
        Self { view, answers: vec![NodeAnswer::Waiting; n] }
    }

    /// Records a node's answer. Only the first one of a node counts; a node that is not there is
    /// ignored.
    pub fn record(&mut self, node: usize, answer: NodeAnswer) {
        if let Some(known @ NodeAnswer::Waiting) = self.answers.get_mut(node) {
            *known = answer;
        }
    }

    /// Stops waiting for nodes.
    pub fn close(&mut self) {
        for node in 0..self.answers.len() {
            self.record(node, NodeAnswer::Unanswered);
        }
    }

    /// One answer a node.
    pub fn answers(&self) -> &[NodeAnswer] {
        &self.answers
    }

    /// Replies, with the positions of their nodes.
    pub fn replies(&self) -> impl Iterator<Item = (usize, &NodeReply)> {
        self.answers.iter().enumerate().filter_map(|(node, answer)| match answer {
            NodeAnswer::Replied(reply) => Some((node, reply)),
            _ => None,
        })
    }

    /// Decides the proposal.
    pub fn vote(&self, vote: &Vote) -> Decision {
        votes::decide(self, vote)
    }

    /// Decides the renewal.
    pub fn renew(&self) -> RenewDecision {
        leases::renew(self)
    }

    /// Decides the end of the lease.
    pub fn end(&self) -> EndDecision {
        leases::end(self)
    }

    /// Decides the raising of the counter.
    pub fn raise(&self) -> RaiseDecision {
        let raised = self.count(|reply| matches!(reply, NodeReply::Raised { .. }));
        let low = self.count(|reply| matches!(reply, NodeReply::Low { .. }));
        if raised >= self.majority() {
            return RaiseDecision::Raised;
        } else if raised + self.open() >= self.majority() {
            return RaiseDecision::Undecided;
        } else if let Some((view, members)) = self.newer_view() {
            return RaiseDecision::NewView { view, members };
        }
        match raised + low {
            enough if enough >= self.majority() => RaiseDecision::GoAbove { above: self.highest() },
            some if some + self.open() >= self.majority() => RaiseDecision::Undecided,
            _ => RaiseDecision::TooFew,
        }
    }

    fn majority(&self) -> usize {
        super::majority(self.answers.len())
    }

    fn faults(&self) -> usize {
        super::faults(self.answers.len())
    }

    /// Number of answers that are awaited.
    fn open(&self) -> usize {
        self.answers.iter().filter(|answer| matches!(answer, NodeAnswer::Waiting)).count()
    }

    fn count(&self, which: impl Fn(&NodeReply) -> bool) -> usize {
        self.replies().filter(|(_, reply)| which(reply)).count()
    }

    /// Number of nodes that take part: they replied about the lock.
    fn answered(&self) -> usize {
        self.count(|reply| !matches!(reply, NodeReply::Refused(_)))
    }

    /// The highest token in a node's reply.
    fn highest(&self) -> u64 {
        self.replies().filter_map(|(_, reply)| reply.p()).max().unwrap_or(0)
    }

    /// The newest view in a node's reply, where it is newer than the round's.
    fn newer_view(&self) -> Option<(u64, Members)> {
        let newer = self.replies().filter_map(|(_, reply)| match reply {
            NodeReply::Refused(Refusal::View { view, members }) => Some((*view, members)),
            _ => None,
        });
        let (view, members) = newer.max_by_key(|(view, _)| *view)?;
        (view > self.view).then(|| (view, members.clone()))
    }
}

/// The token that most nodes hold the lease with, and what remains of it at a majority of all
/// nodes: the shortest of the longest ones that make one.
#[derive(Clone, Debug, PartialEq)]
struct Support {
    token: Token,
    /// Remaining time at each, the longest first.
    remaining_ms: Vec<u64>,
}

impl Support {
    /// Of every token that nodes hold the lease with; the one that most hold first, of equals the
    /// higher one.
    fn of_all(tokens: impl Iterator<Item = (Token, u64)>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (token, remaining_ms) in tokens {
            match all.iter_mut().find(|one| one.token == token) {
                Some(known) => known.remaining_ms.push(remaining_ms),
                None => all.push(Self { token, remaining_ms: vec![remaining_ms] }),
            }
        }
        for one in &mut all {
            one.remaining_ms.sort_unstable_by_key(|ms| Reverse(*ms));
        }
        all.sort_by_key(|one| Reverse((one.count(), one.token)));
        all
    }

    fn count(&self) -> usize {
        self.remaining_ms.len()
    }

    /// For how long a majority holds it still; `None` where none does.
    fn at_majority(&self, majority: usize) -> Option<u64> {
        self.remaining_ms.get(majority - 1).copied()
    }
}

/// The commonest of several values; of equals the first.
fn commonest<T: PartialEq + Clone>(said: &[T]) -> Option<T> {
    let times = |one: &T| said.iter().filter(|other| *other == one).count();
    let most = said.iter().map(times).max()?;
    said.iter().find(|one| times(one) == most).cloned()
}

#[cfg(test)]
mod tests;
