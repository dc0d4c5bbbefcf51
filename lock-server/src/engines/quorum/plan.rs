//! Actions that make the nodes one quorum: pure, from the reply of each about itself.
//!
//! A node that may have forgotten votes comes back under a new view that `f + 1` other ready nodes
//! have accepted: each replied in that step what it had accepted, so that nothing proposed under
//! the old view can still reach a majority. The members of a view are named by ids, a new one for
//! each life of a node's memory, so that a node that was replaced does not vote beside the one in
//! its place.

pub(super) mod copies;
mod rejoin;

use std::collections::BTreeMap;

use super::rules::view::{Meta, NodeProbe, NodeState, View};
use super::rules::{Members, NodeId, majority};

/// Report of one node.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeReport {
    /// State that it reports, and the run id of its process; `None` if it does not reply.
    pub(super) found: Option<(NodeProbe, String)>,
    /// The id that it had when it last answered.
    pub(super) last_id: Option<NodeId>,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// All nodes are new, and these are their ids: begin a quorum with this one.
    Begin { node: usize, id: NodeId, members: Members },
    /// Give the quorum that was begun to another new node.
    Init { node: usize, id: NodeId, view: View },
    /// Keep it from voting: it knows nothing.
    Doubt { node: usize },
    /// Let it vote, as soon as what it may have forgotten is over.
    Ready { node: usize, view: View, id: NodeId },
    /// Take it into the view that it missed.
    Advance { node: usize, view: View },
    /// A new view, accepted by `voters`, in which the suspect nodes come back.
    Bump { view: View, voters: Vec<usize>, suspects: Vec<(usize, NodeId)> },
    /// As [`Action::Bump`] where most have lost their memory: no node can vouch for what was
    /// issued, so that the counters are lifted above everything that can have been.
    Recover { view: View, voters: Vec<usize>, suspects: Vec<(usize, NodeId)> },
}

/// Standing of a node, as this server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeStanding {
    /// It votes.
    Votes,
    /// It has rejoined, and votes in so many milliseconds.
    Joins(u64),
    /// Why it does not, and what is needed.
    Not(String),
}

/// The whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) actions: Vec<Action>,
    /// The view in force, where nodes vote in one.
    pub(super) view: Option<View>,
    /// One a node.
    pub(super) standings: Vec<Option<NodeStanding>>,
    /// Reason why a majority cannot be restored, for operators.
    pub(super) problem: Option<String>,
}

/// Decides from what every node says. `cluster` is the quorum that this server knows.
pub(super) fn plan(nodes: &[NodeReport], cluster: Option<&str>) -> Plan {
    let known = cluster;
    let mut plan = Plan { standings: vec![None; nodes.len()], ..Plan::default() };
    let Some(cluster) = choose(nodes, cluster) else {
        begin(nodes, &mut plan);
        return plan;
    };
    let mut group = Group::new(nodes, &cluster, &mut plan);
    group.trusted |= known == Some(&cluster);
    group.leave_out_copies(&mut plan);
    group.newest_view();
    group.leave_out_the_replaced(&mut plan);
    group.steps(&mut plan);
    plan
}

/// The quorum that most nodes belong to; the known one where no majority says so.
fn choose(nodes: &[NodeReport], known: Option<&str>) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (probe, _) in nodes.iter().filter_map(|node| node.found.as_ref()) {
        if let Some(meta) = &probe.meta
            && !meta.view.cluster.is_empty()
        {
            *counts.entry(&meta.view.cluster).or_default() += 1;
        }
    }
    let most = counts.iter().max_by_key(|(_, count)| **count);
    match (most, known) {
        (Some((cluster, count)), _) if *count >= majority(nodes.len()) => {
            Some((*cluster).to_owned())
        }
        (_, Some(known)) => Some(known.to_owned()),
        (most, None) => most.map(|(cluster, _)| (*cluster).to_owned()),
    }
}

