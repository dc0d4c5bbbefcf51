//! Stored form of records.
//!
//! The names are short, because each record has them. Times are those of the clock that the
//! servers share. A token that the write itself issues is stored as its distance from the counter
//! before it, as a negative number: the counter is known only at the commit, and the engine stores
//! it beside the record.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, Owner, SessionId, Token, Ttl};
use serde::{Deserialize, Serialize};

use super::{Closed, Ended, Holder, Queue, Record};
use crate::Mode;

/// Interpretation of stored times and tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// After a restart of the only server, at `now_ms` of its new clock. Times of the old clock
    /// have no meaning, so leases and lock-delays get their full time again, and retention starts
    /// again.
    Restart {
        /// Current time.
        now_ms: u64,
    },
    /// As written.
    Shared {
        /// Counter before the tokens of the write.
        base: u64,
        /// Offset added to each time.
        shift_ms: i64,
    },
}

impl Reading {
    fn token(self, stored: StoredToken) -> Option<Token> {
        let base = match self {
            Self::Restart { .. } => 0,
            Self::Shared { base, .. } => base,
        };
        let token = match u64::try_from(stored.0) {
            Ok(token) => token,
            Err(_) => base.checked_add(stored.0.unsigned_abs())?,
        };
        Token::new(token).ok()
    }

    fn moment(self, stored_ms: u64) -> u64 {
        match self {
            Self::Restart { now_ms } => now_ms,
            Self::Shared { shift_ms, .. } => stored_ms.saturating_add_signed(shift_ms),
        }
    }

    /// Returns the end of a period that lasts `whole_ms`.
    pub(crate) fn end(self, stored_ms: u64, whole_ms: u64) -> u64 {
        match self {
            Self::Restart { now_ms } => now_ms.saturating_add(whole_ms),
            Self::Shared { .. } => self.moment(stored_ms),
        }
    }

    /// Returns a time in the past.
    pub(crate) fn past(self, stored_ms: u64) -> u64 {
        self.moment(stored_ms)
    }
}

/// A token, or its distance above the counter before its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct StoredToken(i64);

impl StoredToken {
    /// Encodes a token: one above `counter` is issued by the write.
    fn encode(token: Token, counter: u64) -> Self {
        let distance = token.get().saturating_sub(counter);
        let number = i64::try_from(if distance > 0 { distance } else { token.get() });
        let number = number.unwrap_or(i64::MAX);
        Self(if distance > 0 { -number } else { number })
    }
}

/// A record without its queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredRecord {
    #[serde(rename = "h", default, skip_serializing_if = "Vec::is_empty")]
    holders: Vec<StoredHolder>,
    #[serde(rename = "c", default, skip_serializing_if = "Vec::is_empty")]
    closed: Vec<StoredClosed>,
    #[serde(rename = "e", default, skip_serializing_if = "Vec::is_empty")]
    ended: Vec<StoredEnded>,
}

/// A stored lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredHolder {
    #[serde(rename = "i")]
    lease_id: LeaseId,
    #[serde(rename = "t")]
    token: StoredToken,
    #[serde(rename = "o")]
    owner: Owner,
    #[serde(rename = "m", default, skip_serializing_if = "StoredMode::is_exclusive")]
    mode: StoredMode,
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    session: Option<SessionId>,
    #[serde(rename = "n", default, skip_serializing_if = "Option::is_none")]
    incarnation: Option<Owner>,
    #[serde(rename = "l")]
    ttl_ms: Ttl,
    #[serde(rename = "d", default, skip_serializing_if = "is_zero")]
    lock_delay_ms: u64,
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none")]
    metadata: Option<String>,
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    principal: Option<String>,
    #[serde(rename = "g", default)]
    granted_at_ms: u64,
    #[serde(rename = "u", default)]
    expires_at_ms: u64,
    #[serde(rename = "r", default, skip_serializing_if = "is_zero")]
    renewals: u64,
    #[serde(rename = "a", default, skip_serializing_if = "Option::is_none")]
    deliverer: Option<u32>,
    #[serde(rename = "v", default, skip_serializing_if = "std::ops::Not::not")]
    is_unread: bool,
}

