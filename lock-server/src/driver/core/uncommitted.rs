//! Decisions that were not committed: they are retried on the records that were read, or refused.

use super::*;
use crate::driver::op::Withdraw;

impl Core {
    /// Retries a group that has lost a race, on the records that were read.
    pub(super) fn lose(&mut self, decisions: Decisions, snapshots: Vec<Snapshot>, now_ms: u64) {
        if let Err(error) = self.load(snapshots, now_ms) {
            tracing::error!(%error, "a record cannot be read");
            self.refuse(decisions, &error);
            return;
        }
        if decisions.ops.is_empty() {
            // A time-out or the end of a session decided it: it is decided again for the waiters
            // here.
            let awaited = |lock: &LockName| self.waiters.wait_for(lock);
            let locks = decisions.keys.iter().filter_map(lock_of).filter(awaited);
            let locks: Vec<Key> = locks.map(Key::Lock).collect();
            let looks = self.apart(locks).into_iter().map(|lock| look_at(lock).0);
            self.pending.extend(looks);
        }
        for mut op in decisions.ops.into_iter().rev() {
            if op.lost() > RACES_MAX {
                let text = "too many concurrent changes of the lock; retry the request";
                op.fail(StoreError::Unavailable(text.to_owned()));
            } else {
                self.pending.push_front(op);
            }
        }
    }

    /// Replaces the loaded records by those that were read: sessions first, because the state of
    /// leases depends on them.
    pub(crate) fn load(&mut self, snapshots: Vec<Snapshot>, now_ms: u64) -> Result<(), StoreError> {
        let (sessions, locks): (Vec<_>, Vec<_>) =
            snapshots.into_iter().partition(|snapshot| matches!(snapshot.key, Key::Session(_)));
        for snapshot in sessions.into_iter().chain(locks) {
            let version = snapshot.version;
            let key = snapshot.key.clone();
            match &key {
                Key::Session(id) => {
                    let session = stored::read_session(&snapshot)?;
                    self.machine.load_session(now_ms, *id, session);
                    self.note_ended(*id, EndedBy::Another);
                }
                Key::Lock(lock) => {
                    let read = stored::read_record(&snapshot, self.server, &*self.store)?;
                    let (record, groups) = read.unzip();
                    self.machine.load(now_ms, lock.clone(), record, groups.unwrap_or_default());
                    // A waiting request without an entry was granted meanwhile, or lost its entry.
                    let missing = self.waiters.take_missing(lock, self.machine.record(lock));
                    self.pending.extend(missing.into_iter().map(Asking::boxed));
                }
            }
            self.note_version(key, version);
        }
        Ok(())
    }

    pub(super) fn note_ended(&mut self, id: SessionId, by: EndedBy) {
        if self.machine.session(id).is_some_and(Session::is_to_be_cleared) {
            self.ended_sessions.entry(id).or_insert(by);
        }
    }

    /// Rolls back a batch that the store could not commit.
    pub(crate) fn fail(&mut self, submission: Submission, error: &StoreError) {
        self.roll_back_counter(submission.decided.lift.counter);
        let count: usize = submission.groups.iter().map(|decisions| decisions.ops.len()).sum();
        if matches!(error, StoreError::Limit { .. }) && count > 1 {
            // Nothing was done, because of one of them.
            self.one_by_one = count;
            for decisions in submission.groups.into_iter().rev() {
                self.forget(decisions.keys);
                decisions.ops.into_iter().rev().for_each(|op| self.pending.push_front(op));
            }
            return;
        }
        for decisions in submission.groups {
            self.forget(decisions.keys);
            for op in decisions.ops {
                if !op.has_waited() {
                    self.abandoned.extend(op.abandons(error));
                    op.fail(error.clone());
                } else if let Some(waiting) = op.into_waiting() {
                    // It is retried under its id when the store replies.
                    let left = self.waiters.insert(waiting).map(Withdraw::from);
                    self.pending.extend(left.map(|op| Box::new(op) as Box<dyn Op>));
                }
            }
        }
    }

    /// Pauses grants until `until_ms`: nothing was committed, and everything is decided again,
    /// without grants.
    pub(crate) fn pause(&mut self, submission: Submission, until_ms: u64) {
        self.is_paused = true;
        self.machine.pause(until_ms);
        self.roll_back_counter(submission.decided.lift.counter);
        let mut again: Vec<Box<dyn Op>> = Vec::new();
        for decisions in submission.groups {
            // Changes due without a request are noticed when the records are read again.
            let locks = decisions.keys.iter().filter(|key| matches!(key, Key::Lock(_)));
            again.extend(locks.map(|key| look_at(key.clone()).0));
            self.forget(decisions.keys);
            again.extend(decisions.ops);
        }
        again.into_iter().rev().for_each(|op| self.pending.push_front(op));
    }

    /// Rolls the counter back to that of a failed batch. A later batch may have issued tokens, and
    /// if an earlier batch failed too, the counter is lower already.
    fn roll_back_counter(&mut self, counter: u64) {
        let counter = counter.min(self.machine.counter()).max(self.counter_seen);
        self.machine.roll_back_counter(counter);
    }

    fn forget(&mut self, keys: Vec<Key>) {
        for key in keys {
            self.versions.remove(&key);
            match key {
                Key::Lock(lock) => self.machine.forget(&lock),
                Key::Session(id) => self.machine.forget_session(id),
            }
        }
    }

    /// Refuses requests with an error, and unloads their records.
    fn refuse(&mut self, decisions: Decisions, error: &StoreError) {
        self.forget(decisions.keys);
        for op in decisions.ops {
            self.abandoned.extend(op.abandons(error));
            op.fail(error.clone());
        }
    }

    /// Stops the driver. Every pending reply is dropped, which its caller reads as unknown.
    pub(crate) fn stop(&mut self, reason: String) {
        self.failed = Some(reason);
        self.pending.clear();
        self.in_flight.clear();
        self.waiters.clear();
    }
}
