//! Leases of other principals: acting on one takes the right to revoke it, and is audited.

use access_control::{Caller, Verb};
use fence_protocol::LockName;
use service_kit::problem::Reject;

use super::error;
use crate::store::StoreError;

/// Returns the result of a request. If it was refused because the lease is another principal's, and
/// the caller may revoke it, begins an act of administration and returns the result of `again`.
///
/// # Errors
/// 403 without the right to revoke the lock, 503 if the audit log cannot be written; nothing was
/// done then.
pub(super) async fn unless_own<T>(
    caller: &Caller,
    lock: &LockName,
    result: Result<T, StoreError>,
    again: impl Future<Output = Result<T, StoreError>>,
) -> Result<Result<T, StoreError>, Reject> {
    let Err(refusal @ StoreError::OtherPrincipal { lease_id }) = result else { return Ok(result) };
    if caller.may(Verb::Revoke, lock.as_str()).is_err() {
        return Err(error::reject(lock, refusal));
    }
    caller.begin(Verb::Revoke, lock.as_str())?;
    caller.record("lease_id", lease_id);
    Ok(again.await)
}
