//! What became of a granting transaction whose answer was lost.

use fence_protocol::{LeaseId, LockName};

use super::{Granting, LEARN_MAX, LEARN_PAUSE, Try};
use crate::store::StoreError;
use crate::store::etcd::acquire::told;
use crate::store::etcd::txn::{Compare, On, Op, Txn};
use crate::store::etcd::values::{HeldAt, written};
use crate::store::etcd::view::View;
use crate::store::etcd::wire::Header;
use crate::store::etcd::{EtcdStore, millis, store_error};

impl Granting {
    /// Whether the transaction was done. Where it was not, it is seen to that it cannot be any more,
    /// so that the answer is final.
    pub(super) async fn read_back(&self, reason: String) -> Result<Try, StoreError> {
        let (store, lock) = (&self.store, &self.request.lock);
        let unknown = |why: String| {
            StoreError::Unknown(format!(
                "whether lock {lock} was granted is not known ({reason}; {why}); repeat the request \
                 with the same lease_id"
            ))
        };
        let until_ms = store.now_ms() + millis(LEARN_MAX);
        loop {
            let view = store.view_until(lock, self.request.lease_id, until_ms).await;
            let view = view.map_err(|error| unknown(error.to_string()))?;
            if let Some(known) = self.found(view).await? {
                return Ok(known);
            }
            let why = match self.fence().await {
                Ok(true) => return Err(self.never(&reason)),
                Ok(false) => "the lock changes all the time".to_owned(),
                Err(error) => error.to_string(),
            };
            if store.now_ms() >= until_ms {
                return Err(unknown(why));
            }
            tokio::time::sleep(LEARN_PAUSE).await;
        }
    }

    /// What a reading says for certain; `None` where the transaction may be done yet.
    async fn found(&self, view: View) -> Result<Option<Try>, StoreError> {
        let id = self.request.lease_id;
        if let Some(at) = view.held.clone().filter(|at| at.held.lease_id == id) {
            return self.found_live(at, view).await.map(Some);
        }
        let record = &view.record;
        if record.mod_revision == self.before.record.mod_revision {
            return Ok(None);
        }
        // Every grant writes the record, and this one compares it: it was done, and its lease has
        // ended, or it is never done. Where it was, the record may hang on its etcd lease.
        let granted = record.record.granted.as_ref().filter(|granted| granted.lease_id == id);
        if granted.is_none() && record.record.ended(id).is_none() {
            self.end_leases();
        }
        Ok(Some(Try::Changed(Box::new(view))))
    }

    /// The lease is there.
    async fn found_live(&self, at: HeldAt, view: View) -> Result<Try, StoreError> {
        let (store, lock) = (&self.store, &self.request.lock);
        if at.held.stamp != self.draft.held.stamp {
            // A repeat was faster, here or at another server: it has renewed the lease, on the same
            // etcd lease or on another, and told it.
            return Ok(Try::Changed(Box::new(view)));
        }
        let token = at.token()?;
        let header = Header { revision: at.create_revision, ..view.header };
        if let Some(doubt) = self.seen.doubt_of_grant(&header, token.get()) {
            self.undo(&at, doubt).await?;
            return Ok(Try::Anew);
        }
        store.inner.counter.saw_token(token);
        let remaining_ms =
            store.keep(lock, at.clone(), view.record, self.draft.leases, &self.terms);
        told(&at, remaining_ms).map(Try::Granted)
    }

    /// Writes the record as it was, which the transaction compares, where there is no holder: from
    /// then on etcd refuses it, however late it comes. Whether it was so.
    async fn fence(&self) -> Result<bool, StoreError> {
        let (store, lock, before) = (&self.store, &self.request.lock, &self.before.record);
        let keys = &store.inner.keys;
        let (holder, record) = (keys.holder(lock), keys.record(lock));
        let remembering = store.remembering().await.map_err(store_error)?;
        let on = if before.mod_revision > 0 { On::TheSame } else { On::Lease(remembering) };
        let txn = Txn {
            compare: vec![
                Compare::absent(&holder),
                Compare::unchanged(&record, before.mod_revision),
            ],
            success: vec![Op::put(&record, &written(&before.record), on)],
            failure: Vec::new(),
        };
        match store.inner.gateway.write_compared(&txn).await {
            Err(error) if error.is_no_lease() => {
                store.inner.remembering.forget(remembering);
                Ok(false)
            }
            reply => Ok(reply.map_err(store_error)?.succeeded),
        }
    }

    /// It was not done, and will not be.
    fn never(&self, reason: &str) -> StoreError {
        self.end_leases();
        StoreError::Unavailable(format!(
            "lock {} was not granted, and will not be: {reason}; try again",
            self.request.lock
        ))
    }

    /// Ends the etcd leases that nothing hangs on; those of a session are its own.
    fn end_leases(&self) {
        if !self.terms.is_bound() {
            let leases = self.draft.leases;
            self.store.revoke_later(vec![leases.holder, leases.record]);
        }
    }
}

impl EtcdStore {
    /// Reads a lock, again and again while etcd cannot be used: a new leader takes a second or two.
    async fn view_until(
        &self,
        lock: &LockName,
        lease_id: LeaseId,
        until_ms: u64,
    ) -> Result<View, StoreError> {
        loop {
            match self.view(lock, lease_id).await {
                Err(StoreError::Unavailable(_)) if self.now_ms() < until_ms => {
                    tokio::time::sleep(LEARN_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }
}
