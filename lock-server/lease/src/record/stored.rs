//! What of a record must survive a restart.

use std::collections::VecDeque;

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, Owner, SessionId, Token, Ttl};
use serde::{Deserialize, Serialize};

use super::{Closed, Ended, Holder, Record};
use crate::Mode;

/// What of a record must survive a restart. Moments do not: a clock that starts anew cannot tell
/// them, so leases and lock-delays get their full time again and retention starts again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredRecord {
    /// The one lease that a lock could have in files of format 1.
    #[serde(default, skip_serializing)]
    holder: Option<StoredHolder>,
    #[serde(default)]
    holders: Vec<StoredHolder>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    closed: Vec<StoredClosed>,
    ended: Vec<StoredEnded>,
}

/// A lease in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredHolder {
    lease_id: LeaseId,
    token: Token,
    owner: Owner,
    #[serde(default, skip_serializing_if = "StoredMode::is_exclusive")]
    mode: StoredMode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<SessionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    incarnation: Option<Owner>,
    ttl_ms: Ttl,
    #[serde(default, skip_serializing_if = "is_zero")]
    lock_delay_ms: u64,
    metadata: Option<String>,
}

/// A closed place in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredClosed {
    owner: Owner,
    token: Token,
    #[serde(default, skip_serializing_if = "StoredMode::is_exclusive")]
    mode: StoredMode,
    lock_delay_ms: u64,
}

/// An ended lease in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredEnded {
    lease_id: LeaseId,
    token: Option<Token>,
    owner: Option<Owner>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    incarnation: Option<Owner>,
    reason: EndReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    why: Option<Owner>,
    held_ms: u64,
}

/// A mode in the journal: `"exclusive"`, `"shared"`, `{"permit":{"size":3}}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum StoredMode {
    #[default]
    Exclusive,
    Shared,
    Permit {
        size: u32,
    },
}

impl StoredMode {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_exclusive(&self) -> bool {
        *self == Self::Exclusive
    }
}

impl From<Mode> for StoredMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared => Self::Shared,
            Mode::Permit { size } => Self::Permit { size },
        }
    }
}

