//! One question to all nodes, until a majority has decided or the time is over.

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::{LockName, Token};

use service_kit::clock;

use super::membership::of_node;
use super::nodes::{Node, Replies, submit_to_nodes};
use super::replies::read_reply;
use super::rules::tally::{NodeAnswer, Round};
use super::rules::{NodeReply, Operation, Refusal, bucket_of};
use super::silence::Silence;
use super::{Current, QuorumStore};
use crate::store::StoreError;

/// A question that has its answer, and the answers that may still come.
#[derive(Debug)]
pub(crate) struct RoundResult<D> {
    pub(super) round: Round,
    /// The view in which it was asked.
    pub(super) current: Arc<Current>,
    /// Decision of the round; none where the replies decide nothing.
    pub(super) decision: Option<D>,
    pub(super) late: Replies<NodeReply>,
    /// Why nodes gave no answer.
    pub(super) reasons: Vec<String>,
}

impl<D> RoundResult<D> {
    /// Why nothing was decided: what too few nodes did.
    pub(super) fn text(&self, what: &str) -> String {
        reasons_text(what, &self.reasons)
    }
}

impl QuorumStore {
    /// Asks every node that belongs to the view, and notes the counters that they report.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where no view is known.
    pub(super) async fn run_round<D>(
        &self,
        patience: Duration,
        operation: Operation,
        decide: impl Fn(&Round) -> Option<D>,
    ) -> Result<RoundResult<D>, StoreError> {
        let inner = &*self.inner;
        let begun = clock::now();
        let call = operation.word();
        let current = self.current()?;
        let mut round = Round::new(current.view.view, inner.nodes.len());
        let mut reasons = self.absent(&current);
        for node in inner.nodes.iter().filter(|node| !current.has(node.index)) {
            round.record(node.index, NodeAnswer::NotSent);
        }
        let kick = inner.membership.clone();
        let bucket = operation.bucket();
        let read = move |node: &Node, value| {
            let reply = read_reply(value).map_err(|error| Silence::Unknown(error.to_string()))?;
            if matches!(reply, NodeReply::Refused(_)) {
                kick.probe_soon();
            }
            if let (Some(bucket), Some(p)) = (bucket, reply.p()) {
                node.notes.saw(usize::from(bucket.number()), p);
            }
            Ok(reply)
        };
        let mut late = submit_to_nodes(&inner.nodes, &current, patience, operation, |_| true, read);
        loop {
            if let Some(decision) = decide(&round) {
                inner.times.called(call, begun);
                return Ok(RoundResult { round, current, decision: Some(decision), late, reasons });
            }
            match late.next().await {
                Some((node, Ok(reply))) => {
                    if let NodeReply::Refused(refusal) = &reply {
                        reasons.push(of_node(&self.address(node), &refusal_text(refusal)));
                    }
                    round.record(node, NodeAnswer::Replied(reply));
                }
                Some((node, Err(silence))) => {
                    reasons.push(of_node(&self.address(node), silence.reason()));
                    round.record(
                        node,
                        match silence {
                            Silence::NotDone(_) => NodeAnswer::NotSent,
                            Silence::Unknown(_) => NodeAnswer::Unanswered,
                        },
                    );
                }
                None => break,
            }
        }
        round.close();
        inner.times.called(call, begun);
        Ok(RoundResult { decision: decide(&round), round, current, late, reasons })
    }

    /// Why nodes are not asked at all.
    pub(super) fn absent(&self, current: &Current) -> Vec<String> {
        let absent = self.inner.nodes.iter().filter(|node| !current.has(node.index));
        absent.map(|node| self.inner.membership.why_not(node.index)).collect()
    }

    pub(super) fn address(&self, node: usize) -> String {
        self.inner.nodes.get(node).map_or_else(String::new, |node| node.link.target().to_string())
    }

    /// The highest token of any reply of a node, in the lock's bucket.
    pub(super) fn known_p(&self, lock: &LockName) -> u64 {
        let bucket = usize::from(bucket_of(lock).number());
        let floor = self.inner.floor.load(std::sync::atomic::Ordering::Relaxed);
        let seen = self.inner.nodes.iter().map(|node| node.notes.highest(bucket));
        seen.fold(floor, u64::max)
    }

    /// A token above `known`, and above the client's `min_token`.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`].
    pub(super) fn token_above(known: u64, wish: Option<Token>) -> Result<Token, StoreError> {
        lease::tokens::next(known, wish).ok_or(StoreError::Exhausted)
    }
}

/// That too few nodes did what a majority has to do.
pub(super) fn reasons_text(what: &str, reasons: &[String]) -> String {
    let reasons = match reasons {
        [] => "they did not answer in time".to_owned(),
        reasons => reasons.join("; "),
    };
    format!("fewer than a majority of the nodes {what}: {reasons}")
}

/// A refusal in words.
pub(super) fn refusal_text(refusal: &Refusal) -> String {
    match refusal {
        Refusal::NoMember => "it belongs to no quorum yet, or has lost its memory".to_owned(),
        Refusal::Other { cluster, n } => {
            format!("it belongs to another quorum ({cluster}, of {n} nodes)")
        }
        Refusal::NotReady => "it does not vote yet".to_owned(),
        Refusal::View { view, .. } => format!("it is in view {view}"),
        Refusal::Stranger { node } => {
            format!("it has the memory of the node {node}, and another one is meant")
        }
    }
}
