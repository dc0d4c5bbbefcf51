//! The state that a session shares with its leases: the trust in the session, and each lease.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fence_protocol::wire::lock::{EndReason, LeaseReply};
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Ttl};
use tokio::sync::{Notify, watch};

use super::count::{CountDifference, ExpectedCount, LeaseCount};
use crate::late_release::WorkEnd;
use crate::trust::Trust;
use crate::{Error, LostReason, clock};

#[derive(Debug)]
pub(super) struct SessionState {
    pub(super) id: SessionId,
    pub(super) owner: Owner,
    pub(super) ttl: Ttl,
    pub(super) trust: Arc<Trust>,
    held: Mutex<Held>,
    /// Notified when a single lease is lost.
    changed: watch::Sender<()>,
    /// Notified when the server's count of leases differs from the client's.
    pub(super) count_mismatch: Notify,
}

#[derive(Debug, Default)]
struct Held {
    bonds: BTreeMap<(LockName, LeaseId), Arc<Bond>>,
    waits: usize,
    count: LeaseCount,
    /// The release of the last lease, if none is held or waited for.
    work_end: Option<WorkEnd>,
}

/// One lease of a session, and its end.
#[derive(Debug)]
pub(super) struct Bond {
    pub(super) grant: LeaseReply,
    /// Reason of its loss apart from the session, or its release.
    over: OnceLock<LostReason>,
}

/// Guard that counts waiting requests, one a lock, while it lives.
pub(super) struct WaitingRequests<'a>(&'a SessionState, usize);

impl SessionState {
    pub(super) fn new(id: SessionId, owner: Owner, ttl: Ttl, trust: Trust) -> Self {
        Self {
            id,
            owner,
            ttl,
            trust: Arc::new(trust),
            held: Mutex::default(),
            changed: watch::channel(()).0,
            count_mismatch: Notify::new(),
        }
    }

    fn held<T>(&self, act: impl FnOnce(&mut Held) -> T) -> T {
        act(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Checks that the session can be trusted now; `what` names the session or lock in the error.
    pub(super) fn check(&self, what: &impl std::fmt::Display) -> Result<(), Error> {
        let lost = self.trust.lost(clock::reading());
        lost.map_or(Ok(()), |reason| Err(Error::lease_lost(what, reason)))
    }

    /// Checks that the lease can be trusted now.
    pub(super) fn check_bond(&self, bond: &Bond) -> Result<(), Error> {
        let lock = &bond.grant.lock;
        self.check(lock)?;
        bond.over.get().map_or(Ok(()), |reason| Err(Error::lease_lost(lock, *reason)))
    }

    /// Waits until `check` fails, by the loss of the session or of one of its leases. Cancel-safe.
    pub(super) async fn until_lost(&self, check: impl Fn() -> Result<(), Error>) -> Error {
        let mut changed = self.changed.subscribe();
        loop {
            if let Err(error) = check() {
                return error;
            }
            tokio::select! {
                _ = self.trust.when_lost() => {}
                _ = changed.changed() => {}
            }
        }
    }

    pub(super) fn wait(&self, count: usize) -> WaitingRequests<'_> {
        self.held(|held| {
            held.waits += count;
            held.work_end = None;
            held.count.change();
        });
        WaitingRequests(self, count)
    }

    pub(super) fn hold(&self, grant: LeaseReply) -> Arc<Bond> {
        let key = (grant.lock.clone(), grant.lease_id);
        let bond = Arc::new(Bond { grant, over: OnceLock::new() });
        self.held(|held| {
            held.bonds.insert(key, Arc::clone(&bond));
            held.work_end = None;
            held.count.change();
        });
        bond
    }

    /// Records that this lease alone has ended.
    pub(super) fn let_go(&self, bond: &Bond, reason: LostReason) {
        let key = (bond.grant.lock.clone(), bond.grant.lease_id);
        let is_news = bond.over.set(reason).is_ok();
        let work_end = WorkEnd::now(&self.trust);
        self.held(|held| {
            let was_held = held.bonds.remove(&key).is_some();
            if was_held && held.bonds.is_empty() && held.waits == 0 {
                held.work_end = Some(work_end);
            }
            held.count.change();
        });
        if is_news && reason != LostReason::Ended(EndReason::Released) {
            tracing::info!(lock = %bond.grant.lock, %reason, "a lease of a session is lost");
        }
        self.changed.send_replace(());
    }

    pub(super) fn bonds(&self) -> Vec<Arc<Bond>> {
        self.held(|held| held.bonds.values().cloned().collect())
    }

    /// End of the work under the session: the release of its last lease, or now if it holds one.
    pub(super) fn work_end(&self) -> WorkEnd {
        let now = WorkEnd::now(&self.trust);
        self.held(|held| held.work_end.unwrap_or(now))
    }

    /// Number of leases and requests that the server should count.
    pub(super) fn expected(&self) -> ExpectedCount {
        self.held(|held| held.count.expect(held.bonds.len() + held.waits))
    }

    /// Compares the server's count with the one expected before the request.
    pub(super) fn compare(&self, counted: usize, expected: ExpectedCount) {
        if self.held(|held| held.count.is_mismatch(counted, expected)) {
            self.count_mismatch.notify_one();
        }
    }

    /// Result of the last comparison.
    pub(super) fn last(&self) -> CountDifference {
        self.held(|held| held.count.last())
    }

    /// Records that a probe found every lease live; `seen` was the last comparison when it began.
    pub(super) fn explain(&self, seen: CountDifference) {
        self.held(|held| held.count.explain(seen));
    }
}

impl Drop for WaitingRequests<'_> {
    fn drop(&mut self) {
        self.0.held(|held| {
            held.waits = held.waits.saturating_sub(self.1);
            held.count.change();
        });
    }
}
