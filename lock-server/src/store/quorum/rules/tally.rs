//! What a proposer makes of the replies that it has heard so far.

use std::cmp::Reverse;

use fence_protocol::wire::lock::{EndReason, HolderInfo};
use fence_protocol::{Owner, Token};

use super::{Members, NodeReply, Refusal, Vote};

mod leases;
mod votes;

/// What is known of one node in a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum NodeAnswer {
    /// It was asked, or is about to be, and its answer is awaited.
    #[default]
    Waiting,
    /// It was certainly not asked: there is no connection to it.
    NotSent,
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
    answers: Vec<NodeAnswer>,
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
    /// Propose a token above this one: none that the lease has can reach a majority, or none of
    /// those that can needs to, and a majority would take a new one.
    GoAbove {
        /// The highest token that a node has told of.
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
    /// A majority is there: no request that begins from now on is granted a token up to it. One
    /// that nodes have voted for already may be, and a repeat of it may hear of that.
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
        Self { view, answers: vec![NodeAnswer::Waiting; n] }
    }

    /// Notes what was heard of a node. Only the first word about a node counts; a node that is not
    /// there is ignored.
    pub fn record(&mut self, node: usize, answer: NodeAnswer) {
        if let Some(known @ NodeAnswer::Waiting) = self.answers.get_mut(node) {
            *known = answer;
        }
    }

    /// Nobody is waited for any more.
    pub fn close(&mut self) {
        for node in 0..self.answers.len() {
            self.record(node, NodeAnswer::Unanswered);
        }
    }

    /// What was heard, one a node.
    pub fn answers(&self) -> &[NodeAnswer] {
        &self.answers
    }

    /// What nodes replied, with their places.
    pub fn replies(&self) -> impl Iterator<Item = (usize, &NodeReply)> {
        self.answers.iter().enumerate().filter_map(|(node, answer)| match answer {
            NodeAnswer::Replied(reply) => Some((node, reply)),
            _ => None,
        })
    }

    /// What the proposal has come to.
    pub fn vote(&self, vote: &Vote) -> Decision {
        votes::decide(self, vote)
    }

    /// What the renewal has come to.
    pub fn renew(&self) -> RenewDecision {
        leases::renew(self)
    }

    /// What the end of the lease has come to.
    pub fn end(&self) -> EndDecision {
        leases::end(self)
    }

    /// What raising the counter has come to.
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

    /// How many answers are awaited.
    fn open(&self) -> usize {
        self.answers.iter().filter(|answer| matches!(answer, NodeAnswer::Waiting)).count()
    }

    fn count(&self, which: impl Fn(&NodeReply) -> bool) -> usize {
        self.replies().filter(|(_, reply)| which(reply)).count()
    }

    /// How many nodes take part: they answered about the lock.
    fn answered(&self) -> usize {
        self.count(|reply| !matches!(reply, NodeReply::Refused(_)))
    }

    /// The highest token that a node has told of.
    fn highest(&self) -> u64 {
        self.replies().filter_map(|(_, reply)| reply.p()).max().unwrap_or(0)
    }

    /// The newest view that a node has told of, where it is newer than the round's.
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
    /// What remains at each, the longest first.
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

/// What most of several say; of equals what was said first.
fn commonest<T: PartialEq + Clone>(said: &[T]) -> Option<T> {
    let times = |one: &T| said.iter().filter(|other| *other == one).count();
    let most = said.iter().map(times).max()?;
    said.iter().find(|one| times(one) == most).cloned()
}

#[cfg(test)]
mod tests;
