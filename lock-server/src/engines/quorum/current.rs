//! The view in force.

use super::rules::view::View;
use super::rules::{Addressee, NodeId};

/// The view in force, and who votes in it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Current {
    pub(super) view: View,
    /// One a node: its id, where it belongs to the view and votes.
    pub(super) votes: Vec<Option<NodeId>>,
}

impl Current {
    /// Returns whether a node may be sent requests.
    pub(super) fn has(&self, node: usize) -> bool {
        self.addressee(node).is_some()
    }

    /// Returns the view and id that a script for a node names; `None` if the node does not vote.
    pub(super) fn addressee(&self, node: usize) -> Option<Addressee<'_>> {
        let id = self.votes.get(node)?.as_ref()?;
        Some(Addressee { view: &self.view, node: id })
    }
}
