//! What the values say. Everything here is without I/O.
//!
//! Moments (`…_at_ms`) are of the wall clock of the server that wrote them: people read them, and
//! nothing is decided by them.

use fence_protocol::wire::lock::{EndReason, EndedLease};
use fence_protocol::{LeaseId, Owner, SessionId, Token};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::wire::KeyValue;
use crate::store::StoreError;

/// The format of all values.
pub(super) const FORMAT: u32 = 1;
/// How many ended ids a lock remembers.
const ENDED_KEPT: usize = 8;

/// Where the tokens of a namespace are counted from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    pub(super) format: u32,
    /// A token is this and the revision of its grant.
    pub(super) offset: u64,
    /// The cluster that the offset was made for.
    pub(super) cluster_id: u64,
    /// How far that cluster's log was.
    pub(super) raft_index: u64,
    /// An operator vouched that no token was ever issued, and none was since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) fresh: bool,
    /// Random, and another one in every writing: after an older backup was put back, one revision
    /// may have written two of them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) nonce: String,
}

/// A live lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) lease_id: LeaseId,
    pub(super) owner: Owner,
    pub(super) ttl_ms: u64,
    /// Its token is this and the revision that created the key.
    pub(super) offset: u64,
    pub(super) granted_at_ms: u64,
    pub(super) renewals: u64,
    /// The server that ends it in time.
    pub(super) keeper: String,
    /// Whether a caller was told; a grant that nobody was told of is taken back.
    pub(super) claimed: bool,
    /// What its last writer calls this writing.
    pub(super) stamp: String,
    /// The etcd lease that the lock's record hangs on.
    pub(super) record_lease: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) metadata: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) incarnation: Option<Owner>,
    /// The session whose etcd lease it hangs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<SessionId>,
}

/// What is remembered of a lock's ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The grant that was made last, until it is written how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) granted: Option<Granted>,
    /// Newest first, at most eight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) ended: Vec<Ended>,
}

/// A grant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Granted {
    pub(super) lease_id: LeaseId,
    pub(super) owner: Owner,
    pub(super) offset: u64,
    pub(super) at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<SessionId>,
    /// Not known to the transaction that grants; whoever writes the record next fills it in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<Token>,
}

/// A lease that ended, or an id that was ended before it was granted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) lease_id: LeaseId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<Token>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) owner: Option<Owner>,
    pub(super) reason: EndReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<Owner>,
    pub(super) held_ms: u64,
    pub(super) at_ms: u64,
    /// What whoever ended it calls this writing.
    pub(super) stamp: String,
}

impl Ended {
    /// What whoever asks with its id is told.
    pub(super) fn lost(&self) -> StoreError {
        StoreError::Lost { reason: self.reason, why: self.why.clone() }
    }

    /// As people read it.
    pub(super) fn shown(&self, wall_ms: u64) -> EndedLease {
        EndedLease {
            lease_id: self.lease_id,
            token: self.token,
            owner: self.owner.clone(),
            reason: self.reason,
            why: self.why.clone(),
            held_ms: self.held_ms,
            ended_ms_ago: wall_ms.saturating_sub(self.at_ms),
        }
    }
}

/// Somebody in the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Waiter {
    pub(super) lease_id: LeaseId,
    pub(super) owner: Owner,
    pub(super) since_ms: u64,
    /// The server that its caller is connected to.
    pub(super) server: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<SessionId>,
}

/// How and why a lease ends, and by whom.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ending {
    pub(super) reason: EndReason,
    pub(super) why: Option<Owner>,
    pub(super) at_ms: u64,
    pub(super) stamp: String,
}

impl Record {
    /// How the lease with this id ended, where that is remembered.
    pub(super) fn ended(&self, lease_id: LeaseId) -> Option<&Ended> {
        self.ended.iter().find(|ended| ended.lease_id == lease_id)
    }

