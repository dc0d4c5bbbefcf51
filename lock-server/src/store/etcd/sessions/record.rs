//! What etcd knows of a session, and what that means. Without I/O and without a clock.

use fence_protocol::wire::session::SessionEndReason;
use fence_protocol::{Owner, SessionId, Ttl};
use serde::{Deserialize, Serialize};

use super::super::values;
use super::super::wire::TxnReply;
use crate::store::{NewSession, NoSession, StoreError};

/// The value of `S/<id>`: everything but whether it lives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::store::etcd) struct Stored {
    pub(in crate::store::etcd) owner: Owner,
    pub(in crate::store::etcd) ttl_ms: Ttl,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) metadata: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) principal: Option<String>,
    /// By the clock of the server that it began at; only people look at it.
    pub(super) created_at_ms: u64,
    /// The etcd lease that `l`, `s` and everything bound to the session hang on.
    pub(in crate::store::etcd) lease: u64,
    /// For how long etcd keeps it alive without a word, in seconds; never shorter than `ttl_ms`.
    pub(super) lease_ttl_s: u64,
    /// The etcd lease of what is remembered when the session has ended.
    pub(in crate::store::etcd) lease_after: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) blocked: Option<Blocked>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<SessionEndReason>,
}

/// Why heartbeats are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Blocked {
    pub(super) reason: Owner,
    /// The revision of the last heartbeat: whoever made it knows when the session ends.
    pub(super) last_beat: u64,
    /// How many there were.
    pub(super) heartbeats: u64,
}

impl Stored {
    pub(super) fn begin(
        new: &NewSession,
        created_at_ms: u64,
        lease: u64,
        lease_ttl_s: u64,
        lease_after: u64,
    ) -> Self {
        Self {
            owner: new.owner.clone(),
            ttl_ms: new.ttl,
            metadata: new.metadata.clone(),
            principal: new.principal.clone(),
            created_at_ms,
            lease,
            lease_ttl_s,
            lease_after,
            blocked: None,
            ended: None,
        }
    }

    /// How it ends when its time passes.
    pub(super) fn natural_end(&self) -> SessionEndReason {
        match self.blocked {
            Some(_) => SessionEndReason::Blocked,
            None => SessionEndReason::Expired,
        }
    }

    pub(super) fn text(&self) -> String {
        values::written(self)
    }
}

/// A session as etcd showed it at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) stored: Stored,
    /// The last change of the record.
    pub(super) stored_revision: u64,
    /// Whether its etcd lease is there, and with it everything that is bound to it.
    pub(super) is_there: bool,
    /// The last heartbeat, and how many there were; `None` where it serves no more.
    pub(super) serves: Option<Beat>,
    /// How many leases and waiting requests are bound to it.
    pub(super) bonds: usize,
}

/// A heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beat {
    pub(super) revision: u64,
    pub(super) count: u64,
}

impl Seen {
    /// Reads the answers to `S`, `l`, `s` and the count of `b`; `None` where nothing is known.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where the record is not ours.
    pub(super) fn read(reply: TxnReply) -> Result<Option<Self>, StoreError> {
        let mut ranges = reply.ranges();
        let mut next = || ranges.next().unwrap_or_default();
        let (record, live, beat, bonds) = (next(), next(), next(), next());
        let Some(record) = record.kvs.first() else { return Ok(None) };
        let serves = beat.kvs.first().map(|beat| Beat {
            revision: beat.mod_revision,
            count: beat.version.saturating_sub(1),
        });
        Ok(Some(Self {
            stored: values::read(record)?,
            stored_revision: record.mod_revision,
            is_there: !live.kvs.is_empty(),
            serves,
            bonds: usize::try_from(bonds.count).unwrap_or(usize::MAX),
        }))
    }

    /// Whether it lives.
    ///
    /// # Errors
    /// How it ended.
    pub(super) fn lives(&self) -> Result<(), NoSession> {
        match self.stored.ended {
            Some(reason) => Err(NoSession::Ended(reason)),
            None if self.is_there => Ok(()),
            None => Err(NoSession::Ended(self.stored.natural_end())),
        }
    }

    /// The last heartbeat, whoever heard it.
    pub(super) fn last_beat(&self) -> Option<u64> {
        let blocked = || self.stored.blocked.as_ref().map(|blocked| blocked.last_beat);
        self.serves.map(|beat| beat.revision).or_else(blocked)
    }

    /// How often it was renewed.
    pub(super) fn heartbeats(&self) -> u64 {
        let blocked = || self.stored.blocked.as_ref().map(|blocked| blocked.heartbeats);
        self.serves.map(|beat| beat.count).or_else(blocked).unwrap_or(0)
    }

    /// The end of a session that has ended and is still there must be carried through by whoever
    /// sees it: its first server may be gone.
    pub(super) fn is_half_ended(&self) -> bool {
        self.is_there && self.stored.ended.is_some()
    }
}

