//! Events of locks (`GET /v1/events`) and refusals that guards report.

use serde::{Deserialize, Serialize};

use super::lock::{EndReason, LeaseMode, LockReply};
use crate::text::words;
use crate::{LeaseId, LockName, Owner, SessionId, Token};

/// Largest number of refusals in one report.
pub const REFUSALS_MAX: usize = 64;
/// The longest text of an event, in bytes; longer ones are cut.
pub const TEXT_BYTES_MAX: usize = 256;

/// One event. A member that does not apply to its kind is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    /// Kind of event.
    pub kind: EventKind,
    /// The lock; absent in what concerns a session or the whole namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockName>,
    /// The lease, or the id that a waiting request will have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<LeaseId>,
    /// The token of the lease; for a refusal the one that was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// Mode of the lease.
    #[serde(default, skip_serializing_if = "LeaseMode::is_exclusive")]
    pub mode: LeaseMode,
    /// Owner of the lease or of the waiting request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Session that the lease or request is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Remaining time of the lease at its grant, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Time that the grant was waited for, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// Time that the lease was held, in milliseconds, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_ms: Option<u64>,
    /// The mark that a refused operation met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Token>,
    /// Of a gap: smallest number of missing events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<u64>,
    /// For people: the refused operation, why a session was blocked, why there is a gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Of a refusal: time between the refusal and its report, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_ms: Option<u64>,
    /// Time since the event was published, in milliseconds, when this was sent.
    #[serde(default)]
    pub ms_ago: u64,
}

impl Event {
    /// An event of this kind without further members.
    pub fn new(kind: EventKind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Time since it happened, in milliseconds, when this was sent.
    pub fn happened_ms_ago(&self) -> u64 {
        self.ms_ago.saturating_add(self.late_ms.unwrap_or(0))
    }

    /// Sets the lock.
    #[must_use]
    pub fn lock(mut self, lock: &LockName) -> Self {
        self.lock = Some(lock.clone());
        self
    }

    /// Sets the lease.
    #[must_use]
    pub fn lease(mut self, lease_id: LeaseId) -> Self {
        self.lease_id = Some(lease_id);
        self
    }

    /// Sets the text for people, cut at [`TEXT_BYTES_MAX`].
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        let mut text = text.into();
        cut(&mut text, TEXT_BYTES_MAX);
        self.text = Some(text);
        self
    }
}

/// Cuts a text at the last character that ends within `bytes_max`.
pub fn cut(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        let end = (0..=bytes_max).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
    }
}

words! {
    /// Stable word for what has happened.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum EventKind {
        /// A lease was granted.
        Granted = "granted",
        /// Its holder released it, or the server rolled it back because the grant could not be
        /// delivered.
        Released = "released",
        /// Its time passed without a renewal.
        Expired = "expired",
        /// An operator ended it.
        Revoked = "revoked",
        /// Its owner took the lock over, or another lease holds the lock now.
        Superseded = "superseded",
        /// The session that it was bound to ended.
        SessionEnded = "session-ended",
        /// A request waits in the queue. One that is granted within a tenth of a second is not
        /// reported.
        Queued = "queued",
        /// A request that was reported as queued left without a grant.
        Left = "left",
        /// A guard refused an operation, and reported it.
        Refused = "refused",
        /// A session began.
        SessionBegun = "session-begun",
        /// A session was ended by its client.
        SessionClosed = "session-closed",
        /// A session was blocked: it takes no heartbeat, and ends at its time.
        SessionBlocked = "session-blocked",
        /// The store may have lost data; tokens continue above every token issued before.
        Lineage = "lineage",
        /// Current position of the stream, so that it can be resumed before the first event.
        Ready = "ready",
        /// Events are missing here: they were dropped, or are no longer remembered.
        Gap = "gap",
        /// The reader was too slow and is disconnected after this; if it resumes, it receives the
        /// gap.
        Dropped = "dropped",
        /// A kind of a newer server.
        #[default]
        #[serde(other)]
        #[cfg_attr(feature = "schema", schemars(skip))]
        Unknown = "unknown",
    }
}