    /// The record after a grant. What was granted before and not written as ended has ended by
    /// itself.
    pub(super) fn grant(&self, granted: Granted, stamp: &str) -> Self {
        let mut next = self.settled(granted.at_ms, stamp);
        next.granted = Some(granted);
        next
    }

    /// The record where the lease that was granted last is known not to be live.
    pub(super) fn settled(&self, at_ms: u64, stamp: &str) -> Self {
        let Some(granted) = &self.granted else { return self.clone() };
        let stamp = stamp.to_owned();
        self.end(granted.lease_id, &Ending { reason: by_itself(granted), why: None, at_ms, stamp })
    }

    /// The record as if this id had not been granted.
    pub(super) fn without(&self, lease_id: LeaseId) -> Self {
        let granted = self.granted.clone().filter(|granted| granted.lease_id != lease_id);
        Self { granted, ended: self.ended.clone() }
    }

    /// The record with this live lease as the one that was granted last: another server's, or one
    /// whose record is lost.
    pub(super) fn holding(&self, at: &HeldAt) -> Self {
        if self.granted.as_ref().is_some_and(|granted| granted.lease_id == at.held.lease_id) {
            return self.clone();
        }
        let granted = Granted {
            lease_id: at.held.lease_id,
            owner: at.held.owner.clone(),
            offset: at.held.offset,
            at_ms: at.held.granted_at_ms,
            session: at.held.session,
            token: at.token().ok(),
        };
        Self { granted: Some(granted), ended: self.ended.clone() }
    }

    /// The record after a lease ended, or after an id was ended that was never granted.
    pub(super) fn end(&self, lease_id: LeaseId, ending: &Ending) -> Self {
        let mut next = self.clone();
        let granted = next.granted.take_if(|granted| granted.lease_id == lease_id);
        next.ended.insert(
            0,
            Ended {
                lease_id,
                token: granted.as_ref().and_then(|granted| granted.token),
                held_ms: granted
                    .as_ref()
                    .map_or(0, |granted| ending.at_ms.saturating_sub(granted.at_ms)),
                owner: granted.map(|granted| granted.owner),
                reason: ending.reason,
                why: ending.why.clone(),
                at_ms: ending.at_ms,
                stamp: ending.stamp.clone(),
            },
        );
        next.ended.truncate(ENDED_KEPT);
        next
    }
}

/// How a lease ended that nobody wrote an end of: its etcd lease was over.
fn by_itself(granted: &Granted) -> EndReason {
    if granted.session.is_some() { EndReason::SessionEnded } else { EndReason::Expired }
}

/// A live lease with the revisions of its key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HeldAt {
    pub(super) held: Held,
    pub(super) create_revision: u64,
    pub(super) mod_revision: u64,
    /// The etcd lease that it hangs on.
    pub(super) lease: u64,
}

impl HeldAt {
    /// # Errors
    /// [`StoreError::Exhausted`] where there is no such token.
    pub(super) fn token(&self) -> Result<Token, StoreError> {
        token(self.held.offset, self.create_revision)
    }
}

/// The token of a grant.
///
/// # Errors
/// [`StoreError::Exhausted`] where there is no such token.
pub(super) fn token(offset: u64, create_revision: u64) -> Result<Token, StoreError> {
    let value = offset.checked_add(create_revision).ok_or(StoreError::Exhausted)?;
    Token::new(value).map_err(|_| StoreError::Exhausted)
}

/// A record with the revision of its key; an absent one is empty and of revision 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RecordAt {
    pub(super) record: Record,
    pub(super) mod_revision: u64,
}

/// A place in the queue.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WaiterAt {
    pub(super) waiter: Waiter,
    pub(super) create_revision: u64,
    pub(super) mod_revision: u64,
}

/// Reads a value of ours.
///
/// # Errors
/// [`StoreError::Unavailable`] where it is none.
pub(super) fn read<T: DeserializeOwned>(kv: &KeyValue) -> Result<T, StoreError> {
    serde_json::from_str(&kv.value).map_err(|error| {
        StoreError::Unavailable(format!(
            "the value of {} in etcd is not Fencepost's, or of another version ({error}); nothing \
             was changed",
            kv.key
        ))
    })
}

