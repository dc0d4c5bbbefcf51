//! The end of a lease.

use fence_protocol::wire::event::{Event, EventKind, ExplainedLock};
use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, Owner, Token};

use fence_terminal::readable::readable;

/// End of a lease, from the store or from events.
#[derive(Debug)]
pub(super) struct Ending<'a> {
    pub(super) token: Option<Token>,
    pub(super) owner: Option<&'a Owner>,
    kind: EventKind,
    held_ms: Option<u64>,
    pub(super) ms_ago: u64,
    /// Reason that an operator gave.
    why: Option<&'a str>,
}

impl<'a> Ending<'a> {
    /// Ends of the leases that the store remembers, newest first.
    pub(super) fn all(explained: &'a ExplainedLock) -> impl Iterator<Item = Self> {
        explained.now.history.iter().map(|ended| {
            let event =
                explained.recent.events.iter().find(|event| is_end_of(event, ended.lease_id));
            Self {
                token: ended.token,
                owner: ended.owner.as_ref(),
                kind: kind(ended.reason),
                held_ms: Some(ended.held_ms),
                ms_ago: ended.ended_ms_ago,
                why: event.and_then(|event| event.text.as_deref()),
            }
        })
    }

    /// End of one lease: from the store, which knows best, or from its events.
    pub(super) fn of_lease(
        explained: &'a ExplainedLock,
        events: &'a [Event],
        lease_id: LeaseId,
    ) -> Option<Self> {
        let at = explained.now.history.iter().position(|ended| ended.lease_id == lease_id);
        let event = events.iter().find(|event| is_end_of(event, lease_id));
        let stored = at.and_then(|at| Self::all(explained).nth(at));
        let reported = event.map(|event| Self {
            token: event.token,
            owner: event.owner.as_ref(),
            kind: event.kind,
            held_ms: event.held_ms,
            ms_ago: event.ms_ago,
            why: event.text.as_deref(),
        });
        match (stored, reported) {
            (Some(stored), Some(reported)) => Some(Self { why: reported.why, ..stored }),
            (stored, reported) => stored.or(reported),
        }
    }

    /// `expired 2.0 s ago, after 45.0 s: its time passed without a renewal`.
    pub(super) fn sentence(&self) -> String {
        let after = self.held_ms.map(|held_ms| format!(", after {}", readable(held_ms)));
        let ago = readable(self.ms_ago);
        let word = self.kind.as_str();
        let what = meaning(self.kind);
        let why = self.why.map(|why| format!(" ({why})")).unwrap_or_default();
        format!("{word} {ago} ago{}: {what}{why}", after.unwrap_or_default())
    }
}

fn kind(reason: EndReason) -> EventKind {
    EventKind::of_end(reason)
}

/// Returns `true` for the end of the lease, or for the gap that replaces an unknown end.
fn is_end_of(event: &Event, lease_id: LeaseId) -> bool {
    event.lease_id == Some(lease_id) && (event.kind.is_end() || event.kind == EventKind::Gap)
}

fn meaning(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Expired => "its time passed without a renewal",
        EventKind::Released => "its holder released it",
        EventKind::Revoked => "an operator ended it",
        EventKind::Superseded => "its owner took the lock over, or another lease holds it",
        EventKind::SessionEnded => "the session that it was bound to ended",
        _ => "the reason is unknown",
    }
}
