//! A counter that was verified, and how a transaction compares that it is in force still.

use crate::store::etcd::keys::Keys;
use crate::store::etcd::txn::Compare;
use crate::store::etcd::values::Meta;

/// A counter that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store::etcd) struct Known {
    pub(in crate::store::etcd) meta: Meta,
    /// The revision that wrote it.
    pub(in crate::store::etcd) mod_revision: u64,
    /// As it is written.
    pub(in crate::store::etcd) value: String,
}

impl Known {
    /// Whether this is what was read.
    pub(in crate::store::etcd) fn is(&self, read: Option<&(Meta, u64)>) -> bool {
        read.is_some_and(|(meta, revision)| *meta == self.meta && *revision == self.mod_revision)
    }

    /// That it is in force still: the same writing, and not another one by the same revision of an
    /// etcd that was put back.
    pub(in crate::store::etcd) fn compare(&self, keys: &Keys) -> [Compare; 2] {
        let key = keys.meta();
        [Compare::unchanged(&key, self.mod_revision), Compare::says(&key, &self.value)]
    }
}
