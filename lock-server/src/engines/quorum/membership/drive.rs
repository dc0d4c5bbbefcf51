//! The task that probes the nodes and does what is to be done.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redis::Cmd;
use futures_util::future::join_all;
use redis_link::LinkState;
use service_kit::clock::Clock;
use service_kit::ids;
use tokio_util::sync::CancellationToken;

use super::{Membership, lines};
use crate::engines::quorum::nodes::Node;
use crate::engines::quorum::plan::{Action, NodeReport, plan};
use crate::engines::quorum::replies::{read_member, read_probe};
use crate::engines::quorum::rules::view::{MemberReply, NodeProbe, View};
use crate::engines::quorum::rules::{Members, NodeId};
use crate::engines::quorum::scripts::{Init, Scripts};
use crate::engines::quorum::verify::fell;
use crate::engines::redis::judge;
use crate::guards::Guards;
use lease::tokens;

/// Interval of probes without changes.
const CALM: Duration = Duration::from_secs(1);
/// And when something is to be done that others may do too.
pub(super) const BUSY: Duration = Duration::from_millis(100);
/// Probes that follow each other at once while each finds work.
const STEPS_MAX: usize = 16;
/// Time that nodes have for their first reply before it is reported that they are silent.
const FIRST_REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// Time-out of the reply to a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which the settings of the nodes are verified, in milliseconds.
const JUDGE_INTERVAL_MS: u64 = 5_000;

/// Task that keeps the membership.
pub(crate) struct Driver {
    pub(crate) membership: Arc<Membership>,
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Whose marks a new quorum begins above.
    pub(crate) guards: Guards,
    /// An operator vouches that the quorum is new: its tokens begin at 1.
    pub(crate) is_fresh: bool,
}

/// Whom a view brings back.
pub(super) struct RejoinStep<'a> {
    pub(super) view: &'a View,
    /// Nodes that accept the view.
    pub(super) voters: &'a [usize],
    pub(super) suspects: &'a [(usize, NodeId)],
    /// Reports of all nodes.
    pub(super) known: &'a [NodeReport],
}

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// Something changed: probe again.
    Changed,
    /// Nothing to do before this time is over.
    Wait(Duration),
}

impl Done {
    /// Combines the outcomes of two steps.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Changed, _) | (_, Self::Changed) => Self::Changed,
            (Self::Wait(one), Self::Wait(other)) => Self::Wait(one.min(other)),
        }
    }
}

