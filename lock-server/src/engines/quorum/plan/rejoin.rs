//! Return of nodes that have forgotten.

use std::collections::BTreeSet;

use super::{Action, Group, Plan};
use crate::engines::quorum::rules::view::View;
use crate::engines::quorum::rules::{Members, NodeId, majority};

impl Group<'_> {
    /// Brings nodes that forgot back under a new view.
    pub(super) fn rejoin_suspects(&self, plan: &mut Plan) {
        if !self.trusted {
            if !self.all_answer() {
                return;
            }
            plan.problem = Some(format!(
                "{} of {} nodes belong to the quorum {}, and the others know nothing: where --store \
                 names a node of another quorum, correct it; where most nodes have lost their \
                 memory while no lock-server ran, delete the keys of this namespace at the rest, \
                 so that the quorum begins anew above everything that can have been issued",
                self.witnesses, self.n, self.cluster
            ));
            return;
        }
        plan.actions.extend(self.blank.iter().map(|at| Action::Doubt { node: *at }));
        let voters: Vec<usize> =
            self.ready.iter().copied().filter(|at| self.is_member(*at)).collect();
        let enough = voters.len() >= majority(self.n);
        let soon = voters.len() + self.joining.len() + self.new.len() >= majority(self.n);
        let forgot = self.suspects.len() + self.blank.len();
        if !enough && !soon && forgot > 0 && !self.all_answer() {
            plan.problem = Some(format!(
                "{} of {} nodes are known to have their memory, and not all of the others answer: tokens \
                 are issued again when a majority has it, or when all nodes answer",
                voters.len(),
                self.n
            ));
        }
        // Nodes that have just become suspect come with the next probe.
        if self.suspects.is_empty() || !plan.actions.is_empty() && !self.only_waits(plan) {
            return;
        }
        let suspects = self.suspects.clone();
        if enough {
            match self.members_with_suspects() {
                Some(members) => {
                    let view = self.rejoin_view(members);
                    plan.actions.push(Action::Bump { view, voters, suspects });
                }
                None => {
                    plan.problem = Some(
                        "a node waits to rejoin, and another one has not answered since this server \
                         started: which place the first one takes is known when that one answers"
                            .to_owned(),
                    );
                }
            }
        } else if !soon && self.all_answer() {
            let ids = self.in_view().filter_map(|at| Some(self.meta(at)?.node.clone()));
            let members = ids.chain(suspects.iter().map(|(_, id)| id.clone())).collect();
            let view = self.rejoin_view(members);
            plan.actions.push(Action::Recover { view, voters, suspects });
        }
    }

    fn only_waits(&self, plan: &Plan) -> bool {
        plan.actions.iter().all(|action| matches!(action, Action::Ready { .. }))
    }

    /// The view that the suspect nodes come back in: the one in force where it was made for them
    /// and they could not come yet, because they could not write or a reply was lost. A new one
    /// each time would have the others, and every request, chase views for as long as one node is
    /// in trouble. Under such an id a node has never voted, and it receives what the others have
    /// accepted by then, so that it makes no difference when it comes.
    fn rejoin_view(&self, members: Members) -> View {
        let waits = |(at, id): &(usize, NodeId)| {
            members.contains(id) && self.meta(*at).is_some_and(|meta| meta.view.view < self.view)
        };
        if members == self.members && self.suspects.iter().all(waits) {
            return self.view();
        }
        let view = self.highest.max(self.view) + 1;
        View { cluster: self.cluster.to_owned(), n: self.n, view, members }
    }

    /// The members of the next view: the trusted nodes of this one, and the suspect ones under
    /// their new ids. None where an old id may be that of a silent node or of a suspect one.
    fn members_with_suspects(&self) -> Option<Members> {
        let mut ids: BTreeSet<NodeId> = BTreeSet::new();
        let mut unknown = 0;
        for at in self.in_view() {
            ids.extend(self.meta(at).map(|meta| meta.node.clone()));
        }
        ids.extend(self.suspects.iter().map(|(_, id)| id.clone()));
        for at in &self.silent {
            match &self.nodes[*at].last_id {
                Some(id) if self.members.contains(id) => drop(ids.insert(id.clone())),
                _ => unknown += 1,
            }
        }
        let left: Vec<&NodeId> = self.members.iter().filter(|id| !ids.contains(id)).collect();
        if unknown == 0 {
            return Some(ids.into_iter().collect());
        }
        if left.len() == unknown {
            ids.extend(left.into_iter().cloned());
            return Some(ids.into_iter().collect());
        }
        None
    }
}