/// A stored place that a lock-delay keeps closed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredClosed {
    #[serde(rename = "o")]
    owner: Owner,
    #[serde(rename = "t")]
    token: StoredToken,
    #[serde(rename = "m", default, skip_serializing_if = "StoredMode::is_exclusive")]
    mode: StoredMode,
    #[serde(rename = "d")]
    lock_delay_ms: u64,
    #[serde(rename = "g", default)]
    granted_at_ms: u64,
    #[serde(rename = "u", default)]
    until_ms: u64,
}

/// A stored ended lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredEnded {
    #[serde(rename = "i")]
    lease_id: LeaseId,
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    token: Option<StoredToken>,
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    owner: Option<Owner>,
    #[serde(rename = "n", default, skip_serializing_if = "Option::is_none")]
    incarnation: Option<Owner>,
    #[serde(rename = "r")]
    reason: EndReason,
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    why: Option<Owner>,
    #[serde(rename = "h")]
    held_ms: u64,
    #[serde(rename = "u", default)]
    at_ms: u64,
}

/// A stored mode: `"x"`, `"s"`, `{"p":3}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) enum StoredMode {
    #[default]
    #[serde(rename = "x")]
    Exclusive,
    #[serde(rename = "s")]
    Shared,
    #[serde(rename = "p")]
    Permit(u32),
}

impl StoredMode {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) fn is_exclusive(&self) -> bool {
        *self == Self::Exclusive
    }
}

impl From<Mode> for StoredMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared => Self::Shared,
            Mode::Permit { size } => Self::Permit(size),
        }
    }
}

