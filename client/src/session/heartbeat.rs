//! The heartbeat of a session, and the probe of its leases when the server's count differs.
//!
//! The reply to a heartbeat says that the session is live, not that a single lease was revoked or
//! taken over. But it counts the leases, and if the count differs from the client's, each lease is
//! probed. So a heartbeat costs one request for any number of leases, and a loss is still noticed
//! within a third of the time to live.

use std::sync::Arc;

use fence_protocol::Code;
use fence_protocol::wire::lock::{EndReason, RenewRequest};

use super::ENDED;
use super::state::{Bond, SessionState};
use crate::error::end_reason;
use crate::locks::CALL_TIMEOUT;
use crate::timing::Window;
use crate::transport::Failure;
use crate::{Client, LostReason, attempts, clock};

/// Keeps the session alive until it is lost. The caller stops it by dropping the future.
pub(super) async fn keep(client: Client, state: Arc<SessionState>) {
    tokio::select! {
        biased;
        _ = state.trust.when_lost() => {}
        () = beat_for_ever(&client, &state) => {}
        // Concurrent with the heartbeat, never before it: the probe of many leases takes long.
        () = probe_on_mismatch(&client, &state) => {}
    }
}

async fn beat_for_ever(client: &Client, state: &SessionState) {
    loop {
        clock::sleep_until(state.trust.window().renew_at()).await;
        let beaten = attempts::until_success(
            || beat(client, state),
            || state.trust.window().renewal_timeout(clock::now()),
            is_over,
            |attempt, failure| report(state, attempt, failure),
        );
        if beaten.await.is_err() {
            return state.trust.lose(ENDED);
        }
    }
}

async fn beat(client: &Client, state: &SessionState) -> Result<(), Failure> {
    let expected = state.expected();
    let sent_at = clock::now();
    let timeout = state.trust.window().reply_timeout(sent_at);
    let reply = client.sessions().heartbeat_once(state.id, timeout).await?;
    let window = Window::of_reply(sent_at, reply.expires_in_ms, state.ttl);
    // If this comes too late, the session is lost, and the tasks that wait for that are notified.
    state.trust.extend(window, clock::reading());
    state.compare(reply.lease_count, expected);
    Ok(())
}

/// Logs a failure: the first at warn level, its retries at debug level.
fn report(state: &SessionState, attempt: u32, failure: Option<&Failure>) {
    let remaining_ms = state.trust.window().remaining(clock::now()).as_millis();
    let session = state.id;
    let reason = failure.map_or_else(|| attempts::NO_REPLY_YET.to_owned(), Failure::reason);
    if attempt == 1 {
        tracing::warn!(%session, remaining_ms, "a heartbeat failed, retrying: {reason}");
    } else {
        tracing::debug!(%session, attempt, remaining_ms, "a heartbeat failed again: {reason}");
    }
}

async fn probe_on_mismatch(client: &Client, state: &SessionState) {
    loop {
        state.count_mismatch.notified().await;
        let seen = state.last();
        let mut all_live = true;
        for bond in state.bonds() {
            all_live &= probe_lease(client, state, &bond).await;
        }
        if all_live {
            state.explain(seen);
        }
    }
}

/// Returns `true` if the server confirms that the lease is live. Sends a renewal, which has no
/// effect on a lease of a session.
async fn probe_lease(client: &Client, state: &SessionState, bond: &Bond) -> bool {
    let request = RenewRequest { lease_id: bond.grant.lease_id, ttl_ms: None };
    match client.locks().renew_once(&bond.grant.lock, &request, CALL_TIMEOUT).await {
        Ok(_) => true,
        Err(Failure::Refused(problem, _)) if problem.code == Code::LeaseLost => {
            match end_reason(&problem) {
                EndReason::SessionEnded => state.trust.lose(ENDED),
                reason => state.let_go(bond, LostReason::Ended(reason)),
            }
            false
        }
        Err(failure) => {
            let lock = &bond.grant.lock;
            let reason = failure.reason();
            tracing::debug!(%lock, "the probe of a session's lease failed: {reason}");
            false
        }
    }
}

/// Returns `true` if the server replied that the session has ended or is unknown.
pub(super) fn is_over(failure: &Failure) -> bool {
    let code = failure.problem().map(|problem| problem.code);
    matches!(code, Some(Code::SessionEnded | Code::SessionUnknown))
}
