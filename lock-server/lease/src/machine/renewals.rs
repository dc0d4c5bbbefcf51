//! Renewals of live leases.

use fence_protocol::{LeaseId, LockName, Ttl};

use super::Machine;
use super::alarms::Alarm;
use crate::{Grant, NoSession, StoreError};

impl Machine {
    /// Restores the time to live of a lease; of one that is bound to a session, only returns the
    /// remaining time.
    ///
    /// # Errors
    /// [`StoreError::Lost`]; [`StoreError::Session`] if a bound lease is given another time to
    /// live.
    pub fn renew(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        lease_id: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError> {
        self.tick_for(now_ms, lock);
        let Some(record) = self.records.get_mut(lock) else {
            return Err(self.gone_from(lock, lease_id));
        };
        let before = record.next_ms();
        let Some(holder) = record.holders.get_mut(lease_id) else {
            return Err(self.gone_from(lock, lease_id));
        };
        if let Some(id) = holder.session {
            if ttl.is_some() {
                return Err(NoSession::Bound.refusal(id));
            }
            self.sessions.refresh(now_ms, holder);
            holder.renewals += 1;
            holder.confirm();
            let grant = holder.grant(now_ms, 0);
            self.note_for_others(lock);
            return Ok(grant);
        }
        let ttl = ttl.unwrap_or(holder.ttl);
        if ttl != holder.ttl {
            // A restart gives a lease its full time again, so only another time to live is written
            // to the journal: a plain renewal costs no write.
            holder.ttl = ttl;
            self.dirty.insert(lock.clone());
        }
        let slack_ms = Some(holder.expires_at_ms.saturating_sub(now_ms));
        holder.expires_at_ms = now_ms + ttl.ms();
        holder.renewals += 1;
        holder.confirm();
        let grant = Grant { slack_ms, ..holder.grant(now_ms, 0) };
        let after = record.next_ms();
        if before != after {
            self.move_alarm(lock, before, after);
        }
        self.note_for_others(lock);
        Ok(grant)
    }

    fn move_alarm(&mut self, lock: &LockName, before: Option<u64>, after: Option<u64>) {
        if let Some(at_ms) = before {
            self.alarms.remove(&(at_ms, lock.clone(), Alarm::Record));
        }
        if let Some(at_ms) = after {
            self.alarms.insert((at_ms, lock.clone(), Alarm::Record));
        }
    }
}