impl From<StoredMode> for Mode {
    fn from(mode: StoredMode) -> Self {
        match mode {
            StoredMode::Exclusive => Self::Exclusive,
            StoredMode::Shared => Self::Shared,
            StoredMode::Permit(size) => Self::Permit { size },
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Record {
    /// Returns the record without its queue, as an engine stores it. Tokens above `counter` are
    /// issued by the write.
    pub fn to_stored(&self, counter: u64) -> StoredRecord {
        let token = |token: Token| StoredToken::encode(token, counter);
        let holder = |holder: &Holder| StoredHolder {
            lease_id: holder.lease_id,
            token: token(holder.token),
            owner: holder.owner.clone(),
            mode: holder.mode.into(),
            session: holder.session,
            incarnation: holder.incarnation.clone(),
            ttl_ms: holder.ttl,
            lock_delay_ms: holder.lock_delay_ms,
            metadata: holder.metadata.clone(),
            principal: holder.principal.clone(),
            granted_at_ms: holder.granted_at_ms,
            expires_at_ms: holder.expires_at_ms,
            renewals: holder.renewals,
            deliverer: holder.deliverer,
            is_unread: holder.is_unread,
        };
        let closed = |closed: &Closed| StoredClosed {
            owner: closed.owner.clone(),
            token: token(closed.token),
            mode: closed.mode.into(),
            lock_delay_ms: closed.delay_ms,
            granted_at_ms: closed.granted_at_ms,
            until_ms: closed.until_ms,
        };
        let ended = |ended: &Ended| StoredEnded {
            lease_id: ended.lease_id,
            token: ended.token.map(token),
            owner: ended.owner.clone(),
            incarnation: ended.incarnation.clone(),
            reason: ended.reason,
            why: ended.why.clone(),
            held_ms: ended.held_ms,
            at_ms: ended.at_ms,
        };
        StoredRecord {
            holders: self.holders.iter().map(holder).collect(),
            closed: self.closed.iter().map(closed).collect(),
            ended: self.ended.iter().map(ended).collect(),
        }
    }

    /// Decodes a record, without its queue; `None` if it holds an invalid token.
    pub fn from_stored(stored: StoredRecord, reading: Reading) -> Option<Self> {
        let holder = |stored: StoredHolder| {
            Some(Holder {
                lease_id: stored.lease_id,
                token: reading.token(stored.token)?,
                owner: stored.owner,
                mode: stored.mode.into(),
                ttl: stored.ttl_ms,
                session: stored.session,
                incarnation: stored.incarnation,
                metadata: stored.metadata,
                lock_delay_ms: stored.lock_delay_ms,
                principal: stored.principal,
                granted_at_ms: reading.past(stored.granted_at_ms),
                expires_at_ms: reading.end(stored.expires_at_ms, stored.ttl_ms.ms()),
                renewals: stored.renewals,
                deliverer: stored.deliverer.filter(|_| matches!(reading, Reading::Shared { .. })),
                is_unread: stored.is_unread,
            })
        };
        let closed = |stored: StoredClosed| {
            Some(Closed {
                owner: stored.owner,
                token: reading.token(stored.token)?,
                mode: stored.mode.into(),
                delay_ms: stored.lock_delay_ms,
                granted_at_ms: reading.past(stored.granted_at_ms),
                until_ms: reading.end(stored.until_ms, stored.lock_delay_ms),
            })
        };
        let ended = |stored: StoredEnded| {
            let token = match stored.token {
                None => None,
                Some(token) => Some(reading.token(token)?),
            };
            Some(Ended {
                lease_id: stored.lease_id,
                token,
                owner: stored.owner,
                incarnation: stored.incarnation,
                reason: stored.reason,
                why: stored.why,
                held_ms: stored.held_ms,
                at_ms: reading.past(stored.at_ms),
            })
        };
        Some(Self {
            holders: stored.holders.into_iter().map(holder).collect::<Option<_>>()?,
            closed: stored.closed.into_iter().map(closed).collect::<Option<_>>()?,
            queue: Queue::default(),
            ended: stored.ended.into_iter().map(ended).collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: &str = r#"{"h":[{"i":"11111111-1111-4111-8111-111111111111","t":-2,"o":"worker",
        "l":15000,"g":40,"u":15040}],"e":[{"i":"22222222-2222-4222-8222-222222222222","t":33,
        "o":"worker","r":"superseded","h":5,"u":20}]}"#;

    fn read(text: &str, reading: Reading) -> Option<Record> {
        Record::from_stored(serde_json::from_str(text).unwrap(), reading)
    }

    #[test]
    fn moments_are_shifted_and_new_tokens_follow_the_counter() {
        let record = read(HELD, Reading::Shared { base: 40, shift_ms: 7 }).unwrap();
        let holder = record.holders.first().unwrap();
        assert_eq!((holder.token.get(), holder.mode), (42, Mode::Exclusive));
        assert_eq!((holder.granted_at_ms, holder.expires_at_ms), (47, 15_047));
        assert_eq!((record.ended[0].token.unwrap().get(), record.ended[0].at_ms), (33, 27));
        let stored = record.to_stored(40);
        assert_eq!(stored.holders[0].token, StoredToken(-2), "above the counter: new");
        assert_eq!(record.to_stored(42).holders[0].token, StoredToken(42));
        let again = Record::from_stored(stored, Reading::Shared { base: 40, shift_ms: 0 });
        assert_eq!(again, Some(record), "what is written is read as the same");
    }

    #[test]
    fn after_a_restart_everything_gets_its_full_time() {
        let record = read(HELD, Reading::Restart { now_ms: 100 }).unwrap();
        assert_eq!(record.holders.first().unwrap().expires_at_ms, 15_100);
        assert_eq!(record.ended[0].at_ms, 100);
    }

    /// A value that was edited by hand.
    #[test]
    fn zero_is_no_token_and_an_endless_delay_does_not_overflow() {
        for token in ["0", "-9223372036854775808", "9223372036854775807"] {
            let text = HELD.replace("\"t\":-2", &format!("\"t\":{token}"));
            assert_eq!(read(&text, Reading::Shared { base: 40, shift_ms: 0 }), None, "{token}");
        }
        let text = format!(r#"{{"c":[{{"o":"o","t":9,"d":{}}}]}}"#, u64::MAX);
        let record = read(&text, Reading::Restart { now_ms: 100 }).unwrap();
        assert_eq!(record.closed[0].until_ms, u64::MAX);
    }

    #[test]
    fn every_mode_outlasts_a_restart() {
        let reading = Reading::Shared { base: 40, shift_ms: 0 };
        let mut record = read(HELD, reading).unwrap();
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { size: 7 }] {
            let mut holder = record.holders.first().unwrap().clone();
            (holder.mode, holder.lock_delay_ms) = (mode, 40);
            holder.principal = Some("ci".to_owned());
            record.closed = vec![Closed::after(&holder, 100).unwrap()];
            record.holders = [holder].into_iter().collect();
            let text = serde_json::to_string(&record.to_stored(u64::MAX)).unwrap();
            assert_eq!(read(&text, reading), Some(record.clone()));
        }
    }
}
