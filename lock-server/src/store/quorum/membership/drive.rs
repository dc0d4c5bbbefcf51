//! The task that looks at the nodes and does what is to be done.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redis::Cmd;
use futures_util::future::join_all;
use redis_link::LinkState;
use service_kit::clock::Clock;
use service_kit::ids;
use tokio_util::sync::CancellationToken;

use super::returning::Return;
use super::{Membership, lines};
use crate::guards::Guards;
use crate::store::quorum::nodes::Node;
use crate::store::quorum::plan::{Action, Known, plan};
use crate::store::quorum::replies::{read_look, read_member};
use crate::store::quorum::rules::view::{Look, MemberReply, View};
use crate::store::quorum::rules::{Members, NodeId};
use crate::store::quorum::scripts::{Init, Scripts};
use crate::store::quorum::verify::fell;
use crate::store::redis::judge;
use lease::tokens;

/// How often the nodes are looked at when nothing seems to happen.
const CALM: Duration = Duration::from_secs(1);
/// And when something is to be done that others may do too.
pub(super) const BUSY: Duration = Duration::from_millis(100);
/// How many looks follow each other at once where each finds something to do.
const STEPS_MAX: usize = 16;
/// How long nodes have to answer at first before it is told that they do not.
const FIRST_WORD: Duration = Duration::from_secs(3);
/// How long a node has to say what it is.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the settings of the nodes are judged, in milliseconds.
const JUDGE_INTERVAL_MS: u64 = 5_000;

/// Who does it.
pub(in super::super) struct Driver {
    pub(in super::super) membership: Arc<Membership>,
    pub(in super::super) nodes: Vec<Arc<Node>>,
    pub(in super::super) scripts: Arc<Scripts>,
    pub(in super::super) clock: Arc<dyn Clock>,
    /// Whose marks a new quorum begins above.
    pub(in super::super) guards: Guards,
    /// An operator vouches that the quorum is new: its tokens begin at 1.
    pub(in super::super) is_fresh: bool,
}

/// What a step has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// Something changed: look again.
    Changed,
    /// Nothing to do before this time is over.
    Wait(Duration),
}

impl Done {
    /// What two steps have come to.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Changed, _) | (_, Self::Changed) => Self::Changed,
            (Self::Wait(one), Self::Wait(other)) => Self::Wait(one.min(other)),
        }
    }
}

impl Driver {
    /// Runs until `stop`.
    pub(in super::super) async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.work()).await;
    }

    async fn work(self) {
        self.all_were_tried().await;
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
    async fn all_were_tried(&self) {
        let tried = async {
            while !self.nodes.iter().all(|node| node.link.was_tried()) {
                tokio::select! {
                    () = self.membership.kick.notified() => {}
                    () = tokio::time::sleep(BUSY) => {}
                }
            }
        };
        let _ = tokio::time::timeout(FIRST_WORD, tried).await;
    }

    /// Looks at all nodes, tells what was found, and does what is to be done.
    async fn step(&self) -> Done {
        let learned = self.membership.learned.load(Ordering::Relaxed);
        let looks = join_all(self.nodes.iter().map(|node| self.look(node))).await;
        let (cluster, last_ids) = {
            let details = self.membership.details();
            (details.cluster.clone(), details.ids.clone())
        };
        let silent: Vec<Option<String>> = looks.iter().map(|l| l.as_ref().err().cloned()).collect();
        let known: Vec<Known> = looks
            .into_iter()
            .zip(last_ids)
            .map(|(look, last_id)| Known { found: look.ok(), last_id })
            .collect();
        let id = |known: &Known| Some(known.found.as_ref()?.0.meta.as_ref()?.node.clone());
        let ids: Vec<Option<NodeId>> = known.iter().map(id).collect();
        let plan = plan(&known, cluster.as_deref());
        self.membership.publish(&plan, &silent, &ids, learned);
        let mut done = Done::Wait(if plan.problem.is_some() { BUSY * 5 } else { CALM });
        for action in &plan.actions {
            done = done.and(self.act(action, &known).await);
        }
        done
    }

    /// What a node says of itself; one that has forgotten what this server saw is kept from voting.
    async fn look(&self, node: &Node) -> Result<(Look, String), String> {
        if let LinkState::Down(reason) = node.link.state() {
            return Err(reason);
        }
        let seen = node.notes.all();
        let run_id = node.notes.run_id().ok_or("it is not verified yet")?;
        let value =
            match tokio::time::timeout(LOOK_TIMEOUT, node.link.call(&self.scripts.look())).await {
                Ok(reply) => reply.map_err(|error| error.to_string())?,
                Err(_) => return Err("it does not answer".to_owned()),
            };
        let look = read_look(value).map_err(|error| error.to_string())?;
        if let Some(meta) = &look.meta
            && fell(&look, meta, &seen)
        {
            let reason = "it has accepted less than this server saw it accept";
            // What it said counts for nothing, whether or not it can be told so.
            let doubted = self.doubt(node, Some(&meta.node), Some(reason)).await;
            doubted.map_err(|why| format!("{reason}, and is to be kept from voting: {why}"))?;
            self.membership.look_again();
            return Err(reason.to_owned());
        }
        Ok((look, run_id))
    }

    async fn act(&self, action: &Action, known: &[Known]) -> Done {
        match action {
            Action::Begin { node, id, members } => self.begin(*node, id, members).await,
            Action::Init { node, id, view } => {
                let floors = metas(known).map(|meta| meta.floor);
                self.init(*node, id, view.clone(), floors.max().unwrap_or(0)).await
            }
            Action::Doubt { node } => self.doubt_blank(*node).await,
            Action::Ready { node, view, id } => {
                match self.tell(*node, &self.scripts.ready(view, id)).await {
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
                match self.tell(*node, &self.scripts.advance(view)).await {
                    Ok(MemberReply::Done) => Done::Changed,
                    _ => Done::Wait(BUSY),
                }
            }
            Action::Bump { view, voters, doubtful } => {
                self.bump(&Return { view, voters, doubtful, known }).await
            }
            Action::Recover { view, voters, doubtful } => {
                self.recover(&Return { view, voters, doubtful, known }).await
            }
        }
    }

    async fn begin(&self, node: usize, id: &NodeId, members: &Members) -> Done {
        let (cluster, n) = (ids::random_hex(8), self.nodes.len());
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
        match self.tell(node, &self.scripts.init(&init)).await {
            Ok(MemberReply::Done) => Done::Changed,
            _ => Done::Wait(BUSY),
        }
    }

    /// Above everything that can have been issued.
    pub(super) fn floor(&self) -> u64 {
        tokens::restart_floor(self.clock.wall_ms()).max(self.guards.highest())
    }

    pub(super) async fn tell(&self, node: usize, command: &Cmd) -> Result<MemberReply, String> {
        let node = self.nodes.get(node).ok_or("there is no such node")?;
        let reply = tokio::time::timeout(LOOK_TIMEOUT, node.link.call(command)).await;
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
            let look = judge::look(&node.link, &*self.clock, watch);
            if let Ok(Ok(findings)) = tokio::time::timeout(LOOK_TIMEOUT, look).await {
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
    known: &[Known],
) -> impl Iterator<Item = &crate::store::quorum::rules::view::Meta> {
    known.iter().filter_map(|known| known.found.as_ref()?.0.meta.as_ref())
}
