//! Return of leases that no client knows of, or may use.

use std::time::Duration;

use fence_protocol::{LeaseId, LockName};
use service_kit::Kit;

use crate::store::{LockStore, StoreError};

/// Pause before the first retry; doubled for each further one.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Releases a lease, with retries while the store is unavailable, for at most `lives_ms`: after
/// that the lease has expired. Once shutdown begins, the next attempt is the last.
///
/// A release that overtakes its acquire leaves the id there, so that the acquire is refused.
pub(crate) async fn return_lease(
    store: &dyn LockStore,
    kit: &Kit,
    lock: &LockName,
    lease_id: LeaseId,
    lives_ms: u64,
) {
    let until_ms = kit.clock.monotonic_ms().saturating_add(lives_ms);
    let stop = kit.tasks.shutdown_token();
    let mut pause = PAUSE_FIRST;
    loop {
        let is_last = stop.is_cancelled();
        let result = store.release(lock, lease_id).await;
        if is_ended(&result) {
            return;
        }
        if is_last || kit.clock.monotonic_ms() >= until_ms {
            tracing::warn!(%lock, %lease_id, "a lease was not returned: its own time ends it");
            return;
        }
        stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Returns whether a release proves that no lease has the id.
pub(crate) fn is_ended<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Ok(_) | Err(StoreError::Lost { .. }))
}
