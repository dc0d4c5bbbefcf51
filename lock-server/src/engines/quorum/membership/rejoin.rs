//! Keeping nodes from voting that may have forgotten, and bringing them back.

use std::time::Duration;

use futures_util::future::join_all;

use super::drive::{BUSY, Done, Driver, RejoinStep, metas};
use crate::engines::quorum::nodes::Node;
use crate::engines::quorum::random_below;
use crate::engines::quorum::rules::view::{Accepted, MemberReply, NodeProbe, View};
use crate::engines::quorum::rules::{NodeId, majority};
use crate::engines::quorum::scripts::Rejoin;
use crate::engines::quorum::verify::new_id;

impl RejoinStep<'_> {
    /// True if no node is in that view yet; else it waits for a node that could not come back.
    fn is_new(&self) -> bool {
        !metas(self.known).any(|meta| meta.view.view >= self.view.view)
    }
}

impl Driver {
    /// Keeps a node from voting that was `seen` with this id, if with any. Where that is for the
    /// loss of its memory, `reason` says how it shows.
    pub(super) async fn doubt(
        &self,
        node: &Node,
        seen: Option<&NodeId>,
        reason: Option<&str>,
    ) -> Result<(), String> {
        let run_id = node.notes.run_id().ok_or("it is not verified yet")?;
        match self.call_node(node.index, &self.scripts.doubt(&run_id, seen, &new_id())).await? {
            MemberReply::Doubted(_) => {
                node.notes.forget();
                if let Some(reason) = reason {
                    self.membership.amnesia(node.index, reason);
                }
                Ok(())
            }
            other => Err(format!("it answered {other:?}")),
        }
    }

    /// The same for a node that knows nothing.
    pub(super) async fn doubt_blank(&self, node: usize) -> Done {
        if let Some(pause) = self.membership.pause(node, self.now_ms()) {
            return Done::Wait(pause);
        }
        let Some(blank) = self.nodes.get(node) else { return Done::Wait(BUSY) };
        let is_known = self.membership.details().cluster.is_some();
        let reason = is_known.then_some("it knows nothing of the quorum (any more)");
        let done = self.doubt(blank, None, reason).await;
        self.noted(node, done)
    }

    /// A new view, in which suspect nodes come back with what `f + 1` others have accepted. What
    /// the others remember is all that any majority can have granted: it has a node among them.
    pub(super) async fn bump(&self, back: &RejoinStep<'_>) -> Done {
        let due = match self.due(back) {
            Ok(due) => due,
            Err(wait) => return wait,
        };
        let accepted = self.accepted(back).await;
        if accepted.len() < majority(self.nodes.len()) {
            return self.back_off().await;
        }
        let accepted = accepted.into_iter().fold(Accepted::default(), Accepted::merge);
        if back.is_new() {
            self.membership.counters.view_bumps.inc();
            tracing::warn!(
                view = back.view.view,
                nodes = ?due.iter().map(|(at, _)| self.name(*at)).collect::<Vec<_>>(),
                wait_ms = accepted.wait_ms,
                "nodes rejoin under a new view"
            );
        }
        self.rejoin(back.view, &due, &accepted).await
    }

    /// As [`bump`](Self::bump), where most have forgotten: perhaps no node remembers a lease, so
    /// that the longest time to live that was requested here must pass too.
    pub(super) async fn recover(&self, back: &RejoinStep<'_>) -> Done {
        let due = match self.due(back) {
            Ok(due) => due,
            Err(wait) => return wait,
        };
        let bumped = self.accepted(back).await;
        if bumped.len() < back.voters.len() {
            return self.back_off().await;
        }
        let mut accepted = bumped.into_iter().fold(Accepted::default(), Accepted::merge);
        for (probe, _) in back.known.iter().filter_map(|known| known.found.as_ref()) {
            accepted = accepted.merge(remembered(probe));
        }
        accepted.floor = accepted.floor.max(self.floor());
        accepted.wait_ms = accepted.wait_ms.max(self.membership.longest_ttl_ms());
        if back.is_new() {
            self.membership.counters.view_bumps.inc();
            tracing::error!(
                view = back.view.view,
                floor = accepted.floor,
                wait_ms = accepted.wait_ms,
                "most nodes of the quorum have lost their memory: leases may be lost, and tokens \
                 continue above everything that can have been issued"
            );
        }
        self.rejoin(back.view, &due, &accepted).await
    }

    /// Suspect nodes whose turn it is to be brought back, or the pause until there is one.
    fn due(&self, back: &RejoinStep<'_>) -> Result<Vec<(usize, NodeId)>, Done> {
        let now_ms = self.now_ms();
        let mut due = Vec::new();
        let mut pause = None;
        for (at, id) in back.suspects {
            match self.membership.pause(*at, now_ms) {
                None => due.push((*at, id.clone())),
                Some(left) => pause = pause.min(Some(left)).or(Some(left)),
            }
        }
        if due.is_empty() { Err(Done::Wait(pause.unwrap_or(BUSY))) } else { Ok(due) }
    }

    /// Another server does the same, or a node became unreachable: the next probe shows which was
    /// quicker.
    async fn back_off(&self) -> Done {
        tokio::time::sleep(Duration::from_millis(random_below(40))).await;
        Done::Wait(BUSY)
    }

    async fn accepted(&self, back: &RejoinStep<'_>) -> Vec<Accepted> {
        let command = self.scripts.bump(back.view);
        let replies = back.voters.iter().map(|node| self.call_node(*node, &command));
        let bumped = |reply| match reply {
            Ok(MemberReply::Bumped(accepted)) => Some(accepted),
            _ => None,
        };
        join_all(replies).await.into_iter().filter_map(bumped).collect()
    }

    async fn rejoin(&self, view: &View, due: &[(usize, NodeId)], accepted: &Accepted) -> Done {
        let mut done = Done::Wait(Duration::MAX);
        for (at, id) in due {
            let run_id = self.nodes.get(*at).and_then(|node| node.notes.run_id());
            let Some(run_id) = run_id else { continue };
            let rejoin =
                Rejoin { view: view.clone(), node: id.clone(), run_id, accepted: accepted.clone() };
            let reply = match self.call_node(*at, &self.scripts.rejoin(&rejoin)).await {
                Ok(MemberReply::Done) => Ok(()),
                Ok(other) => Err(format!("it answered {other:?}")),
                Err(why) => Err(why),
            };
            done = done.and(self.noted(*at, reply));
        }
        done
    }

    /// Returns the outcome of a step; a failed one is retried after a pause.
    fn noted(&self, node: usize, done: Result<(), String>) -> Done {
        let now_ms = self.now_ms();
        let attempts = &mut self.membership.details().attempts;
        match done {
            Ok(()) => {
                attempts.done(node);
                Done::Changed
            }
            Err(why) => {
                attempts.failed(node, now_ms, why);
                Done::Wait(attempts.pause(node, now_ms).unwrap_or(BUSY))
            }
        }
    }
}

/// Highest tokens that a node still knows, whatever it has forgotten.
fn remembered(probe: &NodeProbe) -> Accepted {
    let Some(meta) = &probe.meta else { return Accepted::default() };
    Accepted {
        floor: meta.floor,
        p: probe.p.clone(),
        wait_ms: meta.covered_ms.saturating_sub(probe.now_ms),
    }
}
