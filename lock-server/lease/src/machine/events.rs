//! What a step did, for people who watch: a report that no rule reads.

use fence_protocol::wire::event::{Event, EventKind};
use fence_protocol::{LockName, SessionId};

use super::{Machine, Related};
use crate::record::{Ended, Holder};

/// Events since the last call of [`Machine::take_events`], each with the record whose change it reports.
#[derive(Debug, Default)]
pub(super) struct Reports {
    is_on: bool,
    events: Vec<(Related, Event)>,
}

impl Machine {
    /// Collects events from now on.
    pub fn report_events(&mut self) {
        self.reports.is_on = true;
    }

    /// The events since the last call, in order, each with the record whose change it reports. A token
    /// among them may still have to be [lifted](super::lift).
    pub fn take_events(&mut self) -> Vec<(Related, Event)> {
        std::mem::take(&mut self.reports.events)
    }

    /// What was decided of a record does not count.
    pub(super) fn forget_events(&mut self, record: &Related) {
        self.reports.events.retain(|(about, _)| about != record);
    }

    pub(super) fn report_grant(&mut self, lock: &LockName, holder: &Holder, waited_ms: u64) {
        if !self.reports.is_on {
            return;
        }
        let mut event = Event::new(EventKind::Granted).lock(lock).lease(holder.lease_id);
        (event.token, event.owner) = (Some(holder.token), Some(holder.owner.clone()));
        event.ttl_ms = Some(holder.expires_at_ms.saturating_sub(holder.granted_at_ms));
        (event.session_id, event.mode) = (holder.session, holder.mode.wire());
        event.waited_ms = Some(waited_ms);
        self.reports.events.push((Related::Lock(lock.clone()), event));
    }

    /// Reports the end of a lease.
    pub(super) fn report_end(&mut self, lock: &LockName, ended: &Ended) {
        if !self.reports.is_on {
            return;
        }
        let mut event =
            Event::new(EventKind::of_end(ended.reason)).lock(lock).lease(ended.lease_id);
        (event.token, event.owner) = (ended.token, ended.owner.clone());
        event.held_ms = Some(ended.held_ms);
        if let Some(why) = &ended.why {
            event = event.text(why.as_str());
        }
        self.reports.events.push((Related::Lock(lock.clone()), event));
    }

    /// The end of a lease was reported, and then the grant that took its place: they change places, so that
    /// who watches the holder never sees none.
    pub(super) fn report_end_last(&mut self) {
        if let [.., ended, granted] = &mut self.reports.events[..] {
            std::mem::swap(ended, granted);
        }
    }

    /// Reports what became of a session.
    pub(super) fn report_session(&mut self, kind: EventKind, id: SessionId) {
        let Some(session) = self.sessions.get(id).filter(|_| self.reports.is_on) else { return };
        let mut event = Event::new(kind);
        event.session_id = Some(id);
        match kind {
            EventKind::SessionBegun => {
                event.owner = Some(session.owner.clone());
                event.ttl_ms = Some(session.ttl.ms());
            }
            EventKind::SessionBlocked => {
                event.owner = Some(session.owner.clone());
                event = event.text(session.blocked.as_ref().map_or("", |why| why.as_str()));
            }
            _ => {}
        }
        self.reports.events.push((Related::Session(id), event));
    }
}