impl From<StoredMode> for Mode {
    fn from(mode: StoredMode) -> Self {
        match mode {
            StoredMode::Exclusive => Self::Exclusive,
            StoredMode::Shared => Self::Shared,
            StoredMode::Permit { size } => Self::Permit { size },
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Record {
    /// The part that is journalled.
    pub fn to_stored(&self) -> StoredRecord {
        StoredRecord {
            holder: None,
            holders: self.holders.iter().map(StoredHolder::from_live).collect(),
            closed: self.closed.iter().map(StoredClosed::from_live).collect(),
            ended: self.ended.iter().map(StoredEnded::from_live).collect(),
        }
    }

    /// A record as it is after a restart at `now_ms`.
    pub fn from_stored(stored: StoredRecord, now_ms: u64) -> Self {
        let holders = stored.holder.into_iter().chain(stored.holders);
        Self {
            holders: holders.map(|holder| holder.into_live(now_ms)).collect(),
            closed: stored.closed.into_iter().map(|closed| closed.into_live(now_ms)).collect(),
            queue: VecDeque::new(),
            ended: stored.ended.into_iter().map(|ended| ended.into_live(now_ms)).collect(),
        }
    }
}

impl StoredHolder {
    fn from_live(holder: &Holder) -> Self {
        Self {
            lease_id: holder.lease_id,
            token: holder.token,
            owner: holder.owner.clone(),
            mode: holder.mode.into(),
            session: holder.session,
            incarnation: holder.incarnation.clone(),
            ttl_ms: holder.ttl,
            lock_delay_ms: holder.lock_delay_ms,
            metadata: holder.metadata.clone(),
        }
    }

    fn into_live(self, now_ms: u64) -> Holder {
        Holder {
            lease_id: self.lease_id,
            token: self.token,
            owner: self.owner,
            mode: self.mode.into(),
            ttl: self.ttl_ms,
            session: self.session,
            incarnation: self.incarnation,
            metadata: self.metadata,
            lock_delay_ms: self.lock_delay_ms,
            granted_at_ms: now_ms,
            expires_at_ms: now_ms + self.ttl_ms.ms(),
            renewals: 0,
            handed: false,
        }
    }
}

impl StoredClosed {
    fn from_live(closed: &Closed) -> Self {
        Self {
            owner: closed.owner.clone(),
            token: closed.token,
            mode: closed.mode.into(),
            lock_delay_ms: closed.delay_ms,
        }
    }

    fn into_live(self, now_ms: u64) -> Closed {
        Closed {
            owner: self.owner,
            token: self.token,
            mode: self.mode.into(),
            delay_ms: self.lock_delay_ms,
            granted_at_ms: now_ms,
            until_ms: now_ms.saturating_add(self.lock_delay_ms),
        }
    }
}

impl StoredEnded {
    fn from_live(ended: &Ended) -> Self {
        Self {
            lease_id: ended.lease_id,
            token: ended.token,
            owner: ended.owner.clone(),
            incarnation: ended.incarnation.clone(),
            reason: ended.reason,
            why: ended.why.clone(),
            held_ms: ended.held_ms,
        }
    }

    fn into_live(self, now_ms: u64) -> Ended {
        Ended {
            lease_id: self.lease_id,
            token: self.token,
            owner: self.owner,
            incarnation: self.incarnation,
            reason: self.reason,
            why: self.why,
            held_ms: self.held_ms,
            at_ms: now_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = r#"{"holder":{"lease_id":"11111111-1111-4111-8111-111111111111",
        "token":34,"owner":"worker","ttl_ms":15000,"metadata":null},
        "ended":[{"lease_id":"22222222-2222-4222-8222-222222222222","token":33,"owner":"worker",
        "reason":"superseded","held_ms":5}]}"#;

    /// A file that was written when a lock had one lease at most.
    #[test]
    fn the_one_lease_of_an_old_file_is_a_holder() {
        let stored: StoredRecord = serde_json::from_str(BEFORE).unwrap();
        let record = Record::from_stored(stored, 100);
        let holder = record.holders.first().unwrap();
        assert_eq!((holder.token.get(), holder.mode), (34, Mode::Exclusive));
        assert_eq!((holder.expires_at_ms, holder.lock_delay_ms), (15_100, 0));
        assert_eq!((record.holders.len(), record.closed.len(), record.ended.len()), (1, 0, 1));
        let again = serde_json::to_string(&record.to_stored()).unwrap();
        assert!(again.contains("\"holders\":["), "{again}");
        let read = Record::from_stored(serde_json::from_str(&again).unwrap(), 100);
        assert_eq!(read, record, "what is written now is read again");
    }

    /// A file that was changed by hand.
    #[test]
    fn a_lock_delay_without_end_is_no_overflow() {
        let text = format!(
            r#"{{"closed":[{{"owner":"o","token":9,"lock_delay_ms":{}}}],"ended":[]}}"#,
            u64::MAX
        );
        let record = Record::from_stored(serde_json::from_str(&text).unwrap(), 100);
        assert_eq!(record.closed[0].until_ms, u64::MAX);
    }

    #[test]
    fn every_mode_outlasts_a_restart() {
        let mut record = Record::from_stored(serde_json::from_str(BEFORE).unwrap(), 100);
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { size: 7 }] {
            let mut holder = record.holders.first().unwrap().clone();
            (holder.mode, holder.lock_delay_ms) = (mode, 40);
            record.closed = vec![Closed::after(&holder, 100).unwrap()];
            record.holders = [holder].into_iter().collect();
            let text = serde_json::to_string(&record.to_stored()).unwrap();
            assert_eq!(Record::from_stored(serde_json::from_str(&text).unwrap(), 100), record);
        }
    }
}