impl Driver {
    /// Runs until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.work()).await;
    }

    async fn work(self) {
        self.await_first_replies().await;
        let mut clocks = vec![judge::ClockWatch::default(); self.nodes.len()];
        let mut judged_ms = None;
        loop {
            let mut pause = BUSY;
            for _ in 0..STEPS_MAX {
                match self.step().await {
                    Done::Changed => {}
                    Done::Wait(wait) => {
                        pause = wait;
                        break;
                    }
                }
            }
            self.membership.show();
            let now_ms = self.clock.monotonic_ms();
            if judged_ms.is_none_or(|last| now_ms - last >= JUDGE_INTERVAL_MS) {
                judged_ms = Some(now_ms);
                self.judge(&mut clocks).await;
            }
            tokio::select! {
                () = self.membership.kick.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Waits for the first word of every node, or for so long that one is seen not to answer.
    async fn await_first_replies(&self) {
        let tried = async {
            while !self.nodes.iter().all(|node| node.link.was_tried()) {
                tokio::select! {
                    () = self.membership.kick.notified() => {}
                    () = tokio::time::sleep(BUSY) => {}
                }
            }
        };
        let _ = tokio::time::timeout(FIRST_REPLY_TIMEOUT, tried).await;
    }

    /// Probes all nodes, reports the findings, and carries out the plan.
    async fn step(&self) -> Done {
        let learned = self.membership.learned.load(Ordering::Relaxed);
        let probes = join_all(self.nodes.iter().map(|node| self.probe(node))).await;
        let (cluster, last_ids) = {
            let details = self.membership.details();
            (details.cluster.clone(), details.ids.clone())
        };
        let silent: Vec<Option<String>> =
            probes.iter().map(|l| l.as_ref().err().cloned()).collect();
        let known: Vec<NodeReport> = probes
            .into_iter()
            .zip(last_ids)
            .map(|(probe, last_id)| NodeReport { found: probe.ok(), last_id })
            .collect();
        let id = |known: &NodeReport| Some(known.found.as_ref()?.0.meta.as_ref()?.node.clone());
        let ids: Vec<Option<NodeId>> = known.iter().map(id).collect();
        let plan = plan(&known, cluster.as_deref());
        self.membership.publish(&plan, &silent, &ids, learned);
        let mut done = Done::Wait(if plan.problem.is_some() { BUSY * 5 } else { CALM });
        for action in &plan.actions {
            done = done.and(self.act(action, &known).await);
        }
        done
    }

    /// Returns the state that a node reports; one that has forgotten what this server saw is
    /// stopped from voting.
    async fn probe(&self, node: &Node) -> Result<(NodeProbe, String), String> {
        if let LinkState::Down(reason) = node.link.state() {
            return Err(reason);
        }
        let seen = node.notes.all();
        let run_id = node.notes.run_id().ok_or("it is not verified yet")?;
        let value = match tokio::time::timeout(PROBE_TIMEOUT, node.link.call(&self.scripts.probe()))
            .await
        {
            Ok(reply) => reply.map_err(|error| error.to_string())?,
            Err(_) => return Err("it does not answer".to_owned()),
        };
        let probe = read_probe(value).map_err(|error| error.to_string())?;
        if let Some(meta) = &probe.meta
            && fell(&probe, meta, &seen)
        {
            let reason = "it has accepted less than this server saw it accept";
            // Its report is ignored, whether or not the node can be stopped.
            let doubted = self.doubt(node, Some(&meta.node), Some(reason)).await;
            doubted.map_err(|why| format!("{reason}, and is to be kept from voting: {why}"))?;
            self.membership.probe_soon();
            return Err(reason.to_owned());
        }
        Ok((probe, run_id))
    }

    async fn act(&self, action: &Action, known: &[NodeReport]) -> Done {
        match action {
            Action::Begin { node, id, members } => self.begin(*node, id, members).await,
            Action::Init { node, id, view } => {
                let floors = metas(known).map(|meta| meta.floor);
                self.init(*node, id, view.clone(), floors.max().unwrap_or(0)).await
            }
            Action::Doubt { node } => self.doubt_blank(*node).await,
            Action::Ready { node, view, id } => {
                match self.call_node(*node, &self.scripts.ready(view, id)).await {
                    Ok(MemberReply::Done) => {
                        tracing::info!(node = self.name(*node), view = view.view, "the node votes");
                        Done::Changed
                    }
                    Ok(MemberReply::Wait(ms)) => {
                        Done::Wait(Duration::from_millis(ms.saturating_add(1)).min(CALM))
                    }
                    _ => Done::Wait(BUSY),
                }
            }
            Action::Advance { node, view } => {
                match self.call_node(*node, &self.scripts.advance(view)).await {
                    Ok(MemberReply::Done) => Done::Changed,
                    _ => Done::Wait(BUSY),
                }
            }
            Action::Bump { view, voters, suspects } => {
                self.bump(&RejoinStep { view, voters, suspects, known }).await
            }
            Action::Recover { view, voters, suspects } => {
                self.recover(&RejoinStep { view, voters, suspects, known }).await
            }
        }
    }

    async fn begin(&self, node: usize, id: &NodeId, members: &Members) -> Done {
        let cluster = ids::random_hex(8);
        let n = self.nodes.len();
        let view = View { cluster, n, view: 1, members: members.clone() };
        let floor = if self.is_fresh { 0 } else { self.floor() };
        tracing::info!(
            quorum = view.cluster,
            floor,
            "all nodes are new: a quorum begins, and its tokens are above the floor"
        );
        self.membership.began(&view.cluster);
        self.init(node, id, view, floor).await
    }

    async fn init(&self, node: usize, id: &NodeId, view: View, floor: u64) -> Done {
        let run_id = self.nodes.get(node).and_then(|node| node.notes.run_id());
        let Some(run_id) = run_id else { return Done::Wait(BUSY) };
        let init = Init { view, node: id.clone(), run_id, floor };
        match self.call_node(node, &self.scripts.init(&init)).await {
            Ok(MemberReply::Done) => Done::Changed,
            _ => Done::Wait(BUSY),
        }
    }

    /// Above everything that can have been issued.
    pub(super) fn floor(&self) -> u64 {
        tokens::restart_floor(self.clock.wall_ms()).max(self.guards.highest())
    }

    pub(super) async fn call_node(
        &self,
        node: usize,
        command: &Cmd,
    ) -> Result<MemberReply, String> {
        let node = self.nodes.get(node).ok_or("there is no such node")?;
        let reply = tokio::time::timeout(PROBE_TIMEOUT, node.link.call(command)).await;
        let reply = match reply {
            Ok(Ok(value)) => read_member(value).map_err(|error| error.to_string()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it does not answer".to_owned()),
        };
        reply.inspect_err(|reason| {
            tracing::debug!(node = self.name(node.index), reason, "a step was not done");
        })
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    pub(super) fn name(&self, node: usize) -> String {
        self.nodes.get(node).map_or_else(String::new, |node| node.link.target().to_string())
    }

    /// Judges the settings and the clocks of the nodes.
    async fn judge(&self, clocks: &mut [judge::ClockWatch]) {
        for (node, watch) in self.nodes.iter().zip(clocks) {
            if matches!(node.link.state(), LinkState::Down(_)) {
                continue;
            }
            let probe = judge::probe(&node.link, &*self.clock, watch);
            if let Ok(Ok(findings)) = tokio::time::timeout(PROBE_TIMEOUT, probe).await {
                if lines::is_lax(&findings) {
                    node.notes.is_lax();
                }
                self.membership.found(node.index, lines::findings(&findings));
            }
        }
        self.membership.show();
    }
}

pub(super) fn metas(
    known: &[NodeReport],
) -> impl Iterator<Item = &crate::engines::quorum::rules::view::Meta> {
    known.iter().filter_map(|known| known.found.as_ref()?.0.meta.as_ref())
}
