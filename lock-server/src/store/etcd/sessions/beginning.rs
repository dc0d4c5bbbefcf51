//! How sessions begin.

use super::super::gateway::GatewayError;
use super::super::leases::random_id;
use super::super::txn::{Compare, On, Op, Txn};
use super::super::{EtcdStore, secs, store_error};
use super::Sessions;
use super::record::{Deadline, Stored};
use crate::store::{NewSession, StoreError};

impl Sessions {
    /// Writes a new session; false where there is one of this id.
    pub(super) async fn begin(&self, new: &NewSession) -> Result<bool, StoreError> {
        let (inner, id, limits) = (&self.inner, new.session_id, self.inner.options.limits);
        let records = Txn::reading(vec![Op::count(&inner.keys.session_records())]);
        let count = inner.gateway.read(&records).await.map_err(store_error)?;
        if count.ranges().next().unwrap_or_default().count >= limits.sessions as u64 {
            let what = "sessions live or remembered";
            return Err(StoreError::Limit { what, limit: limits.sessions as u64 });
        }
        let (lease, lease_after) = (random_id(), random_id());
        let mut unused = Unused { store: self.store(), leases: vec![lease, lease_after] };
        // Counted from before etcd counts, so that etcd never ends it first.
        let at_ms = inner.clock.monotonic_ms().saturating_add(new.ttl.ms());
        let granted = tokio::try_join!(
            inner.gateway.lease_grant(lease, secs(new.ttl.ms())),
            inner.gateway.lease_grant(lease_after, secs(new.ttl.ms() + limits.ended_retention_ms)),
        );
        let (lease_ttl_s, _) = granted.map_err(store_error)?;
        let stored = Stored::begin(new, inner.clock.wall_ms(), lease, lease_ttl_s, lease_after);
        let keys = &inner.keys;
        let txn = Txn {
            compare: vec![
                Compare::absent(&keys.session_record(id)),
                Compare::absent(&keys.session_lives(id)),
            ],
            success: vec![
                Op::put(&keys.session_record(id), &stored.text(), On::Lease(lease_after)),
                Op::put(&keys.session_lives(id), "", On::Lease(lease)),
                Op::put(&keys.session(id), &inner.server_id, On::Lease(lease)),
            ],
            failure: Vec::new(),
        };
        // From here on the session may hang on them, whoever still waits for the answer.
        let leases = std::mem::take(&mut unused.leases);
        match inner.gateway.write(&txn).await {
            Ok(reply) if reply.succeeded => {
                inner.watched.heard(id, Deadline { at_ms, beat: reply.header.revision });
                Ok(true)
            }
            Ok(_) => {
                // Somebody was faster; nothing hangs on these.
                unused.leases = leases;
                Ok(false)
            }
            Err(error) => {
                if !matches!(error, GatewayError::Unknown(_)) {
                    unused.leases = leases;
                }
                Err(store_error(error))
            }
        }
    }
}

/// Etcd leases that were made for a session. Dropped before it hangs on them, they are ended.
struct Unused {
    store: EtcdStore,
    leases: Vec<u64>,
}

impl Drop for Unused {
    fn drop(&mut self) {
        if !self.leases.is_empty() {
            self.store.revoke_later(std::mem::take(&mut self.leases));
        }
    }
}
