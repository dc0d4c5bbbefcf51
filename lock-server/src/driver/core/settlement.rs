//! Settlement of a committed batch: replies to its requests, and later tokens.

use std::collections::HashSet;

use fence_protocol::{LeaseId, LockName};
use lease::{Delivery, Record, lift};

use super::{Core, Decisions, EndedBy, Submission, lock_of};
use crate::driver::decided::{Decided, Lift};
use crate::driver::op::{Asking, Op, Remainder};
use crate::engines::contract::{Committed, Key};

impl Core {
    /// Settles a batch by the result of its commit.
    pub(crate) fn settle(
        &mut self,
        submission: Submission,
        committed: Committed,
        now_ms: u64,
        at_ms: u64,
    ) {
        let Submission { batch, mut decided, groups, .. } = submission;
        decided.lift.by = committed.base.saturating_sub(decided.lift.counter);
        let ahead_ms = committed.now_ms.map_or(0, |ms| ms.saturating_sub(decided.now_ms));
        decided.lift.late_ms = ahead_ms.saturating_sub(at_ms.saturating_sub(decided.at_ms));
        let counter = committed.base.saturating_add(batch.tokens);
        self.counter_seen = self.counter_seen.max(counter);
        self.machine.raise_counter(counter);
        let mut received = HashSet::new();
        let mut lost = Vec::new();
        for (decisions, outcome) in groups.into_iter().zip(committed.groups) {
            match outcome {
                Ok(()) => self.settle_group(decisions, decided, &mut received),
                Err(snapshots) => lost.push((decisions, snapshots)),
            }
        }
        // Each is retried before the rest, so the last one is put there first: a store that commits
        // one group of many would starve the others otherwise.
        for (decisions, snapshots) in lost.into_iter().rev() {
            self.lose(decisions, snapshots, now_ms);
        }
        if !received.is_empty() {
            // Their first callers left while this batch was under way, and another call with the
            // same id has the grant.
            self.pending.retain(|op| op.withdrawn().is_none_or(|key| !received.contains(&key)));
        }
    }

    /// Adds to `received` the requests that waited and whose grant has reached a caller.
    fn settle_group(
        &mut self,
        decisions: Decisions,
        decided: Decided,
        received: &mut HashSet<(LockName, LeaseId)>,
    ) {
        let Decisions { ops, deliveries, written, events, keys } = decisions;
        let Lift { counter, by, .. } = decided.lift;
        self.reported.extend(events.into_iter().map(|mut event| {
            event.token = event.token.map(|token| lift(token, counter, by));
            event
        }));
        if !self.is_alone {
            let locks: Vec<LockName> = written.iter().filter_map(|(key, _)| lock_of(key)).collect();
            self.machine.lift_tokens(&locks, counter, by);
            for (key, version) in written {
                if let Key::Session(id) = &key {
                    self.note_ended(*id, EndedBy::This);
                }
                self.note_version(key, version);
            }
        }
        let mut withdrawn = Vec::new();
        for op in ops {
            match op.finish(decided, &mut self.waiters) {
                Remainder::Withdraw(withdraw) => withdrawn.push(withdraw),
                remainder => self.take_on(remainder),
            }
        }
        for withdraw in withdrawn {
            // A caller that left may have retried in this batch: it waits at the position of both.
            if withdraw.withdrawn().is_none_or(|key| !self.waiters.has(&key)) {
                self.pending.push_back(Box::new(withdraw));
            }
        }
        for delivery in deliveries {
            if self.waits_again(&delivery) {
                continue;
            }
            // It is received, or withdrawn at once.
            let lock = &delivery.lock;
            let lease_id = delivery.lease_id;
            self.abandoned.retain(|(locks, id)| *id != lease_id || !locks.contains(lock));
            let granted = delivery.result.is_ok().then(|| (lock.clone(), lease_id));
            let remainder = Remainder::from(self.waiters.deliver(delivery, decided));
            if !matches!(remainder, Remainder::Withdraw(_)) {
                received.extend(granted);
            }
            self.take_on(remainder);
        }
        for lock in keys.iter().filter_map(lock_of) {
            self.ask_again(&lock);
        }
    }

    /// Returns whether a refused request has a queue entry: its wait was over, and a retry came in
    /// the same batch. The callers here get the retry's reply.
    fn waits_again(&self, delivery: &Delivery) -> bool {
        let waits = |record: &Record| record.queue.get(delivery.lease_id).is_some();
        delivery.result.is_err() && self.machine.record(&delivery.lock).is_some_and(waits)
    }

    /// Retries requests that wait here and have no queue entry: the engine may have dropped the
    /// record, and this server has written it anew.
    fn ask_again(&mut self, lock: &LockName) {
        if self.is_alone || !self.waiters.wait_for(lock) {
            return;
        }
        let record = self.machine.record(lock);
        let queue = record.into_iter().flat_map(|record| record.queue.iter());
        if queue.filter(|waiter| waiter.server == self.server.0).count() >= self.waiters.count(lock)
        {
            return;
        }
        let missing = self.waiters.take_missing(lock, record);
        self.pending.extend(missing.into_iter().map(Asking::boxed));
    }

    fn take_on(&mut self, remainder: Remainder) {
        match remainder {
            Remainder::Nothing => {}
            Remainder::Withdraw(withdraw) => self.pending.push_back(Box::new(withdraw)),
            Remainder::Confirm(grant) => self.pending_grants.push(grant),
            Remainder::Ask(waiting) => self.pending.push_back(Asking::boxed(waiting)),
        }
    }
}