/// Writes a value of ours.
pub(super) fn written<T: Serialize>(value: &T) -> String {
    // Plain structures with text keys: this does not fail.
    serde_json::to_string(value).unwrap_or_default()
}

pub(super) fn held_at(kv: &KeyValue) -> Result<HeldAt, StoreError> {
    Ok(HeldAt {
        held: read(kv)?,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        lease: kv.lease,
    })
}

/// The record, with the token of a grant that was made by the revision that wrote it.
pub(super) fn record_at(kv: &KeyValue) -> Result<RecordAt, StoreError> {
    Ok(filled(read(kv)?, kv.mod_revision))
}

/// The record that a revision wrote. A grant without a token was made by that very revision.
pub(super) fn filled(mut record: Record, mod_revision: u64) -> RecordAt {
    if let Some(granted) = record.granted.as_mut().filter(|granted| granted.token.is_none()) {
        granted.token = token(granted.offset, mod_revision).ok();
    }
    RecordAt { record, mod_revision }
}

pub(super) fn waiter_at(kv: &KeyValue) -> Result<WaiterAt, StoreError> {
    Ok(WaiterAt {
        waiter: read(kv)?,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> LeaseId {
        format!("00000000-0000-4000-8000-0000000000{number:02x}").parse().unwrap()
    }

    fn granted(number: u8) -> Granted {
        let owner = Owner::new("me").unwrap();
        Granted { lease_id: id(number), owner, offset: 100, at_ms: 5, session: None, token: None }
    }

    fn ending(reason: EndReason) -> Ending {
        Ending { reason, why: None, at_ms: 9, stamp: String::new() }
    }

    #[test]
    fn the_revision_of_the_grant_is_its_token_whoever_writes_next() {
        let record = filled(Record::default().grant(granted(1), "x"), 7).record;
        let other = record.end(id(2), &ending(EndReason::Released));
        let later = filled(other, 30).record;
        let ended = later.end(id(1), &ending(EndReason::Released));
        assert_eq!(ended.ended[0].token, Token::new(107).ok());
        assert_eq!((ended.ended[0].held_ms, ended.ended[1].token), (4, None));
        assert_eq!(ended.granted, None);
    }

    #[test]
    fn what_ended_by_itself_is_expired_when_the_next_is_granted() {
        let record = filled(Record::default().grant(granted(1), "x"), 7).record;
        let next = record.grant(granted(2), "y");
        assert_eq!(next.ended(id(1)).unwrap().reason, EndReason::Expired);
        assert_eq!(next.granted.unwrap().lease_id, id(2));
        let bound =
            Granted { session: "67e55044-10b1-426f-9247-bb680e5fe0c8".parse().ok(), ..granted(3) };
        let next = Record { granted: Some(bound), ended: Vec::new() }.settled(9, "z");
        assert_eq!(next.ended(id(3)).unwrap().reason, EndReason::SessionEnded);
    }

    #[test]
    fn eight_are_remembered() {
        let mut record = Record::default();
        for number in 0..20 {
            record = record.end(id(number), &ending(EndReason::Released));
        }
        assert_eq!(record.ended.len(), ENDED_KEPT);
        assert_eq!(record.ended[0].lease_id, id(19));
    }

    #[test]
    fn values_are_read_as_they_were_written() {
        let record = Record::default().grant(granted(1), "x");
        let kv = KeyValue { value: written(&record), mod_revision: 4, ..KeyValue::default() };
        assert_eq!(record_at(&kv).unwrap(), filled(record, 4));
        let foreign = KeyValue { key: "k".to_owned(), value: "x".to_owned(), ..kv };
        assert!(matches!(record_at(&foreign), Err(StoreError::Unavailable(_))));
    }
}