impl EventKind {
    /// Kind of the event for a lease that ended for `reason`.
    pub fn of_end(reason: EndReason) -> Self {
        match reason {
            EndReason::Expired => Self::Expired,
            EndReason::Superseded => Self::Superseded,
            EndReason::Released => Self::Released,
            EndReason::Revoked => Self::Revoked,
            EndReason::SessionEnded => Self::SessionEnded,
        }
    }

    /// `true` for the end of a lease.
    pub fn is_end(self) -> bool {
        matches!(
            self,
            Self::Released | Self::Expired | Self::Revoked | Self::Superseded | Self::SessionEnded
        )
    }
}

/// `GET /v1/locks/{lock}`: the lock, and its recent events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExplainedLock {
    /// Current state in the store.
    #[serde(flatten)]
    pub now: LockReply,
    /// Events that this server remembers.
    #[serde(flatten)]
    pub recent: RecentEvents,
}

/// Events that a server remembers of a lock, or of one lease on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecentEvents {
    /// The newest events, newest first, at most 50. Refusals are among them.
    #[serde(default)]
    pub events: Vec<Event>,
    /// The newest refusals that guards reported, newest first, at most 16: also those that are too
    /// old for `events`.
    #[serde(default)]
    pub refusals: Vec<Event>,
    /// The newest gap, after which events of any lock may be missing; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<Event>,
}

/// `POST /v1/refusals`: a guard's report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RefusalsReport {
    /// In the order in which they happened; at most [`REFUSALS_MAX`].
    #[cfg_attr(feature = "schema", schemars(length(max = REFUSALS_MAX)))]
    pub refusals: Vec<ReportedRefusal>,
    /// Number of further refusals that could not be reported.
    #[serde(default)]
    pub dropped: u64,
}

/// One refusal of a guard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReportedRefusal {
    /// Lock of the refused token.
    pub lock: LockName,
    /// The token that was refused.
    pub token: Token,
    /// The lease that presented it.
    pub lease_id: LeaseId,
    /// The mark that it met.
    pub mark: Token,
    /// The operation and the code of the refusal: `PUT orders/42: stale-token`.
    pub operation: String,
    /// Owner that the caller named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Time since the refusal, in milliseconds, when the report was sent.
    #[serde(default)]
    pub ms_ago: u64,
}

/// The reply to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RefusalsReply {
    /// Number of refusals recorded.
    pub taken: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [EventKind; 17] = [
        EventKind::Granted,
        EventKind::Released,
        EventKind::Expired,
        EventKind::Revoked,
        EventKind::Superseded,
        EventKind::SessionEnded,
        EventKind::Queued,
        EventKind::Left,
        EventKind::Refused,
        EventKind::SessionBegun,
        EventKind::SessionClosed,
        EventKind::SessionBlocked,
        EventKind::Lineage,
        EventKind::Ready,
        EventKind::Gap,
        EventKind::Dropped,
        EventKind::Unknown,
    ];

    #[test]
    fn kinds_are_words() {
        for kind in ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        let future: EventKind = serde_json::from_str("\"of-the-future\"").unwrap();
        assert_eq!(future, EventKind::Unknown);
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let event = Event::new(EventKind::Gap).text("ä".repeat(200));
        assert_eq!(event.text.unwrap().len(), TEXT_BYTES_MAX);
        let odd = Event::new(EventKind::Gap).text(format!("x{}", "ä".repeat(200)));
        assert_eq!(odd.text.unwrap().len(), TEXT_BYTES_MAX - 1);
    }

    #[test]
    fn what_is_not_said_is_absent() {
        let json = serde_json::to_string(&Event::new(EventKind::Lineage)).unwrap();
        assert_eq!(json, r#"{"kind":"lineage","ms_ago":0}"#);
    }
}
