//! Explanation of one lease: its outcome, and the next step for its owner.

use fence_protocol::Token;
use fence_protocol::wire::event::{Event, EventKind, ExplainedLock};

use super::ending::Ending;
use super::text::{grant, is_of_script, refusals};
use super::{OwnLease, is_holder};
use fence_terminal::readable::readable;

/// Returns `true` if anything is remembered of the lease.
pub(super) fn is_known(explained: &ExplainedLock, own: &OwnLease) -> bool {
    is_holder(explained, own.lease_id)
        || position(explained, own).is_some()
        || !own.recent.events.is_empty()
        || Ending::of_lease(explained, &own.recent.events, own.lease_id).is_some()
}

/// Queue position of the lease, from 1.
fn position(explained: &ExplainedLock, own: &OwnLease) -> Option<usize> {
    let at = explained.now.queue.iter().position(|waiter| waiter.lease_id == own.lease_id);
    at.map(|at| at + 1)
}

/// Renders the lines about the lease.
pub(super) fn lines(explained: &ExplainedLock, own: &OwnLease) -> Vec<String> {
    let mut lines = vec![format!("Your lease, {}:", own.lease_id)];
    let ending = Ending::of_lease(explained, &own.recent.events, own.lease_id);
    if is_holder(explained, own.lease_id) {
        lines.push("  It holds the lock.".to_owned());
        lines.extend(refused(own));
        lines.extend(mark_above(own));
    } else if let Some(position) = position(explained, own) {
        let all = explained.now.queue_length;
        lines.push(format!("  It waits, at position {position} of {all}, and has no token yet."));
    } else if let Some(ending) = ending {
        lines.push(format!("  It {}is over: {}.", named(ending.token), ending.sentence()));
        lines.extend(successor(explained, ending.token));
        lines.extend(refused(own));
        lines.push(
            "  Stop the work that it protected. Acquire the lock anew, and read before you write."
                .to_owned(),
        );
    } else if let Some(event) = own.recent.events.first() {
        lines.push(format!("  {}", last_event(event)));
        lines.extend(refused(own));
    } else {
        lines.push(format!(
            "  Nothing is remembered of it: it never was a lease on {}, or that is too long ago.",
            explained.now.lock
        ));
    }
    lines
}

fn named(token: Option<Token>) -> String {
    token.map(|token| format!("had token {token} and ")).unwrap_or_default()
}

/// The holder after it.
fn successor(explained: &ExplainedLock, token: Option<Token>) -> Option<String> {
    let token = token?;
    let is_later = |event: &&Event| event.kind == EventKind::Granted && event.token > Some(token);
    let granted = explained.recent.events.iter().filter(is_later).min_by_key(|event| event.token);
    if let Some(event) = granted {
        let owner = event.owner.as_ref()?;
        let ago = readable(event.ms_ago);
        return Some(format!("  The next holder was {}, {ago} ago.", grant(owner, event.token?)));
    }
    let holder = explained.now.holder.as_ref().filter(|holder| holder.info.token > token)?;
    let owner = &holder.info.owner;
    let ago = readable(holder.info.held_ms);
    Some(format!("  {} has held the lock for {ago} now.", grant(owner, holder.info.token)))
}

fn refused(own: &OwnLease) -> Vec<String> {
    if own.recent.refusals.is_empty() {
        return vec!["  Nothing of yours was refused, as far as guards have reported.".to_owned()];
    }
    let mut lines = vec!["  Refused, and so not applied:".to_owned()];
    lines.extend(refusals(&own.recent.refusals).map(|line| format!("  {line}")));
    if own.recent.refusals.iter().any(is_of_script) {
        lines.push("  The effects of a script before its refused command stay.".to_owned());
    }
    lines
}

/// A live lease that is refused has a token below the guard's mark: higher tokens were issued
/// before.
fn mark_above(own: &OwnLease) -> Option<String> {
    let of_tokens = own.recent.refusals.iter().filter(|event| !is_of_script(event));
    let mark = of_tokens.filter_map(|event| event.mark).max()?;
    Some(format!(
        "  The guard has seen token {mark}. Release the lease, and acquire with --min-token {mark}: \
         the lock server may have lost its memory."
    ))
}

fn last_event(event: &Event) -> String {
    let ago = readable(event.happened_ms_ago());
    match event.kind {
        EventKind::Queued => format!("It began to wait {ago} ago, and is not in the queue now."),
        EventKind::Left => format!("It waited, and left the queue {ago} ago without a grant."),
        EventKind::Refused => format!(
            "A guard refused it {ago} ago. How it ended is not remembered; it does not hold the lock."
        ),
        _ => format!("It was {} {ago} ago, and does not hold the lock now.", event.kind.as_str()),
    }
}
