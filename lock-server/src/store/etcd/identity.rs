//! Which lease a key is of. Revisions tell two writings of a key apart as long as etcd goes on; one that
//! was put back from an older backup gives them a second time.

use fence_protocol::LockName;

use super::EtcdStore;
use super::sessions::HELD;
use super::txn::Compare;
use super::values::HeldAt;

impl EtcdStore {
    /// That a lease is as it was read: the same revision, and on the etcd lease that it hung on, whose
    /// id is random. The leases of a session share that one, and are told apart by their bonds.
    pub(super) fn same(&self, lock: &LockName, at: &HeldAt) -> Vec<Compare> {
        let keys = &self.inner.keys;
        let key = keys.holder(lock);
        let mut same =
            vec![Compare::unchanged(&key, at.mod_revision), Compare::hangs_on(&key, at.lease)];
        let bond = at.held.session.map(|id| keys.bond(id, lock, at.held.lease_id));
        same.extend(bond.map(|bond| Compare::says(&bond, HELD)));
        same
    }
}
