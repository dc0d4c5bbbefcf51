//! Reads that decide nothing, where servers share the records: what is read is loaded into a machine
//! of its own, which says what it means.

use std::collections::BTreeSet;

use fence_protocol::wire::lock::{LockPage, LockReply};
use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};
use fence_protocol::{LeaseId, LockName, SessionId};
use lease::{Bond, Machine};

use super::op::Call;
use super::{Driver, stored};
use crate::store::records::Key;
use crate::store::{ListQuery, StoreError};

/// How many leases of a session are ended in one step.
const PART: usize = 256;
/// How many leases a reply on a session counts at most.
const COUNTED: usize = 100_000;

impl Driver {
    /// A machine with these locks and the sessions of their leases.
    async fn loaded(&self, locks: &[LockName]) -> Result<(Machine, u64), StoreError> {
        let inner = &self.inner;
        let keys: Vec<Key> = locks.iter().cloned().map(Key::Lock).collect();
        let (snapshots, _) = inner.store.read(&keys).await?;
        let mut records = Vec::new();
        let mut sessions = BTreeSet::new();
        for (lock, snapshot) in locks.iter().zip(&snapshots) {
            let Some((record, groups)) = stored::read_record(snapshot)? else { continue };
            sessions.extend(record.holders.iter().filter_map(|holder| holder.session));
            records.push((lock.clone(), record, groups));
        }
        let keys: Vec<Key> = sessions.into_iter().map(Key::Session).collect();
        let sessions = if keys.is_empty() { Vec::new() } else { inner.store.read(&keys).await?.0 };
        let now_ms = inner.store.now_ms();
        let mut machine = Machine::view(inner.limits);
        for snapshot in &sessions {
            if let Key::Session(id) = snapshot.key {
                machine.load_session(now_ms, id, stored::read_session(snapshot)?);
            }
        }
        for (lock, record, groups) in records {
            machine.load(now_ms, lock, Some(record), groups);
        }
        Ok((machine, now_ms))
    }

    pub(super) async fn shared_lock(&self, lock: &LockName) -> Result<LockReply, StoreError> {
        let (mut machine, now_ms) = self.loaded(std::slice::from_ref(lock)).await?;
        Ok(machine.show(now_ms, lock))
    }

    pub(super) async fn shared_locks(&self, query: ListQuery) -> Result<LockPage, StoreError> {
        let mut page = LockPage { locks: Vec::new(), next_after: None };
        let mut after = query.after.clone();
        loop {
            let limit = query.limit - page.locks.len();
            let next = ListQuery { prefix: query.prefix.clone(), after, limit };
            let (names, is_more) = self.inner.store.locks(&next).await?;
            let (mut machine, now_ms) = self.loaded(&names).await?;
            let all = ListQuery { prefix: String::new(), after: None, limit: names.len() };
            page.locks.extend(machine.list(now_ms, &all).locks);
            after = names.last().cloned();
            if !is_more || page.locks.len() >= query.limit || after.is_none() {
                page.next_after = after.filter(|_| is_more);
                return Ok(page);
            }
        }
    }

    async fn session_loaded(&self, ids: &[SessionId]) -> Result<(Machine, u64), StoreError> {
        let keys: Vec<Key> = ids.iter().copied().map(Key::Session).collect();
        let (snapshots, _) = self.inner.store.read(&keys).await?;
        let now_ms = self.inner.store.now_ms();
        let mut machine = Machine::view(self.inner.limits);
        for (id, snapshot) in ids.iter().zip(&snapshots) {
            machine.load_session(now_ms, *id, stored::read_session(snapshot)?);
        }
        Ok((machine, now_ms))
    }

    /// What is bound to a session, at most `limit`.
    async fn bonds(
        &self,
        id: SessionId,
        limit: usize,
    ) -> Result<Vec<(LockName, LeaseId, Bond)>, StoreError> {
        let items = self.inner.store.items(&Key::Session(id), None, limit).await?;
        Ok(items.iter().filter_map(|(name, value)| stored::read_bond(name, value)).collect())
    }

    pub(super) async fn shared_session(&self, id: SessionId) -> Result<SessionReply, StoreError> {
        let (mut machine, now_ms) = self.session_loaded(&[id]).await?;
        let bonds = self.bonds(id, COUNTED).await?;
        machine.bind(id, bonds);
        machine.show_session(now_ms, id)
    }

    pub(super) async fn shared_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<SessionPage, StoreError> {
        let mut page = SessionPage { sessions: Vec::new(), next_after: None };
        let mut after = after;
        loop {
            let room = limit - page.sessions.len();
            let (ids, is_more) = self.inner.store.sessions(after, room).await?;
            let (mut machine, now_ms) = self.session_loaded(&ids).await?;
            for id in &ids {
                machine.bind(*id, self.bonds(*id, COUNTED).await?);
            }
            // Those that have ended are left out.
            page.sessions.extend(machine.list_sessions(now_ms, None, room).sessions);
            after = ids.last().copied();
            if !is_more || page.sessions.len() >= limit || after.is_none() {
                page.next_after = after.filter(|_| is_more);
                return Ok(page);
            }
        }
    }

    /// Ends a session: its state is the truth about its leases. What they leave in the records is
    /// cleared behind the reply, in parts.
    pub(super) async fn end_shared(&self, id: SessionId) -> Result<SessionEndedReply, StoreError> {
        let work = move |machine: &mut Machine, now_ms| machine.end_session(now_ms, id);
        let mut reply = self.call(vec![Key::Session(id)], work).await?;
        // Beside what this server knew of. Nothing is bound to it any more, and nothing is cleared yet.
        reply.lease_count += self.bonds(id, COUNTED).await?.len();
        self.inner.clear_ended(id);
        Ok(reply)
    }

    /// Ends the leases of a session that has ended, record by record.
    ///
    /// # Errors
    /// [`StoreError`], after which some may be left; the next request for their locks ends them.
    pub(super) async fn clear_session(&self, id: SessionId) -> Result<(), StoreError> {
        let mut after: Option<String> = None;
        loop {
            let key = Key::Session(id);
            let items = self.inner.store.items(&key, after.as_deref(), PART).await?;
            let Some((last, _)) = items.last() else { return Ok(()) };
            after = Some(last.clone());
            for (name, value) in &items {
                let Some((lock, ..)) = stored::read_bond(name, value) else { continue };
                let keys = vec![Key::Lock(lock), Key::Session(id)];
                let (op, reply) = Call::boxed(keys, |_, _| Ok(()));
                self.inner.submit(op)?;
                // One by one is enough: those who wait are served by the servers that they wait at.
                drop(reply.await);
            }
        }
    }
}
