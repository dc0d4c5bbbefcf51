//! Grants that an engine has to confirm before they are acknowledged.

use fence_protocol::{LeaseId, LockName, Token};

use super::Machine;
use crate::Grant;

impl Machine {
    /// Makes every new grant one that its server may roll back, until it is confirmed and received.
    pub fn confirm_grants(&mut self) {
        self.confirm(0);
    }

    /// Confirms every grant with a token up to `token`.
    pub fn confirm(&mut self, token: u64) {
        if let Some(sharing) = &mut self.sharing {
            sharing.confirmed = sharing.confirmed.max(Some(token));
        }
    }

    /// Returns whether grants have to be confirmed.
    pub fn confirms(&self) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| sharing.confirmed.is_some())
    }

    /// Returns the highest token of the live leases of an id that may not be confirmed yet.
    pub fn unconfirmed(&self, locks: &[LockName], lease_id: LeaseId) -> Option<Token> {
        let confirmed = self.sharing.as_ref()?.confirmed?;
        let live = locks.iter().filter_map(|lock| self.holder(lock, lease_id));
        let new = live.filter(|holder| holder.deliverer.is_some());
        new.map(|holder| holder.token).filter(|token| token.get() > confirmed).max()
    }

    /// Returns the grants that another server made for a waiter of this one; `None` if there are
    /// none, or if a retry has received them.
    pub fn delivered(
        &mut self,
        now_ms: u64,
        locks: &[LockName],
        lease_id: LeaseId,
    ) -> Option<Vec<Grant>> {
        let own = Some(self.server());
        let held = |lock: &LockName| self.holder(lock, lease_id);
        if !locks.iter().all(|lock| held(lock).is_some_and(|holder| holder.deliverer == own)) {
            return None;
        }
        let mut grants = Vec::with_capacity(locks.len());
        for lock in locks {
            let holder = self.records.get_mut(lock)?.holders.get_mut(lease_id)?;
            self.sessions.refresh(now_ms, holder);
            grants.push(holder.grant(now_ms, 0));
            if std::mem::take(&mut holder.is_unread) {
                self.note_for_others(lock);
            }
        }
        Some(grants)
    }
}
