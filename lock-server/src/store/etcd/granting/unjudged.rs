//! The grants that this server has sent and not judged yet.
//!
//! A grant is told by the call that sent it only after its token was compared with what was seen
//! before. But the same id may be asked for again meanwhile, and finds the lease in etcd: whoever
//! tells it then judges it first, by what is noted here.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fence_protocol::{LeaseId, LockName};

use crate::store::etcd::offset::{Doubt, Seen};
use crate::store::etcd::values::HeldAt;
use crate::store::etcd::wire::Header;

/// From how many on those are dropped whose time is over.
const MANY: usize = 1_024;

/// Grants that are on their way, or of which it is not known what became of them.
#[derive(Debug, Default)]
pub(in crate::store::etcd) struct Unjudged {
    sent: Mutex<HashMap<(LockName, LeaseId), Sent>>,
}

#[derive(Debug)]
struct Sent {
    /// What was seen when the lock was read that the grant was decided by: a lease that was granted
    /// before has a lower revision, and every one that this grant makes a higher.
    read_at: Header,
    /// How many transactions are on their way.
    count: usize,
    /// Until when it is kept without any; 0 where it need not be.
    until_ms: u64,
    /// The revision of a grant that is in doubt, until it is taken back.
    doubt: Option<(u64, Doubt)>,
}

impl Sent {
    fn is_needed(&self, now_ms: u64) -> bool {
        self.count > 0 || self.doubt.is_some() || now_ms < self.until_ms
    }
}

impl Unjudged {
    fn sent(&self) -> MutexGuard<'_, HashMap<(LockName, LeaseId), Sent>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A grant is about to be sent.
    pub(super) fn send(&self, lock: &LockName, id: LeaseId, read_at: &Header, now_ms: u64) {
        let mut sent = self.sent();
        if sent.len() >= MANY {
            sent.retain(|_, other| other.is_needed(now_ms));
        }
        let key = (lock.clone(), id);
        if sent.get(&key).is_some_and(|other| !other.is_needed(now_ms)) {
            sent.remove(&key);
        }
        let new = || Sent { read_at: read_at.clone(), count: 0, until_ms: 0, doubt: None };
        sent.entry(key).or_insert_with(new).count += 1;
    }

    /// What became of it is known.
    pub(super) fn judged(&self, lock: &LockName, id: LeaseId, now_ms: u64) {
        self.over(lock, id, 0, now_ms);
    }

    /// What became of it will not be known: it is judged when it is found, until this moment.
    pub(super) fn left_open(&self, lock: &LockName, id: LeaseId, until_ms: u64, now_ms: u64) {
        self.over(lock, id, until_ms, now_ms);
    }

    fn over(&self, lock: &LockName, id: LeaseId, until_ms: u64, now_ms: u64) {
        self.change(lock, id, now_ms, |one| {
            one.count = one.count.saturating_sub(1);
            one.until_ms = one.until_ms.max(until_ms);
        });
    }

    /// The grant that this revision made is in doubt. Nobody is told of it until it is taken back.
    pub(super) fn doubt(&self, lock: &LockName, id: LeaseId, revision: u64, doubt: Doubt) {
        if let Some(one) = self.sent().get_mut(&(lock.clone(), id)) {
            one.doubt = Some((revision, doubt));
        }
    }

    /// It was taken back.
    pub(super) fn taken_back(&self, lock: &LockName, id: LeaseId, now_ms: u64) {
        self.change(lock, id, now_ms, |one| one.doubt = None);
    }

    fn change(&self, lock: &LockName, id: LeaseId, now_ms: u64, how: impl FnOnce(&mut Sent)) {
        let (mut sent, key) = (self.sent(), (lock.clone(), id));
        let Some(one) = sent.get_mut(&key) else { return };
        how(one);
        if !one.is_needed(now_ms) {
            sent.remove(&key);
        }
    }

    /// Why a lease that was found in etcd must not be told, where a grant of its id is on its way.
    pub(super) fn doubt_of(
        &self,
        lock: &LockName,
        at: &HeldAt,
        cluster_id: u64,
        now_ms: u64,
    ) -> Option<Doubt> {
        let sent = self.sent();
        let one = sent.get(&(lock.clone(), at.held.lease_id))?;
        if let Some((_, doubt)) = one.doubt.filter(|(revision, _)| *revision == at.create_revision)
        {
            return Some(doubt);
        }
        let Header { cluster_id: was, revision, .. } = one.read_at;
        let seen = Seen { cluster_id: was, revision, ..Seen::default() };
        let found = Header { cluster_id, revision: at.create_revision, ..Header::default() };
        seen.doubt_of_writing(&found).filter(|_| one.is_needed(now_ms))
    }
}

#[cfg(test)]
mod tests;
