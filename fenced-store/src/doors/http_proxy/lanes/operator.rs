//! Lanes as operators see them, and their decisions on quarantines.

use std::collections::BTreeSet;

use fence_protocol::LockName;
use fence_protocol::wire::lane::{LaneLine, LanePage, Quarantine, QuarantineRequest};

use super::{Lanes, Slot};
use crate::doors::http_proxy::lane::Event;
use crate::stores::contract::{FenceQuery, QuarantineChange};

impl Lanes {
    /// Lists the lanes in use.
    pub(crate) fn page(&self, query: &FenceQuery) -> LanePage {
        let now_ms = self.now_ms();
        let table = self.table();
        let mut found: BTreeSet<&LockName> = BTreeSet::new();
        for (lock, slot) in &table.slots {
            let is_after = query.after.as_ref().is_none_or(|after| lock > after);
            if !is_after || !lock.as_str().starts_with(&query.prefix) || slot.lane.is_idle() {
                continue;
            }
            found.insert(lock);
            // One more than asked for shows that there are more.
            if found.len() > query.limit + 1 {
                found.pop_last();
            }
        }
        let has_more = found.len() > query.limit;
        let lanes: Vec<LaneLine> = found
            .into_iter()
            .take(query.limit)
            .filter_map(|lock| table.slots.get(lock).map(|slot| self.line(lock, slot, now_ms)))
            .collect();
        let next_after = lanes.last().filter(|_| has_more).map(|line| line.lock.clone());
        LanePage { lanes, next_after }
    }

    /// Resolves or extends the quarantine of a lane, if it is the one that the request names.
    pub(crate) fn change(&self, lock: &LockName, request: &QuarantineRequest) -> QuarantineChange {
        let now_ms = self.now_ms();
        let mut table = self.table();
        let named = table.slots.get(lock).filter(|slot| self.id(slot) == request.quarantine());
        let event = named.and_then(|slot| {
            let quarantine = slot.lane.quarantine()?;
            match request {
                QuarantineRequest::Resolve { none_can_take_effect, .. } => {
                    let may_resolve = quarantine.unresolvable_until_ms <= now_ms;
                    (*none_can_take_effect && may_resolve).then_some(Event::Resolved)
                }
                QuarantineRequest::Extend { extend_ms, .. } => {
                    let until_ms = quarantine.until_ms.saturating_add(*extend_ms);
                    Some(Event::Extended { until_ms })
                }
            }
        });
        if let Some(event) = event {
            self.run(&mut table, lock, event, None);
        }
        let line = table.slots.get(lock).map(|slot| self.line(lock, slot, now_ms));
        QuarantineChange { is_done: event.is_some(), line }
    }

    fn id(&self, slot: &Slot) -> String {
        format!("{}-{}", self.quarantine_prefix, slot.quarantine)
    }

    fn line(&self, lock: &LockName, slot: &Slot, now_ms: u64) -> LaneLine {
        let quarantine = slot.lane.quarantine().map(|quarantine| Quarantine {
            id: self.id(slot),
            token: quarantine.token,
            cause: quarantine.cause,
            unknown_outcomes: quarantine.unknown_outcomes,
            ms_left: quarantine.until_ms.saturating_sub(now_ms),
            unresolvable_ms: quarantine.unresolvable_until_ms.saturating_sub(now_ms),
        });
        slot.lane.line(lock.clone(), quarantine)
    }
}
