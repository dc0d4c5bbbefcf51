//! The one place where a store's refusals become problems.

use fence_protocol::wire::lock::{EndReason, HolderInfo};
use fence_protocol::{Code, LockName, Owner};
use service_kit::problem::Reject;

use crate::store::{NoSession, NoTakeover, SessionRefusal, StoreError};

/// `Retry-After` of a request to an unreachable store, in seconds.
const RETRY_AFTER_SECS: u64 = 1;

/// A value that breaks a rule of the API.
pub(super) fn invalid(detail: impl Into<String>) -> Reject {
    Reject::new(Code::InvalidRequest, detail)
}

fn no_takeover(why: NoTakeover) -> &'static str {
    match why {
        NoTakeover::OtherOwner => "takeover never crosses owners",
        NoTakeover::NoIncarnation => {
            "its holder gave no incarnation, so an earlier incarnation cannot be distinguished from \
             a second process; name its lease in takeover_of"
        }
        NoTakeover::WasTakenOver => {
            "this incarnation was itself taken over by a later one; it must stop"
        }
    }
}

/// A lease of which the store remembers nothing.
fn unknown_lease(lock: &LockName, reason: EndReason) -> Reject {
    let detail = format!(
        "lock {lock} knows no such lease: it was never granted for this lock, or it has ended and \
         is forgotten"
    );
    Reject::new(Code::LeaseLost, detail)
        .hint("Check the lock and the lease_id; a lease that was granted is no longer held.")
        .with("reason", reason)
        .with("known", false)
}

fn lost(lock: &LockName, reason: EndReason, why: Option<Owner>) -> Reject {
    let said = why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    let detail = format!("the lease on lock {lock} has ended: {}{said}", reason.as_str());
    let reject = Reject::new(Code::LeaseLost, detail).with("reason", reason);
    match why {
        Some(why) => reject.with("why", why),
        None => reject,
    }
}

fn waiters(queue_length: usize) -> String {
    match queue_length {
        0 => String::new(),
        1 => "; 1 request waits".to_owned(),
        many => format!("; {many} requests wait"),
    }
}

fn held(lock: &LockName, holder: HolderInfo, queue_length: usize) -> Reject {
    let queue = waiters(queue_length);
    let detail = format!(
        "lock {lock} is held by {} with token {} for another {} ms unless it is renewed{queue}",
        holder.owner, holder.token, holder.expires_in_ms
    );
    let retry_after = holder.expires_in_ms.div_ceil(1_000).max(1);
    Reject::new(Code::LockHeld, detail)
        .with("holder", holder)
        .with("queue_length", queue_length)
        .retry_after(retry_after)
}

/// The problem for a store's refusal.
pub(super) fn reject(lock: &LockName, refusal: StoreError) -> Reject {
    match refusal {
        StoreError::Held { holder, queue_length } => held(lock, holder, queue_length),
        StoreError::Kept { queue_length } => {
            let queue = waiters(queue_length);
            let detail = format!(
                "lock {lock} is free, and kept for a request that waits for other locks too{queue}"
            );
            Reject::new(Code::LockHeld, detail)
                .with("queue_length", queue_length)
                .retry_after(RETRY_AFTER_SECS)
        }
        StoreError::TakeoverRefused { holder, why } => Reject::new(
            Code::TakeoverRefused,
            format!(
                "lock {lock} is held by {} with token {} and was not taken over: {}",
                holder.owner,
                holder.token,
                no_takeover(why)
            ),
        )
        .with("why", why.as_str())
        .with("holder", holder),
        StoreError::Session(refusal) => session_problem(refusal),
        StoreError::Lost { reason, is_known: false, .. } => unknown_lease(lock, reason),
        StoreError::Lost { reason, why, .. } => lost(lock, reason, why),
        StoreError::OtherKind(kind) => {
            Reject::new(Code::LockKindConflict, format!("lock {lock} is in use as {kind}"))
        }
        StoreError::Part { lock, refusal } => reject(&lock, *refusal).with("lock", &lock),
        StoreError::NotHeld => Reject::new(Code::NotFound, format!("lock {lock} is not held"))
            .hint("There is nothing to do."),
        StoreError::IdConflict { owner } => Reject::new(
            Code::LeaseIdConflict,
            format!("this lease_id on lock {lock} belongs to a request of {owner}"),
        ),
        // Without its id, which GET shows to those who may read.
        StoreError::OtherPrincipal { .. } => {
            let detail = format!("the lease of lock {lock} is another principal's");
            let hint = format!(
                "To renew, release or take over a lease of another principal, ask an operator for \
                 the right \"revoke {lock}\" in the access file."
            );
            Reject::new(Code::Forbidden, detail).hint(hint)
        }
        StoreError::Limit { what, limit: 0 } => {
            Reject::new(Code::LimitReached, format!("{what}: the limit is reached"))
                .retry_after(RETRY_AFTER_SECS)
        }
        StoreError::Limit { what, limit } => {
            Reject::new(Code::LimitReached, format!("{what}: the limit is {limit}"))
                .retry_after(RETRY_AFTER_SECS)
        }
        StoreError::Exhausted => {
            Reject::new(Code::StoreUnavailable, StoreError::Exhausted.to_string())
                .hint("An operator must move these locks to another namespace.")
        }
        StoreError::Paused { left_ms } => Reject::new(Code::StoreUnavailable, refusal.to_string())
            .with("paused_ms", left_ms)
            .retry_after(left_ms.div_ceil(1_000).max(1))
            .hint("Retry with wait_ms, which joins the queue, or retry later."),
        StoreError::NotOffered { .. } => not_offered(&refusal),
        StoreError::Unavailable(reason) => {
            Reject::new(Code::StoreUnavailable, reason).retry_after(RETRY_AFTER_SECS)
        }
        StoreError::Unknown(reason) => Reject::new(
            Code::OutcomeUnknown,
            format!("the outcome of the request for lock {lock} is unknown: {reason}"),
        )
        .with("outcome", "unknown"),
    }
}

/// The problem for what no retry makes this store do.
pub(super) fn not_offered(refusal: &StoreError) -> Reject {
    Reject::new(Code::NotOffered, refusal.to_string())
        .hint("docs/reference/guarantees.md says which store offers what; --store chooses one.")
}

/// The problem for what a session does not allow.
pub(super) fn session_problem(refusal: SessionRefusal) -> Reject {
    let detail = refusal.to_string();
    let reject = match refusal.why {
        NoSession::Unknown => Reject::new(Code::SessionUnknown, detail),
        NoSession::Ended(reason) => {
            Reject::new(Code::SessionEnded, detail).with("reason", reason.as_str())
        }
        NoSession::Blocked { reason, ends_in_ms } => Reject::new(Code::SessionBlocked, detail)
            .with("reason", reason)
            .with("ends_in_ms", ends_in_ms),
        NoSession::OtherOwner(owner) => {
            Reject::new(Code::SessionConflict, detail).with("owner", owner)
        }
        NoSession::Bound => Reject::new(Code::SessionConflict, detail),
    };
    reject.with("session_id", refusal.session_id)
}