/// The sessions that one server watches to the millisecond: those whose last heartbeat it heard.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    by_time: std::collections::BTreeSet<(u64, SessionId)>,
    by_id: std::collections::HashMap<SessionId, Deadline>,
}

/// When a session ends, if this heartbeat is still the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deadline {
    /// By this server's monotonic clock.
    pub(super) at_ms: u64,
    /// The revision of the heartbeat.
    pub(super) beat: u64,
}

impl Deadlines {
    /// Notes a heartbeat. One that is older than what is known changes nothing.
    pub(super) fn note(&mut self, id: SessionId, deadline: Deadline) {
        match self.by_id.get(&id) {
            Some(known) if known.beat > deadline.beat => return,
            Some(known) => {
                self.by_time.remove(&(known.at_ms, id));
            }
            None => {}
        }
        self.by_time.insert((deadline.at_ms, id));
        self.by_id.insert(id, deadline);
    }

    /// Forgets a session.
    pub(super) fn forget(&mut self, id: SessionId) {
        if let Some(known) = self.by_id.remove(&id) {
            self.by_time.remove(&(known.at_ms, id));
        }
    }

    /// Forgets a session, unless it was heard of again.
    pub(super) fn forget_passed(&mut self, id: SessionId, now_ms: u64) {
        if self.by_id.get(&id).is_some_and(|known| known.at_ms <= now_ms) {
            self.forget(id);
        }
    }

    /// When the session ends, where this server had its last heartbeat.
    pub(super) fn of(&self, id: SessionId, last_beat: Option<u64>) -> Option<u64> {
        self.by_id.get(&id).filter(|known| Some(known.beat) == last_beat).map(|known| known.at_ms)
    }

    /// The first of them, and its session.
    pub(super) fn first(&self) -> Option<(u64, SessionId)> {
        self.by_time.first().copied()
    }

    /// Looks at a session again at that time, for what could not be done now.
    pub(super) fn postpone(&mut self, id: SessionId, at_ms: u64) {
        if let Some(known) = self.by_id.get(&id).copied() {
            self.by_time.remove(&(known.at_ms, id));
            self.by_time.insert((at_ms, id));
            self.by_id.insert(id, Deadline { at_ms, ..known });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(byte: u128) -> SessionId {
        SessionId::new(uuid::Uuid::from_u128(byte)).unwrap()
    }

    fn seen() -> Seen {
        let new = NewSession {
            session_id: id(1),
            owner: Owner::new("me").unwrap(),
            ttl: Ttl::from_ms(1_500).unwrap(),
            metadata: None,
            principal: None,
        };
        Seen {
            stored: Stored::begin(&new, 7, 11, 2, 12),
            stored_revision: 3,
            is_there: true,
            serves: Some(Beat { revision: 3, count: 0 }),
            bonds: 0,
        }
    }

    #[test]
    fn a_session_whose_etcd_lease_is_gone_ended_as_its_time_passed() {
        let mut session = seen();
        assert_eq!(session.lives(), Ok(()));
        session.is_there = false;
        assert_eq!(session.lives(), Err(NoSession::Ended(SessionEndReason::Expired)));
        let reason = Owner::new("replaced").unwrap();
        session.stored.blocked = Some(Blocked { reason, last_beat: 3, heartbeats: 2 });
        assert_eq!(session.lives(), Err(NoSession::Ended(SessionEndReason::Blocked)));
        session.is_there = true;
        session.serves = None;
        assert_eq!((session.lives(), session.last_beat()), (Ok(()), Some(3)));
        assert_eq!(session.heartbeats(), 2);
        session.stored.ended = Some(SessionEndReason::Ended);
        assert_eq!(session.lives(), Err(NoSession::Ended(SessionEndReason::Ended)));
        assert!(session.is_half_ended());
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let stored = seen().stored;
        let read: Stored = serde_json::from_str(&stored.text()).unwrap();
        assert_eq!(read, stored);
    }

    #[test]
    fn a_deadline_belongs_to_the_last_heartbeat_that_was_heard() {
        let mut deadlines = Deadlines::default();
        deadlines.note(id(1), Deadline { at_ms: 100, beat: 5 });
        deadlines.note(id(2), Deadline { at_ms: 90, beat: 6 });
        deadlines.note(id(1), Deadline { at_ms: 50, beat: 4 });
        assert_eq!(deadlines.first(), Some((90, id(2))));
        assert_eq!(deadlines.of(id(1), Some(5)), Some(100));
        assert_eq!(deadlines.of(id(1), Some(7)), None, "another server heard a later one");
        deadlines.note(id(2), Deadline { at_ms: 200, beat: 8 });
        assert_eq!(deadlines.first(), Some((100, id(1))));
        deadlines.postpone(id(1), 300);
        assert_eq!(deadlines.first(), Some((200, id(2))));
        deadlines.forget_passed(id(2), 199);
        assert_eq!(deadlines.first(), Some((200, id(2))), "it was heard of again");
        deadlines.forget_passed(id(2), 200);
        deadlines.forget(id(1));
        assert_eq!(deadlines.first(), None);
    }
}
