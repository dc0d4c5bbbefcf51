//! Membership: probes the nodes, carries out the [`plan`](super::plan), and reports their state.

mod attempts;
pub(super) mod drive;
mod lines;
mod rejoin;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use service_kit::health::{Health, Status};
use tokio::sync::{Notify, watch};

use super::counters::Counters;
use super::current::Current;
use super::plan::{NodeStanding, Plan};
use super::rules::view::View;
use super::rules::{Members, NodeId, majority};

use self::attempts::Attempts;

/// The readiness check of the whole.
const CHECK: &str = "redis-quorum";

/// A reason with the node that it is about, once.
pub(super) fn of_node(node: &str, reason: &str) -> String {
    if reason.contains(node) { reason.to_owned() } else { format!("{node}: {reason}") }
}

/// Membership as this server knows it.
#[derive(Debug)]
pub(super) struct Membership {
    current: RwLock<Option<Arc<Current>>>,
    details: Mutex<Details>,
    kick: Notify,
    /// Number of views that nodes reported between the probes.
    learned: AtomicU64,
    /// Number of finished probes.
    probes: watch::Sender<u64>,
    counters: Counters,
    health: Health,
    names: Vec<String>,
}

#[derive(Debug, Default)]
struct Details {
    /// The quorum that was known first; it changes only where a majority says so.
    cluster: Option<String>,
    ids: Vec<Option<NodeId>>,
    /// Why a node cannot be asked.
    reasons: Vec<Option<String>>,
    /// Findings on their settings.
    findings: Vec<Option<String>>,
    problem: Option<String>,
    /// That its URL leads to the node of another one, where it does; one a node.
    duplicates: Vec<Option<String>>,
    /// The quorum that this server began.
    began: Option<String>,
    longest_ttl_ms: u64,
    attempts: Attempts,
}

impl Membership {
    pub(super) fn new(names: Vec<String>, counters: Counters, health: Health) -> Self {
        let n = names.len();
        let details = Details {
            ids: vec![None; n],
            reasons: vec![Some("it has not answered yet".to_owned()); n],
            findings: vec![None; n],
            duplicates: vec![None; n],
            ..Details::default()
        };
        Self {
            current: RwLock::new(None),
            details: Mutex::new(details),
            kick: Notify::new(),
            learned: AtomicU64::new(0),
            probes: watch::channel(0).0,
            counters,
            health,
            names,
        }
    }

    fn details(&self) -> MutexGuard<'_, Details> {
        self.details.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The view to ask under.
    pub(super) fn current(&self) -> Option<Arc<Current>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A node answered that something is not as this server believes.
    pub(super) fn probe_soon(&self) {
        self.kick.notify_one();
    }

    /// Waits until the nodes were probed anew, for at most so long. Cancel-safe.
    pub(super) async fn settled(&self, patience: Duration) {
        let mut probes = self.probes.subscribe();
        probes.mark_unchanged();
        self.probe_soon();
        let _ = tokio::time::timeout(patience, probes.changed()).await;
    }

