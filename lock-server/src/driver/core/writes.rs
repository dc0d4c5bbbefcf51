//! Records as they are written.

use super::*;

impl Core {
    /// Returns the longest time for which a lease of a lock may live, with its lock-delay.
    pub(super) fn longest_ms(&self, lock: &LockName, now_ms: u64) -> u64 {
        let holders =
            self.machine.record(lock).into_iter().flat_map(|record| record.holders.iter());
        let lives_ms = holders.map(|holder| {
            holder.expires_at_ms.saturating_sub(now_ms).saturating_add(holder.lock_delay_ms)
        });
        lives_ms.max().unwrap_or(0)
    }

    pub(super) fn write_of_lock(&mut self, lock: &LockName, decided: Decided) -> Write {
        let key = Key::Lock(lock.clone());
        let version = self.next_version();
        // If this server is alone, the tokens of a batch are those that were decided on.
        let counter = if self.is_alone { u64::MAX } else { decided.lift.counter };
        let change = match self.machine.record(lock) {
            None => Change::Remove,
            Some(record) => Change::Put {
                version,
                value: stored::record(record, counter),
                lives_ms: lives_ms(record, decided.now_ms, self.retention_ms),
            },
        };
        let places = self.machine.take_places(lock);
        let items = places.into_iter().map(|(place, waiter)| {
            let value = waiter.map(|(waiter, parts)| stored::waiter(waiter, parts));
            (place_name(place), value)
        });
        Write { key, change, items: items.collect() }
    }

    pub(super) fn write_of_session(
        &mut self,
        id: SessionId,
        decided: Decided,
        items: Items,
    ) -> Write {
        let key = Key::Session(id);
        let version = self.next_version();
        let change = match self.machine.session(id) {
            None => Change::Remove,
            Some(session) => {
                // A session that leases name is not forgotten.
                let until_ms = session.is_cleared.then(|| session.alarm_ms(self.retention_ms));
                let lives_ms =
                    |until_ms: u64| until_ms.saturating_sub(decided.now_ms) + self.retention_ms;
                let value = stored::session(session);
                Change::Put { version, value, lives_ms: until_ms.map(lives_ms) }
            }
        };
        Write { key, change, items }
    }
}

/// Returns the time for which a record matters; `None` while sessions or waiters decide.
fn lives_ms(record: &Record, now_ms: u64, retention_ms: u64) -> Option<u64> {
    let is_open = record.holders.iter().any(|holder| holder.session.is_some());
    let waits = record.queue.iter().map(|waiter| waiter.until_ms);
    let ends = record.holders.iter().map(|holder| holder.expires_at_ms);
    let opens = record.closed.iter().map(|closed| closed.until_ms);
    let last_ms = waits.chain(ends).chain(opens).max().unwrap_or(now_ms);
    let spare_ms = record.holders.iter().map(|holder| holder.lock_delay_ms).max().unwrap_or(0);
    let margin_ms = if record.is_idle() { 0 } else { CLOCK_MARGIN_MS };
    let lives_ms = last_ms.saturating_sub(now_ms) + spare_ms + retention_ms + margin_ms;
    (!is_open).then_some(lives_ms.max(1))
}