/// No node knows a quorum.
fn begin(nodes: &[NodeReport], plan: &mut Plan) {
    let found: Vec<_> = nodes.iter().filter_map(|node| node.found.as_ref()).collect();
    for (at, node) in nodes.iter().enumerate() {
        plan.standings[at] = node.found.as_ref().map(|_| NodeStanding::Not("it is new".to_owned()));
    }
    if found.len() < nodes.len() {
        plan.problem = Some(format!(
            "{} of {} nodes answer, and none of them belongs to a quorum: a new quorum begins when \
             all of its nodes answer, because one that does not may know of tokens",
            found.len(),
            nodes.len()
        ));
        return;
    }
    // Each first gets an id; every server then sees the same ones, and begins with the same node.
    let ids: Vec<Option<NodeId>> =
        found.iter().map(|(probe, _)| probe.meta.as_ref().map(|meta| meta.node.clone())).collect();
    for (node, _) in ids.iter().enumerate().filter(|(_, id)| id.is_none()) {
        plan.actions.push(Action::Doubt { node });
    }
    if plan.actions.is_empty() {
        let ids: Vec<NodeId> = ids.into_iter().flatten().collect();
        let Some((node, id)) = ids.iter().enumerate().min_by_key(|(_, id)| *id) else { return };
        let id = id.clone();
        let members = ids.iter().cloned().collect();
        plan.actions.push(Action::Begin { node, id, members });
    }
}

/// The nodes that belong to one quorum, or could.
struct Group<'a> {
    nodes: &'a [NodeReport],
    cluster: &'a str,
    n: usize,
    ready: Vec<usize>,
    joining: Vec<usize>,
    new: Vec<usize>,
    suspects: Vec<(usize, NodeId)>,
    /// Answering, and without any memory.
    blank: Vec<usize>,
    silent: Vec<usize>,
    view: u64,
    members: Members,
    /// The highest number of a view that any node knows, also a suspect one.
    highest: u64,
    /// Number of nodes whose reply says that they belong to it.
    witnesses: usize,
    /// True if this server knows the quorum, or a majority says so: one node alone may be another
    /// quorum's, named by mistake, and then it must be left to that.
    trusted: bool,
}

impl<'a> Group<'a> {
    fn new(nodes: &'a [NodeReport], cluster: &'a str, plan: &mut Plan) -> Self {
        let mut group = Self {
            nodes,
            cluster,
            n: nodes.len(),
            ready: Vec::new(),
            joining: Vec::new(),
            new: Vec::new(),
            suspects: Vec::new(),
            blank: Vec::new(),
            silent: Vec::new(),
            view: 0,
            members: Members::default(),
            highest: 0,
            witnesses: 0,
            trusted: false,
        };
        for (at, node) in nodes.iter().enumerate() {
            plan.standings[at] = group.place(at, node);
        }
        group.trusted = group.witnesses >= majority(group.n);
        group
    }

    fn place(&mut self, at: usize, node: &NodeReport) -> Option<NodeStanding> {
        let Some((probe, _)) = &node.found else {
            self.silent.push(at);
            return None;
        };
        let Some(meta) = &probe.meta else {
            self.blank.push(at);
            return Some(NodeStanding::Not("it is new, or has lost its memory".to_owned()));
        };
        let theirs = &meta.view;
        if !theirs.cluster.is_empty() && theirs.cluster != self.cluster {
            return Some(NodeStanding::Not(format!(
                "it belongs to another quorum ({}, not {}): correct --store, or, to use it here, \
                 delete its keys of this namespace",
                theirs.cluster, self.cluster
            )));
        }
        if !theirs.cluster.is_empty() && theirs.n != self.n {
            return Some(NodeStanding::Not(format!(
                "it belongs to a quorum of {} nodes, and --store names {}",
                theirs.n, self.n
            )));
        }
        self.highest = self.highest.max(theirs.view);
        self.witnesses += usize::from(!theirs.cluster.is_empty());
        Some(match meta.state {
            NodeState::Ready => {
                self.ready.push(at);
                NodeStanding::Votes
            }
            NodeState::New => {
                self.new.push(at);
                NodeStanding::Not("its quorum has not begun yet".to_owned())
            }
            NodeState::Joining => {
                self.joining.push(at);
                NodeStanding::Joins(meta.ready_at_ms.saturating_sub(probe.now_ms))
            }
            NodeState::Doubt => {
                self.suspects.push((at, meta.node.clone()));
                NodeStanding::Not(
                    "it may have forgotten votes, and has not rejoined yet".to_owned(),
                )
            }
        })
    }

