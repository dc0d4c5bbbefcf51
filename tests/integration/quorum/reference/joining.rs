//! Transitions of a node into a quorum, into newer views, and back.

use super::Node;
use lock_server::engines::quorum::rules::view::{
    Accepted, FORMAT, MemberReply, Meta, NodeState, View,
};
use lock_server::engines::quorum::rules::{NodeId, Refusal};

pub(super) fn other_view(meta: &Meta) -> Refusal {
    Refusal::View { view: meta.view.view, members: meta.view.members.clone() }
}

fn stranger(meta: &Meta) -> MemberReply {
    MemberReply::Stranger(Some(meta.node.clone()))
}

/// Checks that the node belongs to the quorum of `view`.
fn same_quorum(meta: &Meta, view: &View) -> Result<(), Refusal> {
    if meta.view.cluster.is_empty() {
        Err(Refusal::NoMember)
    } else if (&meta.view.cluster, meta.view.n) != (&view.cluster, view.n) {
        Err(Refusal::Other { cluster: meta.view.cluster.clone(), n: meta.view.n })
    } else {
        Ok(())
    }
}

/// Into a newer view, or why not.
fn move_to(meta: &mut Meta, view: &View, may: &[NodeState]) -> Option<MemberReply> {
    if let Err(refusal) = same_quorum(meta, view) {
        return Some(MemberReply::Refused(refusal));
    } else if !may.contains(&meta.state) {
        return Some(MemberReply::Refused(Refusal::NotReady));
    }
    let now = meta.view.view;
    let then = view.view;
    if now > then || (now == then && meta.view.members != view.members) {
        return Some(MemberReply::Refused(other_view(meta)));
    } else if !view.members.contains(&meta.node) {
        return Some(stranger(meta));
    }
    meta.view.clone_from(view);
    None
}

impl Node {
    /// `init.lua`
    pub(in super::super) fn init(
        &mut self,
        view: &View,
        node: &NodeId,
        run_id: &str,
        floor: u64,
    ) -> MemberReply {
        let Some(meta) = &mut self.meta else { return MemberReply::Known };
        let is_unverified = meta.state == NodeState::Doubt;
        if is_unverified
            && meta.view.cluster.is_empty()
            && meta.node == *node
            && meta.run_id == run_id
        {
            meta.view.clone_from(view);
            meta.state = NodeState::New;
            meta.floor = floor;
            return MemberReply::Done;
        }
        match !is_unverified && meta.view == *view && meta.node == *node {
            true => MemberReply::Done,
            false => MemberReply::Known,
        }
    }

    /// `suspect.lua`
    pub(in super::super) fn doubt(
        &mut self,
        run_id: &str,
        seen: Option<&NodeId>,
        fresh: &NodeId,
    ) -> MemberReply {
        if let Some(meta) = &self.meta
            && meta.state == NodeState::Doubt
            && meta.run_id == run_id
        {
            return MemberReply::Doubted(meta.node.clone());
        }
        let own = self.meta.as_ref().map(|meta| &meta.node);
        if own != seen {
            return MemberReply::Stranger(own.cloned());
        }
        let meta = self.meta.get_or_insert_with(|| Meta {
            format: FORMAT,
            view: View::default(),
            node: fresh.clone(),
            state: NodeState::Doubt,
            run_id: String::new(),
            floor: 0,
            ready_at_ms: 0,
            covered_ms: 0,
        });
        meta.state = NodeState::Doubt;
        run_id.clone_into(&mut meta.run_id);
        meta.node = fresh.clone();
        MemberReply::Doubted(fresh.clone())
    }

    /// `adopt.lua`
    pub(in super::super) fn adopt(&mut self, old_run_id: &str, run_id: &str) -> MemberReply {
        let Some(meta) = &mut self.meta else {
            return MemberReply::Refused(Refusal::NoMember);
        };
        if meta.run_id == old_run_id {
            run_id.clone_into(&mut meta.run_id);
        } else if meta.run_id != run_id {
            return MemberReply::OtherRun(meta.run_id.clone());
        }
        MemberReply::Done
    }

    /// `bump.lua`
    pub(in super::super) fn bump(&mut self, now_ms: u64, view: &View) -> MemberReply {
        let Some(meta) = &mut self.meta else {
            return MemberReply::Refused(Refusal::NoMember);
        };
        if let Some(refusal) = move_to(meta, view, &[NodeState::Ready]) {
            return refusal;
        }
        MemberReply::Bumped(Accepted {
            floor: meta.floor,
            p: self.p.clone(),
            wait_ms: meta.covered_ms.saturating_sub(now_ms),
        })
    }

    /// `advance.lua`
    pub(in super::super) fn advance(&mut self, view: &View) -> MemberReply {
        let Some(meta) = &mut self.meta else {
            return MemberReply::Refused(Refusal::NoMember);
        };
        let may = [NodeState::Ready, NodeState::Joining, NodeState::New];
        move_to(meta, view, &may).unwrap_or(MemberReply::Done)
    }

    /// `rejoin.lua`
    pub(in super::super) fn rejoin(
        &mut self,
        now_ms: u64,
        view: &View,
        node: &NodeId,
        run_id: &str,
        accepted: &Accepted,
    ) -> MemberReply {
        let Some(meta) = &mut self.meta else {
            return MemberReply::Refused(Refusal::NoMember);
        };
        match same_quorum(meta, view) {
            Ok(()) | Err(Refusal::NoMember) => {}
            Err(refusal) => return MemberReply::Refused(refusal),
        }
        if meta.node != *node {
            return stranger(meta);
        } else if meta.state != NodeState::Doubt {
            return match meta.view == *view {
                true => MemberReply::Done,
                false => MemberReply::Refused(other_view(meta)),
            };
        } else if meta.run_id != run_id {
            return MemberReply::OtherRun(meta.run_id.clone());
        } else if meta.view.view >= view.view {
            return MemberReply::Refused(other_view(meta));
        }
        meta.view.clone_from(view);
        meta.state = NodeState::Joining;
        meta.floor = meta.floor.max(accepted.floor);
        meta.ready_at_ms = meta.covered_ms.max(now_ms + accepted.wait_ms);
        for (bucket, p) in &accepted.p {
            let known = self.p.entry(*bucket).or_default();
            *known = (*known).max(*p);
        }
        MemberReply::Done
    }

    /// `ready.lua`
    pub(in super::super) fn ready(
        &mut self,
        now_ms: u64,
        view: &View,
        node: &NodeId,
    ) -> MemberReply {
        let Some(meta) = &mut self.meta else {
            return MemberReply::Refused(Refusal::NoMember);
        };
        if let Err(refusal) = same_quorum(meta, view) {
            return MemberReply::Refused(refusal);
        } else if meta.node != *node {
            return stranger(meta);
        } else if meta.state == NodeState::Doubt {
            return MemberReply::Refused(Refusal::NotReady);
        } else if meta.view != *view {
            return MemberReply::Refused(other_view(meta));
        } else if meta.state != NodeState::Ready && now_ms < meta.ready_at_ms {
            return MemberReply::Wait(meta.ready_at_ms - now_ms);
        }
        meta.state = NodeState::Ready;
        MemberReply::Done
    }
}
