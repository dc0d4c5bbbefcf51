//! Taking votes back, and bringing a lease to the nodes that lack it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::super::nodes::{Node, Replies, budget, submit_to_nodes};
use super::super::replies::read_reply;
use super::super::round::RoundResult;
use super::super::silence::Silence;
use super::super::{Current, QuorumStore};
use super::ballot::Votes;
use crate::engines::quorum::rules::tally::NodeAnswer;
use crate::engines::quorum::rules::{End, NodeReply, Operation, TopUp, majority};

/// Pauses before each retry at a node that has not said that the vote is gone: a vote that is left
/// behind blocks every other request for as long as its lease would live.
const AGAIN: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(2)];

impl QuorumStore {
    /// Rolls votes back, in the background. The first orders are submitted before this returns, so
    /// they go to each node behind the votes; each goes out in every view in which a vote was asked
    /// for, and in the one in force. The returned channel closes when most nodes have obeyed, or
    /// may not have received the order.
    pub(crate) fn roll_back(&self, mut votes: Votes) -> oneshot::Receiver<()> {
        votes.mark_rolled_back();
        let (done, most) = oneshot::channel();
        if !votes.nodes.contains(&true) {
            return most;
        }
        let sent = self.send_drops(&votes);
        let store = self.clone();
        self.inner.tasks.spawn(async move {
            store.await_drops(&mut votes, sent, Some(done)).await;
            for pause in AGAIN {
                if !votes.nodes.contains(&true) {
                    return;
                }
                tokio::time::sleep(pause).await;
                let sent = store.send_drops(&votes);
                store.await_drops(&mut votes, sent, None).await;
            }
        });
        most
    }

    /// Asks each node that may hold such a vote, once a view.
    fn send_drops(&self, votes: &Votes) -> Vec<Replies<NodeReply>> {
        let mut views = votes.views.clone();
        if let Ok(current) = self.current()
            && !views.contains(&current)
        {
            views.push(current);
        }
        views.iter().map(|view| self.send_drops_in(view, votes)).collect()
    }

    fn send_drops_in(&self, view: &Arc<Current>, votes: &Votes) -> Replies<NodeReply> {
        let inner = &*self.inner;
        let operation = Operation::End {
            lock: votes.lock.clone(),
            lease: votes.lease,
            end: End::Drop { attempt: votes.attempt.clone() },
            retention_ms: inner.options.limits.ended_retention_ms,
        };
        let holds = |node: &Node| votes.nodes.get(node.index) == Some(&true);
        submit_to_nodes(&inner.nodes, view, budget(None), operation, holds, |_, value| {
            read_reply(value).map_err(|error| Silence::Unknown(error.to_string()))
        })
    }

    /// Notes which nodes hold nothing of it any more.
    async fn await_drops(
        &self,
        votes: &mut Votes,
        sent: Vec<Replies<NodeReply>>,
        mut most: Option<oneshot::Sender<()>>,
    ) {
        for mut replies in sent {
            while let Some((node, reply)) = replies.next().await {
                // One in another view has not looked.
                if matches!(reply, Ok(reply) if !matches!(reply, NodeReply::Refused(_))) {
                    votes.nodes[node] = false;
                }
                let obeyed = votes.nodes.iter().filter(|holds| !**holds).count();
                if obeyed >= majority(votes.nodes.len()) {
                    most.take().map(|most| most.send(()));
                }
            }
        }
    }

    /// Brings a lease to the nodes that a majority was reached without, in the background.
    pub(crate) fn top_up_later<D: Send + 'static>(&self, topup: TopUp, asked: RoundResult<D>) {
        let store = self.clone();
        self.inner.tasks.spawn(async move { store.top_up(topup, asked, None).await });
    }

    /// As `top_up`, for votes that may be rolled back: none is brought anywhere after that.
    pub(super) fn top_up_unless_rolled_back<D: Send + 'static>(
        &self,
        topup: TopUp,
        asked: RoundResult<D>,
        votes: Votes,
    ) {
        let store = self.clone();
        self.inner.tasks.spawn(async move {
            store.top_up(topup, asked, Some(&votes)).await;
            if votes.are_rolled_back() {
                // Perhaps while it was on its way: then the order came before it.
                store.roll_back(votes);
            }
        });
    }

    async fn top_up<D>(&self, topup: TopUp, mut asked: RoundResult<D>, votes: Option<&Votes>) {
        while let Some((node, reply)) = asked.late.next().await {
            if let Ok(reply) = reply {
                asked.round.record(node, NodeAnswer::Replied(reply));
            }
        }
        let lacks = |answer: &NodeAnswer| {
            matches!(
                answer,
                NodeAnswer::Replied(
                    NodeReply::Held { .. } | NodeReply::Low { .. } | NodeReply::Nothing { .. }
                )
            )
        };
        let lacking: Vec<bool> = asked.round.answers().iter().map(lacks).collect();
        if !lacking.contains(&true) {
            return;
        }
        let Ok(current) = self.current() else { return };
        if votes.is_some_and(Votes::are_rolled_back) {
            return;
        }
        let lacks = |node: &Node| lacking.get(node.index) == Some(&true);
        let operation = Operation::TopUp(topup);
        // A node that cannot be topped up is one of the few that may be missing.
        let mut replies =
            submit_to_nodes(&self.inner.nodes, &current, budget(None), operation, lacks, |_, _| {
                Ok(())
            });
        while replies.next().await.is_some() {}
    }
}
