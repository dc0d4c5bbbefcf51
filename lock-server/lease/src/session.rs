//! State of one session.

use std::collections::BTreeSet;

use fence_protocol::wire::session::{SessionEndReason, SessionLease, SessionReply};
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Ttl};
use serde::{Deserialize, Serialize};

use crate::record::Reading;
use crate::{NewSession, NoSession};

/// Most leases that a reply lists.
const LEASES_SHOWN: usize = 100;

/// A session, live or remembered as ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// Owner of the session.
    pub owner: Owner,
    /// Time to live that a heartbeat restores.
    pub ttl: Ttl,
    /// A JSON text for people.
    pub metadata: Option<String>,
    /// Principal of the access file.
    pub principal: Option<String>,
    /// Time of its begin.
    pub created_at_ms: u64,
    /// Number of heartbeats.
    pub heartbeats: u64,
    /// Reason why heartbeats are refused.
    pub blocked: Option<Owner>,
    /// Expiry, or end.
    pub state: SessionState,
    /// Leases bound to it.
    pub held: BTreeSet<(LockName, LeaseId)>,
    /// Waiting requests bound to it.
    pub waits: BTreeSet<(LockName, LeaseId)>,
    /// No lease and no waiting request names it any more. An ended session is not forgotten before.
    pub is_cleared: bool,
}

/// Life of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Live until this time, unless it is renewed.
    Until(u64),
    /// Ended for this reason at this time.
    Ended(SessionEndReason, u64),
}

impl Session {
    /// Begins a session at `now_ms`.
    pub fn begin(new: NewSession, now_ms: u64) -> Self {
        Self {
            owner: new.owner,
            ttl: new.ttl,
            metadata: new.metadata,
            principal: new.principal,
            created_at_ms: now_ms,
            heartbeats: 0,
            blocked: None,
            state: SessionState::Until(now_ms + new.ttl.ms()),
            held: BTreeSet::new(),
            waits: BTreeSet::new(),
            is_cleared: false,
        }
    }

    /// Returns whether its end is not known yet.
    pub fn is_live(&self) -> bool {
        matches!(self.state, SessionState::Until(_))
    }

    /// Returns the time until which it lives.
    ///
    /// # Errors
    /// The reason for its end. One whose time has passed has ended, even before the machine settles
    /// it.
    pub fn lives(&self, now_ms: u64) -> Result<u64, NoSession> {
        match self.state {
            SessionState::Until(at_ms) if at_ms > now_ms => Ok(at_ms),
            SessionState::Until(_) => Err(NoSession::Ended(self.natural_end())),
            SessionState::Ended(reason, _) => Err(NoSession::Ended(reason)),
        }
    }

    /// Returns the time until which it lives and takes new leases and heartbeats.
    ///
    /// # Errors
    /// The reason for its end, or that it is blocked.
    pub fn serves(&self, now_ms: u64) -> Result<u64, NoSession> {
        let at_ms = self.lives(now_ms)?;
        match &self.blocked {
            None => Ok(at_ms),
            Some(reason) => {
                Err(NoSession::Blocked { reason: reason.clone(), ends_in_ms: at_ms - now_ms })
            }
        }
    }

    /// Returns whether it has ended without a request of its owner.
    pub fn has_expired(&self, now_ms: u64) -> bool {
        match self.lives(now_ms) {
            Err(NoSession::Ended(reason)) => reason != SessionEndReason::Ended,
            _ => false,
        }
    }

    /// Returns the reason for its end when its time passes.
    pub fn natural_end(&self) -> SessionEndReason {
        if self.blocked.is_some() { SessionEndReason::Blocked } else { SessionEndReason::Expired }
    }

    /// Returns the time at which it ends or is forgotten.
    pub fn alarm_ms(&self, retention_ms: u64) -> u64 {
        match self.state {
            SessionState::Until(at_ms) => at_ms,
            SessionState::Ended(_, at_ms) if self.is_cleared => at_ms + retention_ms,
            SessionState::Ended(..) => u64::MAX,
        }
    }

    /// Returns whether it has ended and leases that name it have still to be ended.
    pub fn is_to_be_cleared(&self) -> bool {
        matches!(self.state, SessionState::Ended(..)) && !self.is_cleared
    }

    /// Returns the number of leases and waiting requests that are bound to it.
    pub fn bonds(&self) -> usize {
        self.held.len() + self.waits.len()
    }

    /// Returns the reply that shows it; with its leases if `with_leases`.
    pub fn reply(&self, session_id: SessionId, now_ms: u64, with_leases: bool) -> SessionReply {
        let until_ms = self.lives(now_ms).unwrap_or(now_ms);
        let shown = if with_leases { LEASES_SHOWN } else { 0 };
        SessionReply {
            session_id,
            owner: self.owner.clone(),
            ttl_ms: self.ttl.ms(),
            expires_in_ms: until_ms - now_ms,
            age_ms: now_ms.saturating_sub(self.created_at_ms),
            heartbeats: self.heartbeats,
            blocked: self.blocked.clone(),
            lease_count: self.bonds(),
            leases: self
                .held
                .iter()
                .take(shown)
                .map(|(lock, lease_id)| SessionLease { lock: lock.clone(), lease_id: *lease_id })
                .collect(),
            metadata: self.metadata.as_deref().and_then(|m| serde_json::from_str(m).ok()),
            principal: self.principal.clone(),
        }
    }
}

/// Stored form of a session: without its leases, which name the session themselves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredSession {
    #[serde(rename = "o")]
    owner: Owner,
    #[serde(rename = "l")]
    ttl_ms: Ttl,
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none")]
    metadata: Option<String>,
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    principal: Option<String>,
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    blocked: Option<Owner>,
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    ended: Option<SessionEndReason>,
    #[serde(rename = "c", default, skip_serializing_if = "std::ops::Not::not")]
    is_cleared: bool,
    #[serde(rename = "g", default)]
    created_at_ms: u64,
    #[serde(rename = "r", default)]
    heartbeats: u64,
    /// Expiry, or time of the end.
    #[serde(rename = "u", default)]
    until_ms: u64,
}

impl Session {
    /// Encodes the session.
    pub fn to_stored(&self) -> StoredSession {
        let (ended, until_ms) = match self.state {
            SessionState::Until(until_ms) => (None, until_ms),
            SessionState::Ended(reason, at_ms) => (Some(reason), at_ms),
        };
        StoredSession {
            owner: self.owner.clone(),
            ttl_ms: self.ttl,
            metadata: self.metadata.clone(),
            principal: self.principal.clone(),
            blocked: self.blocked.clone(),
            ended,
            is_cleared: self.is_cleared,
            created_at_ms: self.created_at_ms,
            heartbeats: self.heartbeats,
            until_ms,
        }
    }

    /// Decodes a session, without its leases.
    pub fn from_stored(stored: StoredSession, reading: Reading) -> Self {
        Self {
            owner: stored.owner,
            ttl: stored.ttl_ms,
            metadata: stored.metadata,
            principal: stored.principal,
            created_at_ms: reading.past(stored.created_at_ms),
            heartbeats: stored.heartbeats,
            blocked: stored.blocked,
            state: match stored.ended {
                None => SessionState::Until(reading.end(stored.until_ms, stored.ttl_ms.ms())),
                Some(reason) => SessionState::Ended(reason, reading.past(stored.until_ms)),
            },
            held: BTreeSet::new(),
            waits: BTreeSet::new(),
            // A single server ends everything in one transition.
            is_cleared: stored.is_cleared || matches!(reading, Reading::Restart { .. }),
        }
    }
}