    fn meta(&self, at: usize) -> Option<&Meta> {
        self.nodes[at].found.as_ref()?.0.meta.as_ref()
    }

    fn in_view(&self) -> impl Iterator<Item = usize> {
        self.ready.iter().chain(&self.joining).chain(&self.new).copied()
    }

    /// The newest view that any node is in.
    fn newest_view(&mut self) {
        let mut views: BTreeMap<(u64, &Members), usize> = BTreeMap::new();
        for meta in self.in_view().filter_map(|at| self.meta(at)) {
            *views.entry((meta.view.view, &meta.view.members)).or_default() += 1;
        }
        // Two servers may give a new view the same number; where neither has enough, the next has.
        let newest = views.iter().max_by_key(|((view, _), count)| (*view, **count));
        if let Some(((view, members), _)) = newest {
            (self.view, self.members) = (*view, (*members).clone());
        }
    }

    /// A node that has its memory and is not of the newest view was replaced while it was away, or
    /// by a lock server that names another one: it does not vote beside the one in its place, and
    /// it does not take the place back.
    fn leave_out_the_replaced(&mut self, plan: &mut Plan) {
        let replaced: Vec<usize> = self
            .in_view()
            .filter(|at| !self.is_member(*at))
            .filter(|at| self.meta(*at).is_some_and(|meta| meta.view.view < self.view))
            .collect();
        for list in [&mut self.ready, &mut self.joining, &mut self.new] {
            list.retain(|at| !replaced.contains(at));
        }
        for at in replaced {
            plan.standings[at] = Some(NodeStanding::Not(format!(
                "another node has taken its place in view {}: correct --store; or, to use it again \
                 as a new node, delete its keys of this namespace",
                self.view
            )));
        }
    }

    /// The view in force.
    fn view(&self) -> View {
        View {
            cluster: self.cluster.to_owned(),
            n: self.n,
            view: self.view,
            members: self.members.clone(),
        }
    }

    fn steps(&mut self, plan: &mut Plan) {
        if !self.ready.is_empty() && self.trusted {
            plan.view = Some(self.view());
        }
        if self.ready.is_empty() && self.joining.is_empty() && !self.new.is_empty() {
            self.finish_begin(plan);
            if !plan.actions.is_empty() || plan.problem.is_some() {
                return;
            }
        }
        self.follow(plan);
        self.rejoin_suspects(plan);
    }

    /// Finishes a quorum that was begun while none of its nodes votes yet: gives it to the rest,
    /// then lets all vote.
    fn finish_begin(&self, plan: &mut Plan) {
        for (node, id) in self.suspects.iter().filter(|(_, id)| self.members.contains(id)) {
            plan.actions.push(Action::Init { node: *node, id: id.clone(), view: self.view() });
        }
        if plan.actions.is_empty() && self.new.len() < majority(self.n) {
            plan.problem = Some(format!(
                "the quorum was begun and {} of its {} nodes know of it: start the others",
                self.new.len(),
                self.n
            ));
        }
    }

    /// Takes nodes that missed a view into it.
    fn follow(&self, plan: &mut Plan) {
        for at in self.in_view() {
            let Some(meta) = self.meta(at) else { continue };
            if meta.view.view < self.view {
                plan.actions.push(Action::Advance { node: at, view: self.view() });
            }
            if meta.state != NodeState::Ready {
                let id = meta.node.clone();
                plan.actions.push(Action::Ready { node: at, view: self.view(), id });
            }
        }
    }

    fn is_member(&self, at: usize) -> bool {
        self.meta(at).is_some_and(|meta| self.members.contains(&meta.node))
    }

    fn all_answer(&self) -> bool {
        let found = self.ready.len() + self.joining.len() + self.new.len();
        found + self.suspects.len() + self.blank.len() == self.n
    }
}

#[cfg(test)]
mod tests;
