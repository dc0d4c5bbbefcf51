//! Principals of the access file: a lease belongs to the one that acquired it.

use fence_protocol::{LeaseId, LockName};

use crate::{Machine, StoreError};

/// Returns `true` if `caller` may not retry, renew, release or take over what `principal` acquired.
///
/// A lease without a principal was acquired without an access file, or at a server of an earlier
/// version: it is open to every client. A caller without one passes: there is no access file, or
/// the server itself acts, or the caller may revoke the lease.
pub fn is_anothers(principal: Option<&str>, caller: Option<&str>) -> bool {
    principal.zip(caller).is_some_and(|(theirs, own)| theirs != own)
}

impl Machine {
    /// Checks that `caller` may renew or release a lease, or release an id that waits.
    ///
    /// # Errors
    /// [`StoreError::OtherPrincipal`].
    pub fn check_principal(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        lease_id: LeaseId,
        caller: Option<&str>,
    ) -> Result<(), StoreError> {
        self.tick_for(now_ms, lock);
        let Some(record) = self.record(lock) else { return Ok(()) };
        let held = record.holders.get(lease_id).map(|holder| &holder.principal);
        let waits = || Some(&record.queue.get(lease_id)?.request.principal);
        match held.or_else(waits).and_then(Option::as_deref) {
            principal if is_anothers(principal, caller) => {
                Err(StoreError::OtherPrincipal { lease_id })
            }
            _ => Ok(()),
        }
    }
}
