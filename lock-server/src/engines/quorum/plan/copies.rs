//! Nodes that are copies of others: a replica that was promoted, a folder of data that was copied.

use std::collections::BTreeMap;

use super::{Group, NodeStanding, Plan};
use crate::engines::quorum::rules::NodeId;

impl Group<'_> {
    /// Excludes nodes with one id: they have one memory, so that one of them has lost its own, and
    /// it cannot be known which. Neither votes, and neither is brought back, before an operator has
    /// said which is the copy.
    pub(super) fn leave_out_copies(&mut self, plan: &mut Plan) {
        let mut by_id: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for at in self.in_view().chain(self.suspects.iter().map(|(at, _)| *at)) {
            if let Some(meta) = self.meta(at) {
                by_id.entry(meta.node.clone()).or_default().push(at);
            }
        }
        for mut same in by_id.into_values().filter(|same| same.len() > 1) {
            same.sort_unstable();
            for list in [&mut self.ready, &mut self.joining, &mut self.new] {
                list.retain(|at| !same.contains(at));
            }
            self.suspects.retain(|(at, _)| !same.contains(at));
            for at in &same {
                plan.standings[*at] = Some(NodeStanding::Not(text(&same)));
            }
        }
    }
}

/// That nodes are copies of each other, for people.
pub(crate) fn text(same: &[usize]) -> String {
    let mut same = same.to_vec();
    same.sort_unstable();
    let numbers: Vec<String> = same.iter().map(|at| (at + 1).to_string()).collect();
    format!(
        "nodes {} have the same memory, so that one is a copy of the other and has lost what it knew \
         itself: delete the keys of this namespace at the copy",
        numbers.join(" and ")
    )
}
