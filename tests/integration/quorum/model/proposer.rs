//! One request at one server: its requests to the nodes, their replies, its lease.

use std::hash::{Hash, Hasher};

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, LockName, Owner, Token};
use lock_server::engines::quorum::rules::tally::{Decision, NodeAnswer, RenewDecision, Round};
use lock_server::engines::quorum::rules::{
    Addressee, Bucket, End, NodeReply, Refusal, Renew, Vote,
};

use super::super::reference::Node;

/// Phase of a proposer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// It has asked, or not begun: it may ask (again) with a token above this one.
    Above(u64),
    /// It got no majority and has taken its votes back: it may ask above this one, as another
    /// attempt.
    Again(u64),
    /// It will ask with exactly this token.
    Exactly(u64),
    /// It awaits answers.
    Asking,
    /// It holds the lock, with this token, until then.
    Holds { token: u64, until_ms: u64 },
    /// It holds the lock and awaits answers to a renewal.
    Renews { token: u64, until_ms: u64 },
    /// It was granted this token and has let go.
    Held { token: u64 },
    /// It has given up.
    Over,
}

/// A message to a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Message {
    pub(super) node: usize,
    pub(super) view: u64,
    pub(super) ask: Ask,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Ask {
    Vote { token: u64, dead: Vec<u64>, attempt: usize },
    Renew,
    Release,
    Drop { attempt: usize },
}

/// A round, for the checker: equal rounds decide alike.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RoundState(pub(super) Round);

impl Eq for RoundState {}

impl Hash for RoundState {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for answer in self.0.answers() {
            std::mem::discriminant(answer).hash(state);
            if let NodeAnswer::Replied(reply) = answer {
                hash_reply(reply, state);
            }
        }
    }
}

