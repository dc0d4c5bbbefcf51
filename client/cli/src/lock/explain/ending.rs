//! How a lease ended.

use fence_protocol::wire::event::{Event, EventKind, ExplainedLock};
use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, Owner, Token};

use crate::readable::readable;

/// What is known of the end of a lease.
#[derive(Debug)]
pub(super) struct Ending<'a> {
    pub(super) token: Option<Token>,
    pub(super) owner: Option<&'a Owner>,
    kind: EventKind,
    held_ms: Option<u64>,
    pub(super) ms_ago: u64,
    /// What an operator said.
    why: Option<&'a str>,
}

impl<'a> Ending<'a> {
    /// Of the leases that the store remembers, newest first.
    pub(super) fn all(explained: &'a ExplainedLock) -> impl Iterator<Item = Self> {
        explained.now.history.iter().map(|ended| {
            let told =
                explained.recent.events.iter().find(|event| is_end_of(event, ended.lease_id));
            Self {
                token: ended.token,
                owner: ended.owner.as_ref(),
                kind: kind(ended.reason),
                held_ms: Some(ended.held_ms),
                ms_ago: ended.ended_ms_ago,
                why: told.and_then(|event| event.text.as_deref()),
            }
        })
    }

    /// Of one lease: from the store, which knows best, or from what was told of it.
    pub(super) fn of(
        explained: &'a ExplainedLock,
        events: &'a [Event],
        lease_id: LeaseId,
    ) -> Option<Self> {
        let at = explained.now.history.iter().position(|ended| ended.lease_id == lease_id);
        let told = events.iter().find(|event| is_end_of(event, lease_id));
        let known = at.and_then(|at| Self::all(explained).nth(at));
        let told = told.map(|event| Self {
            token: event.token,
            owner: event.owner.as_ref(),
            kind: event.kind,
            held_ms: event.held_ms,
            ms_ago: event.ms_ago,
            why: event.text.as_deref(),
        });
        match (known, told) {
            (Some(known), Some(told)) => Some(Self { why: told.why, ..known }),
            (known, told) => known.or(told),
        }
    }

    /// `expired 2.0 s ago, after 45.0 s: its time passed without a renewal`.
    pub(super) fn sentence(&self) -> String {
        let after = self.held_ms.map(|held_ms| format!(", after {}", readable(held_ms)));
        let ago = readable(self.ms_ago);
        let (word, what) = (self.kind.as_str(), meaning(self.kind));
        let why = self.why.map(|why| format!(" ({why})")).unwrap_or_default();
        format!("{word} {ago} ago{}: {what}{why}", after.unwrap_or_default())
    }
}

fn kind(reason: EndReason) -> EventKind {
    EventKind::of_end(reason)
}

/// A lease may have ended without anybody knowing how: then there is a gap in its place.
fn is_end_of(event: &Event, lease_id: LeaseId) -> bool {
    event.lease_id == Some(lease_id) && (event.kind.is_end() || event.kind == EventKind::Gap)
}

fn meaning(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Expired => "its time passed without a renewal",
        EventKind::Released => "its holder gave it back",
        EventKind::Revoked => "an operator ended it",
        EventKind::Superseded => "its owner took the lock over, or another lease holds it",
        EventKind::SessionEnded => "the session that it was bound to ended",
        _ => "how is not known",
    }
}
