//! Events for observers: a report of each transition. No rule reads it.

use fence_protocol::wire::event::{Event, EventKind};
use fence_protocol::{LockName, SessionId};

use super::{Machine, Related};
use crate::record::{Ended, Holder};

/// Events since the last call of [`Machine::take_events`], each with the record whose change it
/// reports.
#[derive(Debug, Default)]
pub(super) struct Reports {
    is_on: bool,
    events: Vec<(Related, Event)>,
}

impl Machine {
    /// Starts to collect events.
    pub fn report_events(&mut self) {
        self.reports.is_on = true;
    }

    /// Takes the events since the last call, in order, each with the record whose change it
    /// reports. A token among them may still have to be [lifted](super::lift).
    pub fn take_events(&mut self) -> Vec<(Related, Event)> {
        std::mem::take(&mut self.reports.events)
    }

    /// Drops the events of decisions on a record that were discarded.
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

    /// Swaps the last two events, the end of a lease and the grant that replaced it, so that an
    /// observer never sees the lock without a holder.
    pub(super) fn report_end_last(&mut self) {
        if let [.., ended, granted] = &mut self.reports.events[..] {
            std::mem::swap(ended, granted);
        }
    }

    /// Reports a change of a session.
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