/// Everything of a reply that a decision, or what is done about it, depends on.
fn hash_reply<H: Hasher>(reply: &NodeReply, state: &mut H) {
    std::mem::discriminant(reply).hash(state);
    reply.p().hash(state);
    match reply {
        NodeReply::Accepted { remaining_ms, .. } => remaining_ms.hash(state),
        NodeReply::Yours { token, remaining_ms, .. }
        | NodeReply::Renewed { token, remaining_ms, .. } => (token, remaining_ms).hash(state),
        NodeReply::Ended { reason, .. } => reason.hash(state),
        NodeReply::Held { lease, .. } => lease.hash(state),
        NodeReply::EndedNow { token, .. } => token.hash(state),
        NodeReply::Refused(Refusal::View { view, .. }) => view.hash(state),
        NodeReply::Refused(refusal) => std::mem::discriminant(refusal).hash(state),
        _ => {}
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Proposer {
    pub(super) phase: Phase,
    /// In which view it asks.
    pub(super) view: u64,
    pub(super) token: u64,
    dead: Vec<u64>,
    round: RoundState,
    /// When the round began, before anything was sent.
    began_ms: u64,
    /// The highest token that had been granted when the request began.
    pub(super) granted_before: Option<u64>,
    pub(super) rounds: usize,
    pub(super) renewals: usize,
    /// Number of times that its votes were rolled back before.
    pub(super) attempt: usize,
    /// Under way, in order; those that are lost stay.
    pub(super) messages: Vec<Message>,
}

/// Constant part of a request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) lock: LockName,
    pub(super) lease: LeaseId,
    pub(super) at: usize,
    pub(super) ttl_ms: u64,
    /// Unsound: votes after a roll-back belong to the attempt that was rolled back.
    pub(super) keeps_attempt: bool,
}

impl Request {
    pub(super) fn new(at: usize, lock: usize, lease: usize, ttl_ms: u64) -> Self {
        Self {
            lock: LockName::new(&format!("l{lock}")).unwrap(),
            lease: LeaseId::new(uuid::Uuid::from_u128(lease as u128 + 1)).unwrap(),
            at,
            ttl_ms,
            keeps_attempt: false,
        }
    }

    /// The name of an attempt, as nodes know it.
    fn name(&self, attempt: usize) -> String {
        format!("{}.{}", self.at, if self.keeps_attempt { 0 } else { attempt })
    }

    fn vote(&self, number: u64, dead: &[u64], attempt: usize) -> Vote {
        Vote {
            lock: self.lock.clone(),
            bucket: Bucket::new(0),
            lease: self.lease,
            token: token(number),
            ttl_ms: self.ttl_ms,
            owner: Owner::new("o").unwrap(),
            metadata: String::new(),
            attempt: self.name(attempt),
            dead: dead.iter().copied().map(token).collect(),
            retention_ms: 0,
        }
    }

    /// A message arrives.
    pub(super) fn arrive(
        &self,
        now_ms: u64,
        node: &mut Node,
        to: Addressee<'_>,
        ask: &Ask,
    ) -> NodeReply {
        let end = |node: &mut Node, end| node.end(now_ms, to, &self.lock, self.lease, &end, 0);
        match ask {
            Ask::Vote { token, dead, attempt } => {
                node.vote(now_ms, to, &self.vote(*token, dead, *attempt))
            }
            Ask::Renew => {
                let lock = self.lock.clone();
                let bucket = Bucket::new(0);
                let renew = Renew {
                    lock,
                    bucket,
                    lease: self.lease,
                    ttl_ms: None,
                    by: String::new(),
                    order: 0,
                    retention_ms: 0,
                };
                node.renew(now_ms, to, &renew)
            }
            Ask::Release => end(node, End::For { reason: EndReason::Released, why: None }),
            Ask::Drop { attempt } => end(node, End::Drop { attempt: self.name(*attempt) }),
        }
    }
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

impl Proposer {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Above(0),
            view: 1,
            token: 0,
            dead: Vec::new(),
            round: RoundState(Round::new(1, 0)),
            began_ms: 0,
            granted_before: None,
            rounds: 0,
            renewals: 0,
            attempt: 0,
            messages: Vec::new(),
        }
    }

    /// Token of its grant.
    pub(super) fn granted(&self) -> Option<u64> {
        match self.phase {
            Phase::Holds { token, .. } | Phase::Renews { token, .. } | Phase::Held { token } => {
                Some(token)
            }
            _ => None,
        }
    }

    /// `true` if it believes that it holds the lock.
    pub(super) fn believes(&self, now_ms: u64) -> bool {
        match self.phase {
            Phase::Holds { until_ms, .. } | Phase::Renews { until_ms, .. } => now_ms < until_ms,
            _ => false,
        }
    }

    fn start_round(&mut self, now_ms: u64, nodes: usize, ask: &Ask) {
        self.round = RoundState(Round::new(self.view, nodes));
        self.began_ms = now_ms;
        self.send(nodes, ask);
    }

    fn send(&mut self, nodes: usize, ask: &Ask) {
        let to = |node| Message { node, view: self.view, ask: ask.clone() };
        let new: Vec<Message> = (0..nodes).map(to).collect();
        self.messages.extend(new);
        self.messages.sort();
    }

    /// A round of votes begins.
    pub(super) fn propose(&mut self, now_ms: u64, nodes: usize, number: u64, granted: u64) {
        self.granted_before.get_or_insert(granted);
        self.rounds += 1;
        self.token = number;
        self.phase = Phase::Asking;
        let ask = Ask::Vote { token: number, dead: self.dead.clone(), attempt: self.attempt };
        self.start_round(now_ms, nodes, &ask);
    }

    pub(super) fn renew(&mut self, now_ms: u64, nodes: usize) {
        if let Phase::Holds { token, until_ms } = self.phase {
            self.renewals += 1;
            self.phase = Phase::Renews { token, until_ms };
            self.start_round(now_ms, nodes, &Ask::Renew);
        }
    }

    /// The holder lets go at once, and notifies the nodes.
    pub(super) fn release(&mut self, nodes: usize) {
        if let Some(token) = self.granted() {
            self.finish(Phase::Held { token });
            self.send(nodes, &Ask::Release);
        }
    }

    fn finish(&mut self, phase: Phase) {
        self.phase = phase;
        self.round = RoundState(Round::new(1, 0));
        (self.began_ms, self.dead, self.token) = (0, Vec::new(), 0);
    }

    /// `true` if an answer to this message would be received.
    pub(super) fn awaits(&self, message: &Message) -> bool {
        let current = match (&self.phase, &message.ask) {
            (Phase::Asking, Ask::Vote { token, attempt, .. }) => {
                (*token, *attempt) == (self.token, self.attempt)
            }
            (Phase::Renews { .. }, Ask::Renew) => true,
            _ => false,
        };
        current
            && message.view == self.view
            && self.round.0.answers()[message.node] == NodeAnswer::Waiting
    }

    pub(super) fn is_asking(&self) -> bool {
        matches!(self.phase, Phase::Asking | Phase::Renews { .. })
    }

    pub(super) fn receive(
        &mut self,
        now_ms: u64,
        request: &Request,
        node: usize,
        answer: NodeAnswer,
    ) {
        self.round.0.record(node, answer);
        self.decide(now_ms, request);
    }

    /// No node is waited for any more.
    pub(super) fn close(&mut self, now_ms: u64, request: &Request) {
        self.round.0.close();
        self.decide(now_ms, request);
    }

    fn decide(&mut self, now_ms: u64, request: &Request) {
        match self.phase {
            Phase::Asking => self.decide_votes(now_ms, request),
            Phase::Renews { token, until_ms } => match self.round.0.renew() {
                RenewDecision::Undecided => {}
                RenewDecision::Renewed { token: renewed, remaining_ms, .. } => {
                    assert_eq!(renewed.get(), token, "renewed with another token");
                    let until_ms = until_ms.max(self.began_ms + remaining_ms);
                    self.finish(Phase::Holds { token, until_ms });
                }
                // It holds on until its time is over; or it was notified that it is lost.
                RenewDecision::Lost { .. } => self.finish(Phase::Held { token }),
                _ => self.finish(Phase::Holds { token, until_ms }),
            },
            _ => {}
        }
    }

    fn decide_votes(&mut self, now_ms: u64, request: &Request) {
        let vote = request.vote(self.token, &self.dead, self.attempt);
        let numbers = |dead: Vec<Token>| dead.into_iter().map(Token::get).collect();
        match self.round.0.vote(&vote) {
            Decision::Undecided => {}
            Decision::Granted { token, remaining_ms } => {
                let token = token.get();
                let until_ms = self.began_ms + remaining_ms;
                match now_ms < until_ms {
                    true => self.finish(Phase::Holds { token, until_ms }),
                    false => self.give_up(),
                }
            }
            Decision::GoAbove { above, dead } => {
                self.finish(Phase::Above(above));
                self.dead = numbers(dead);
            }
            Decision::Help { token, dead } => {
                self.finish(Phase::Exactly(token.get()));
                self.dead = numbers(dead);
            }
            Decision::NewView { view, .. } => {
                let token = self.token;
                let dead = std::mem::take(&mut self.dead);
                self.finish(Phase::Exactly(token));
                (self.view, self.dead) = (view, dead);
            }
            Decision::Split { .. } => self.begin_again(),
            Decision::Held { .. }
            | Decision::Conflict { .. }
            | Decision::Ended { .. }
            | Decision::TooFew => self.give_up(),
        }
    }

    /// Rolls the votes back; drops may be lost as any message.
    fn give_up(&mut self) {
        let nodes = self.round.0.answers().len();
        self.finish(Phase::Over);
        self.send(nodes, &Ask::Drop { attempt: self.attempt });
    }

    /// Rolls the votes back; the next requests are another attempt.
    fn begin_again(&mut self) {
        let highest = self.round.0.replies().filter_map(|(_, reply)| reply.p()).max().unwrap_or(0);
        self.give_up();
        self.phase = Phase::Again(highest);
        self.attempt += 1;
    }
}
