//! Grants whose token is in doubt: they are taken back before anybody hears of them.

use fence_protocol::LockName;

use super::{LEARN_MAX, LEARN_PAUSE};
use crate::store::StoreError;
use crate::store::etcd::offset::Doubt;
use crate::store::etcd::txn::{Compare, On, Op, Txn};
use crate::store::etcd::values::{HeldAt, Record, written};
use crate::store::etcd::wire::Header;
use crate::store::etcd::{EtcdStore, store_error};

impl EtcdStore {
    /// Whether a lease that was found in etcd may be told, for all that is known of grants that this
    /// server has sent. One that may not is taken back.
    pub(in crate::store::etcd) async fn may_be_told(
        &self,
        lock: &LockName,
        at: &HeldAt,
        header: &Header,
    ) -> Result<bool, StoreError> {
        let unjudged = &self.inner.unjudged;
        match unjudged.doubt_of(lock, at, header.cluster_id, self.now_ms()) {
            None => Ok(true),
            Some(doubt) => {
                self.inner.counter.forget();
                self.take_back(lock, at, doubt).await?;
                Ok(false)
            }
        }
    }

    /// Undoes a grant that nobody was told of, as if it had never been. It is tried until it is
    /// certain, also when the caller has left, and nobody is told of the grant until then.
    pub(super) async fn take_back(
        &self,
        lock: &LockName,
        at: &HeldAt,
        doubt: Doubt,
    ) -> Result<(), StoreError> {
        let (id, revision) = (at.held.lease_id, at.create_revision);
        self.inner.unjudged.doubt(lock, id, revision, doubt);
        tracing::warn!(%lock, %doubt, "a grant is in doubt and is taken back; verifying etcd");
        let (store, name, doubted) = (self.clone(), lock.clone(), at.clone());
        let stop = self.inner.tasks.shutdown_token();
        let work = self.inner.tasks.spawn(async move {
            stop.run_until_cancelled(store.take_back_at_last(&name, &doubted)).await
        });
        match tokio::time::timeout(LEARN_MAX, work).await {
            Ok(Ok(Some(()))) => Ok(()),
            _ => Err(StoreError::Unknown(format!(
                "the grant of lock {lock} is in doubt, and is not taken back yet; repeat the request \
                 with the same lease_id"
            ))),
        }
    }

    async fn take_back_at_last(&self, lock: &LockName, doubted: &HeldAt) {
        loop {
            match self.take_back_once(lock, doubted).await {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => tracing::debug!(%lock, %error, "a grant is not taken back yet"),
            }
            tokio::time::sleep(LEARN_PAUSE).await;
        }
        self.inner.unjudged.taken_back(lock, doubted.held.lease_id, self.now_ms());
    }

    /// Whether the grant is gone.
    async fn take_back_once(&self, lock: &LockName, doubted: &HeldAt) -> Result<bool, StoreError> {
        let id = doubted.held.lease_id;
        let view = self.view(lock, id).await?;
        let Some(at) = view.held.filter(|at| is_same_grant(at, doubted)) else { return Ok(true) };
        let keys = &self.inner.keys;
        let (holder, record) = (keys.holder(lock), keys.record(lock));
        let after = view.record.record.without(id);
        let is_empty = after == Record::default();
        let mut compare = self.same(lock, &at);
        compare.push(Compare::unchanged(&record, view.record.mod_revision));
        let mut success = vec![Op::delete(&holder)];
        if is_empty {
            success.push(Op::delete(&record));
        } else if view.record.mod_revision > 0 {
            // On the etcd lease that the grant gave it: one that is remembered from before may be of
            // another life of this etcd.
            success.push(Op::put(&record, &written(&after), On::TheSame));
        }
        success.extend(self.unbind(at.held.session, lock, id));
        let txn = Txn { compare, success, failure: Vec::new() };
        let reply = self.inner.gateway.write_compared(&txn).await.map_err(store_error)?;
        if reply.succeeded && at.held.session.is_none() {
            let record = is_empty.then_some(at.held.record_lease);
            self.revoke_later(std::iter::once(at.lease).chain(record).collect());
        }
        Ok(reply.succeeded)
    }
}

/// Whether it is this grant still, renewed or not.
fn is_same_grant(at: &HeldAt, doubted: &HeldAt) -> bool {
    at.held.lease_id == doubted.held.lease_id
        && at.held.offset == doubted.held.offset
        && at.create_revision == doubted.create_revision
}
