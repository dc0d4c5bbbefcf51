//! Reads of shared records: the records are loaded into a separate machine, which interprets them
//! and decides nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use fence_protocol::wire::lock::{LockPage, LockReply};
use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};
use fence_protocol::{LockName, SessionId};
use lease::Machine;
use service_kit::clock;

use super::core::EndedBy;
use super::{Driver, DriverInner, later, stored};
use crate::engines::contract::Key;
use crate::store::{ListQuery, StoreError};

/// Number of leases of a session that are ended, or of sessions that are read, at once.
const PART: usize = 256;
/// Bonds of a session that are read to show it: more than the leases that a reply lists.
const BONDS_READ: usize = 1_000;

/// Prevents that the leases of a session are cleared before they are counted.
struct Clearing<'a> {
    inner: &'a Arc<DriverInner>,
    id: SessionId,
    is_due: bool,
}

impl Drop for Clearing<'_> {
    fn drop(&mut self) {
        self.inner.state().clearing.remove(&self.id);
        if self.is_due {
            self.inner.clear_ended(self.id, EndedBy::This);
        }
    }
}

impl Driver {
    /// Returns a machine with these locks and the sessions of their leases.
    async fn loaded(&self, locks: &[LockName]) -> Result<(Machine, u64), StoreError> {
        let inner = &self.inner;
        let keys: Vec<Key> = locks.iter().cloned().map(Key::Lock).collect();
        let begun = clock::now();
        let (snapshots, _) = inner.store.read(&keys).await?;
        inner.times.read(begun);
        let own = inner.server.id;
        let mut records = Vec::new();
        let mut sessions = BTreeSet::new();
        for (lock, snapshot) in locks.iter().zip(&snapshots) {
            let Some((record, groups)) = stored::read_record(snapshot, own, &*inner.store)? else {
                continue;
            };
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
            let next = ListQuery { prefix: query.prefix.clone(), after, limit, owner: None };
            let (names, is_more) = self.inner.store.locks(&next).await?;
            let (mut machine, now_ms) = self.loaded(&names).await?;
            let limit = names.len();
            let owner = query.owner.clone();
            let all = ListQuery { prefix: String::new(), after: None, limit, owner };
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

    /// Returns the number of leases and waiting requests that are bound to a session through any
    /// server.
    async fn bond_count(&self, id: SessionId) -> Result<usize, StoreError> {
        self.inner.store.item_count(&Key::Session(id)).await
    }

    /// Sets the count of everything bound to the session of a reply.
    pub(super) async fn counted(
        &self,
        mut reply: SessionReply,
    ) -> Result<SessionReply, StoreError> {
        let sent_ms = self.inner.kit.clock.monotonic_ms();
        if !self.inner.store.is_alone() {
            reply.lease_count = self.bond_count(reply.session_id).await?;
        }
        Ok(later(reply, self.inner.since_ms(sent_ms)))
    }

    /// Like [`counted`](Self::counted), after a committed change: if the count fails, the reply has
    /// the count that this server knows.
    pub(super) async fn done(&self, reply: SessionReply) -> SessionReply {
        let sent_ms = self.inner.kit.clock.monotonic_ms();
        match self.counted(reply.clone()).await {
            Ok(counted) => counted,
            Err(_) => later(reply, self.inner.since_ms(sent_ms)),
        }
    }

    pub(super) async fn shared_session(&self, id: SessionId) -> Result<SessionReply, StoreError> {
        let (mut machine, now_ms) = self.session_loaded(&[id]).await?;
        let items = self.inner.store.items(&Key::Session(id), None, BONDS_READ).await?;
        let bonds = items.iter().filter_map(|(name, value)| stored::read_bond(name, value));
        machine.bind(id, bonds.collect());
        self.counted(machine.show_session(now_ms, id)?).await
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
            // Those that have ended are left out.
            let live = machine.list_sessions(now_ms, None, room).sessions;
            let counted = live.into_iter().map(|reply| self.counted(reply));
            page.sessions.extend(futures_util::future::try_join_all(counted).await?);
            after = ids.last().copied();
            if !is_more || page.sessions.len() >= limit || after.is_none() {
                page.next_after = after.filter(|_| is_more);
                return Ok(page);
            }
        }
    }

    /// Ends a session, which ends its leases at once. Their records are cleared after the reply, in
    /// parts.
    pub(super) async fn end_shared(&self, id: SessionId) -> Result<SessionEndedReply, StoreError> {
        let is_first = self.inner.state().clearing.insert(id);
        let mut clearing = is_first.then(|| Clearing { inner: &self.inner, id, is_due: false });
        let work = move |machine: &mut Machine, now_ms| machine.end_session(now_ms, id);
        let mut ended = self.call(vec![Key::Session(id)], work).await?;
        if let Some(clearing) = &mut clearing {
            clearing.is_due = true;
        }
        // The session has ended, even if its leases cannot be counted.
        ended.lease_count = self.bond_count(id).await.unwrap_or(ended.lease_count);
        Ok(ended)
    }

    /// Ends the leases of a session that has ended, and lets the session be forgotten then.
    ///
    /// # Errors
    /// [`StoreError`], after which some may be left; the next request for their locks ends them.
    pub(super) async fn clear_session(&self, id: SessionId) -> Result<(), StoreError> {
        let mut after: Option<String> = None;
        loop {
            let key = Key::Session(id);
            let items = self.inner.store.items(&key, after.as_deref(), PART).await?;
            let Some((last, _)) = items.last() else { break };
            after = Some(last.clone());
            let locks = items.iter().filter_map(|(name, value)| stored::read_bond(name, value));
            let settled = locks.map(|(lock, ..)| {
                self.call(vec![Key::Lock(lock), Key::Session(id)], |_, _| Ok(()))
            });
            futures_util::future::try_join_all(settled).await?;
        }
        let forget = move |machine: &mut Machine, _: u64| {
            machine.session_cleared(id);
            Ok(())
        };
        self.call(vec![Key::Session(id)], forget).await
    }

    /// Reads every session that this server does not know.
    pub(super) async fn read_sessions(&self) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let (ids, is_more) = self.inner.store.sessions(after, PART).await?;
            let unknown: Vec<SessionId> = {
                let machine = &self.inner.state().core.machine;
                ids.iter().copied().filter(|id| machine.session(*id).is_none()).collect()
            };
            // Decided on "absent": the commit loads the record.
            let read =
                unknown.into_iter().map(|id| self.call(vec![Key::Session(id)], |_, _| Ok(())));
            futures_util::future::try_join_all(read).await?;
            after = ids.last().copied();
            if !is_more || after.is_none() {
                return Ok(());
            }
        }
    }
}