    /// Records a newer view that a node reported.
    pub(super) fn learn(&self, number: u64, members: Members) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &mut *current
            && known.view.view < number
        {
            let known = Arc::make_mut(known);
            known.view.view = number;
            for votes in &mut known.votes {
                votes.take_if(|id| !members.contains(id));
            }
            known.view.members = members;
            self.learned.fetch_add(1, Ordering::Relaxed);
        }
        drop(current);
        self.probe_soon();
    }

    /// The voting node that has this id, where the node at `index` was another one when it was last
    /// probed: it has been given the memory of that node.
    pub(super) fn is_copy(&self, index: usize, id: &NodeId) -> Option<usize> {
        let before = self.details().ids.get(index).cloned().flatten();
        before.filter(|before| before != id)?;
        let current = self.current()?;
        let other = current.votes.iter().position(|votes| votes.as_ref() == Some(id))?;
        (other != index).then_some(other)
    }

    /// Records that the URL of a node leads to another node, with the text to report.
    pub(super) fn record_duplicate(&self, node: usize, text: Option<String>) {
        if let Some(known) = self.details().duplicates.get_mut(node) {
            *known = text;
        }
    }

    /// That two URLs lead to one node, where they do.
    pub(super) fn duplicate(&self) -> Option<String> {
        self.details().duplicates.iter().flatten().next().cloned()
    }

    /// The id that a node had when it was last probed.
    pub(super) fn last_id(&self, node: usize) -> Option<NodeId> {
        self.details().ids.get(node).cloned().flatten()
    }

    /// This server begins a quorum, unless another one is quicker.
    fn began(&self, cluster: &str) {
        self.details().began = Some(cluster.to_owned());
    }

    /// Returns whether the quorum is the one that this server began.
    pub(super) fn has_begun(&self) -> bool {
        let details = self.details();
        details.began.is_some() && details.began == details.cluster
    }

    /// Follows the looks.
    pub(super) fn probes(&self) -> watch::Receiver<u64> {
        self.probes.subscribe()
    }

    /// Records the finding on the settings of a node.
    fn found(&self, node: usize, finding: Option<String>) {
        if let Some(known) = self.details().findings.get_mut(node) {
            *known = finding;
        }
    }

    /// A node was found to have lost its memory.
    pub(super) fn amnesia(&self, node: usize, reason: &str) {
        self.counters.amnesia.inc();
        let node = self.names.get(node).map_or("", String::as_str);
        tracing::warn!(
            node,
            reason,
            "a node of the quorum may have forgotten votes: it rejoins under a new view and does \
             not vote before every lease that it may have forgotten is over"
        );
    }

    /// Records the time to live of a requested lease. If a majority of nodes has lost its memory,
    /// a lost lease may have had the longest one.
    pub(super) fn saw_ttl(&self, ttl_ms: u64) {
        let mut details = self.details();
        details.longest_ttl_ms = details.longest_ttl_ms.max(ttl_ms);
    }

    /// Returns the pause of a node that refused the last step.
    fn pause(&self, node: usize, now_ms: u64) -> Option<Duration> {
        self.details().attempts.pause(node, now_ms)
    }

    fn longest_ttl_ms(&self) -> u64 {
        self.details().longest_ttl_ms
    }

    /// Why a node is not asked.
    pub(super) fn why_not(&self, node: usize) -> String {
        let details = self.details();
        let reason = details.reasons.get(node).cloned().flatten();
        let reason = reason.unwrap_or_else(|| "it does not vote".to_owned());
        of_node(self.names.get(node).map_or("", String::as_str), &reason)
    }

    /// Returns the number of nodes that vote, and why the others do not.
    pub(super) fn summary(&self) -> (usize, String) {
        let voting = self.current().map_or(0, |c| c.votes.iter().flatten().count());
        let details = self.details();
        let mut reasons: Vec<String> = details.problem.iter().cloned().collect();
        for (name, reason) in self.names.iter().zip(&details.reasons) {
            reasons.extend(reason.as_ref().map(|reason| of_node(name, reason)));
        }
        (voting, reasons.join("; "))
    }

    /// Takes over the result of a probe that began when so many views were learned.
    fn publish(
        &self,
        plan: &Plan,
        silent: &[Option<String>],
        ids: &[Option<NodeId>],
        learned: u64,
    ) {
        let mut details = self.details();
        for (at, id) in ids.iter().enumerate() {
            if id.is_some() {
                details.ids[at].clone_from(id);
            }
        }
        let mut votes = Vec::new();
        for (at, standing) in plan.standings.iter().enumerate() {
            let votes_now = *standing == Some(NodeStanding::Votes);
            let is_member = |id: &&NodeId| {
                votes_now && plan.view.as_ref().is_some_and(|view| view.members.contains(id))
            };
            votes.push(ids[at].as_ref().filter(is_member).cloned());
            if matches!(standing, Some(NodeStanding::Votes | NodeStanding::Joins(_))) {
                details.attempts.done(at);
            }
            details.reasons[at] = match standing {
                Some(NodeStanding::Votes) => None,
                Some(NodeStanding::Joins(ms)) => Some(lines::joins(*ms)),
                Some(NodeStanding::Not(why)) => Some(lines::is_not(why, details.attempts.why(at))),
                None => silent[at].clone().or_else(|| Some("it does not answer".to_owned())),
            };
        }
        details.problem.clone_from(&plan.problem);
        if let Some(view) = &plan.view {
            details.cluster = Some(view.cluster.clone());
        }
        drop(details);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        // After a loss of all memory the numbers may begin anew, so the findings count, unless a
        // node reported a newer view during this probe.
        let has_learned = self.learned.load(Ordering::Relaxed) != learned;
        let is_older = |view: &View| {
            current.as_ref().is_some_and(|known| {
                has_learned && known.view.cluster == view.cluster && known.view.view > view.view
            })
        };
        match &plan.view {
            // A node reported a newer view meanwhile; the next probe finds it too.
            Some(found) if is_older(found) => {}
            Some(view) => {
                let found = Current { view: view.clone(), votes };
                // Operations under the same one go in one call.
                if current.as_deref() != Some(&found) {
                    *current = Some(Arc::new(found));
                }
            }
            None => {
                if let Some(known) = &mut *current {
                    Arc::make_mut(known).votes = votes;
                }
            }
        }
        drop(current);
        self.probes.send_modify(|count| *count += 1);
    }

    /// Updates `/readyz`.
    fn show(&self) {
        let details = self.details();
        let checks: Vec<(String, Status)> = self
            .names
            .iter()
            .enumerate()
            .map(|(at, name)| {
                let text = details.reasons[at].clone().or_else(|| details.findings[at].clone());
                let status = text.map_or(Status::Ok, Status::Warn);
                (format!("{CHECK} node {} {name}", at + 1), status)
            })
            .collect();
        drop(details);
        for (name, status) in checks {
            self.health.set(name, status);
        }
        let (voting, reasons) = self.summary();
        let n = self.names.len();
        let needed = majority(self.names.len());
        let status = if voting >= needed {
            Status::Ok
        } else {
            Status::Failing(format!(
                "{voting} of {n} nodes vote, and {needed} are needed: {reasons}"
            ))
        };
        self.health.set(CHECK, status);
    }
}
