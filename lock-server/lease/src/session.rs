//! What is known of one session.

use std::collections::BTreeSet;

use fence_protocol::wire::session::{SessionEndReason, SessionLease, SessionReply};
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Ttl};
use serde::{Deserialize, Serialize};

use crate::record::Reading;
use crate::{NewSession, NoSession};

/// How many leases a reply lists.
const LEASES_SHOWN: usize = 100;

/// A session, live or remembered as ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// Who.
    pub owner: Owner,
    /// The time to live that a heartbeat restores.
    pub ttl: Ttl,
    /// A JSON text for people.
    pub metadata: Option<String>,
    /// Whose it is by the access file.
    pub principal: Option<String>,
    /// When it began.
    pub created_at_ms: u64,
    /// How often it was renewed.
    pub heartbeats: u64,
    /// Why heartbeats are refused.
    pub blocked: Option<Owner>,
    /// Until when it lives, or how and when it ended.
    pub state: State,
    /// The leases that live as long as it does.
    pub held: BTreeSet<(LockName, LeaseId)>,
    /// The requests that wait in its name.
    pub waits: BTreeSet<(LockName, LeaseId)>,
    /// No lease and no waiting request names it any more. Before that, one that ended is not forgotten.
    pub is_cleared: bool,
}

/// Whether a session lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Until then, unless it is renewed.
    Until(u64),
    /// It ended so, at that time.
    Ended(SessionEndReason, u64),
}

impl Session {
    /// A session that begins now.
    pub fn begin(new: NewSession, now_ms: u64) -> Self {
        Self {
            owner: new.owner,
            ttl: new.ttl,
            metadata: new.metadata,
            principal: new.principal,
            created_at_ms: now_ms,
            heartbeats: 0,
            blocked: None,
            state: State::Until(now_ms + new.ttl.ms()),
            held: BTreeSet::new(),
            waits: BTreeSet::new(),
            is_cleared: false,
        }
    }

    /// Until when it lives.
    ///
    /// # Errors
    /// How it ended. One whose time has passed has ended, whether or not anybody noticed.
    pub fn lives(&self, now_ms: u64) -> Result<u64, NoSession> {
        match self.state {
            State::Until(at_ms) if at_ms > now_ms => Ok(at_ms),
            State::Until(_) => Err(NoSession::Ended(self.natural_end())),
            State::Ended(reason, _) => Err(NoSession::Ended(reason)),
        }
    }

    /// Until when it lives and takes new leases and heartbeats.
    ///
    /// # Errors
    /// How it ended, or that it is blocked.
    pub fn serves(&self, now_ms: u64) -> Result<u64, NoSession> {
        let at_ms = self.lives(now_ms)?;
        match &self.blocked {
            None => Ok(at_ms),
            Some(reason) => {
                Err(NoSession::Blocked { reason: reason.clone(), ends_in_ms: at_ms - now_ms })
            }
        }
    }

    /// Whether it has ended without its owner's word.
    pub fn has_expired(&self, now_ms: u64) -> bool {
        match self.lives(now_ms) {
            Err(NoSession::Ended(reason)) => reason != SessionEndReason::Ended,
            _ => false,
        }
    }

    /// How it ends when its time passes.
    pub fn natural_end(&self) -> SessionEndReason {
        if self.blocked.is_some() { SessionEndReason::Blocked } else { SessionEndReason::Expired }
    }

    /// When it ends or is forgotten.
    pub fn alarm_ms(&self, retention_ms: u64) -> u64 {
        match self.state {
            State::Until(at_ms) => at_ms,
            State::Ended(_, at_ms) if self.is_cleared => at_ms + retention_ms,
            State::Ended(..) => u64::MAX,
        }
    }

    /// Whether it has ended and is named by leases that are to be ended with it.
    pub fn is_to_be_cleared(&self) -> bool {
        matches!(self.state, State::Ended(..)) && !self.is_cleared
    }

    /// How many leases and waiting requests are bound to it.
    pub fn bonds(&self) -> usize {
        self.held.len() + self.waits.len()
    }

    /// What its client and others are told of it; the leases only where they are asked for.
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

/// A session as an engine keeps it: without its leases, which say themselves whose they are.
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
    /// Until when it lives, or when it ended.
    #[serde(rename = "u", default)]
    until_ms: u64,
}

impl Session {
    /// The session as an engine keeps it.
    pub fn to_stored(&self) -> StoredSession {
        let (ended, until_ms) = match self.state {
            State::Until(until_ms) => (None, until_ms),
            State::Ended(reason, at_ms) => (Some(reason), at_ms),
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

    /// A session as it is read, without its leases.
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
                None => State::Until(reading.end(stored.until_ms, stored.ttl_ms.ms())),
                Some(reason) => State::Ended(reason, reading.past(stored.until_ms)),
            },
            held: BTreeSet::new(),
            waits: BTreeSet::new(),
            // Where there is one server, it ends everything in one step.
            is_cleared: stored.is_cleared || matches!(reading, Reading::Restart { .. }),
        }
    }
}
