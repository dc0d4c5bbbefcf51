//! Several locks in one transition, or none of them.
//!
//! A request that cannot have all of its locks enters all of their queues at once, the free ones
//! too, and is granted in the transition in which it is at the front of every queue and admitted by
//! every lock. All entries of a request are made in one transition, so any two requests stand in
//! the same order in every queue that they share: the oldest waiting request is behind no other,
//! and is granted when the holders of its locks are done. No deadlock can form.

use std::collections::BTreeSet;

use fence_protocol::wire::lock::{EndReason, LOCKS_PER_ACQUIRE_MAX};
use fence_protocol::{LeaseId, LockName};

use super::alarms::Alarm;
use super::answers::known_answer;
use super::group::{GrantRoute, Group, Left};
use super::{Delivery, Machine, Reply, limit};
use crate::record::{GroupId, Waiter};
use crate::{Acquire, Grant, Mode, StoreError, tokens};

impl Machine {
    /// Grants all of the locks, queues the request at all of them, or refuses.
    pub fn acquire_all(&mut self, now_ms: u64, parts: Vec<Acquire>) -> Reply<Vec<Grant>> {
        self.tick_for_all(now_ms, parts.iter().map(|part| &part.lock));
        let reply = self.try_all(now_ms, parts);
        self.pass_on(now_ms);
        reply.unwrap_or_else(|refusal| Reply::Done(Err(refusal)))
    }

    fn try_all(
        &mut self,
        now_ms: u64,
        parts: Vec<Acquire>,
    ) -> Result<Reply<Vec<Grant>>, StoreError> {
        let Some(first) = parts.first() else { return Ok(Reply::Done(Ok(Vec::new()))) };
        let wait_ms = first.wait_ms;
        let lease_id = first.lease_id;
        check_shape(&parts)?;
        if let Some(grants) = self.held_already(now_ms, &parts)? {
            return Ok(Reply::Done(Ok(grants)));
        }
        let waits = self.waits_already(&parts)?;
        if waits.is_none() {
            self.check_kinds(&parts)?;
        }
        self.check_session(now_ms, first, parts.len()).map_err(|why| part(&first.lock, why))?;
        if let Some(group) = waits {
            self.take_place(0).map_err(|why| part(&first.lock, why))?;
            self.group_waits_longer(now_ms, lease_id, group, now_ms + wait_ms);
            return Ok(Reply::Queued);
        }
        self.check_rooms(&parts)?;
        let wishes: Vec<_> = parts.iter().map(|part| (part.lock.clone(), part.mode)).collect();
        let paused_ms = self.pause_left_ms(now_ms);
        match self.first_taken(&wishes) {
            None if paused_ms.is_some() && wait_ms == 0 => {
                let left_ms = paused_ms.unwrap_or_default();
                Err(part(&first.lock, StoreError::Paused { left_ms }))
            }
            None if paused_ms.is_some() => self.enqueue_all(now_ms, parts, wishes),
            None => {
                let grants = self.grant_all(now_ms, parts, GrantRoute::AT_ONCE)?;
                Ok(Reply::Done(Ok(grants.into_iter().map(|(_, grant)| grant).collect())))
            }
            Some(lock) if wait_ms == 0 => {
                let record = self.records.get(&lock);
                let held = record.map_or(StoreError::NotHeld, |record| self.held(now_ms, record));
                Err(part(&lock, held))
            }
            Some(_) => self.enqueue_all(now_ms, parts, wishes),
        }
    }

    /// Returns the grants of an id that holds all of the locks; `None` if it holds none of them.
    ///
    /// An id that holds only some of them once held all, and one lease ended so long ago that it is
    /// not remembered: granting that lock anew would be a second grant for one id.
    fn held_already(
        &mut self,
        now_ms: u64,
        parts: &[Acquire],
    ) -> Result<Option<Vec<Grant>>, StoreError> {
        let mut held = 0;
        let mut missing = None;
        for wish in parts {
            let record = self.records.get(&wish.lock);
            if let Some(ended) = record.and_then(|record| record.ended(wish.lease_id)) {
                return Err(part(&wish.lock, ended.lost()));
            }
            match record.and_then(|record| record.holders.get(wish.lease_id)) {
                Some(holder) if !holder.is_of(wish) => {
                    let owner = holder.owner.clone();
                    return Err(part(&wish.lock, StoreError::IdConflict { owner }));
                }
                Some(_) => held += 1,
                None => missing = missing.or(Some(&wish.lock)),
            }
        }
        match missing {
            Some(_) if held == 0 => return Ok(None),
            Some(lock) => {
                let reason = EndReason::Superseded;
                return Err(part(lock, StoreError::Lost { reason, why: None, is_known: true }));
            }
            None => {}
        }
        for wish in parts {
            self.note_for_others(&wish.lock);
        }
        let grant = |wish: &Acquire| {
            known_answer(&self.sessions, now_ms, self.records.get_mut(&wish.lock)?, wish)
        };
        parts.iter().filter_map(grant).collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// Returns the group that waits under this id, if it is the same request.
    fn waits_already(&mut self, parts: &[Acquire]) -> Result<Option<GroupId>, StoreError> {
        let waiter = parts.iter().find_map(|wish| {
            let record = self.records.get(&wish.lock)?;
            Some((wish, record.queue.get(wish.lease_id)?))
        });
        let Some((wish, waiter)) = waiter else { return Ok(None) };
        let same = |id: &GroupId| {
            let group = self.groups.get(id);
            wish.is_retry_of(&waiter.request) && group.is_some_and(|group| group.is_for(parts))
        };
        match waiter.group.filter(same) {
            Some(group) if parts.iter().all(|part| self.stands_at(part, group)) => Ok(Some(group)),
            Some(_) => {
                // The engine has dropped the record of one of its locks: treat the retry as a new
                // request.
                drop(self.leave(&wish.lock, wish.lease_id));
                Ok(None)
            }
            None => {
                let owner = waiter.request.owner.clone();
                Err(part(&wish.lock, StoreError::IdConflict { owner }))
            }
        }
    }

    /// Returns whether a group has the entry of one of its parts.
    fn stands_at(&self, part: &Acquire, id: GroupId) -> bool {
        let record = self.records.get(&part.lock);
        record.is_some_and(|record| record.queue.part(part.lease_id, id).is_some())
    }

    fn group_waits_longer(&mut self, now_ms: u64, lease_id: LeaseId, id: GroupId, until_ms: u64) {
        let server = self.server();
        let Some(group) = self.groups.get(&id) else { return };
        let mut places = Vec::new();
        for (lock, _) in &group.parts {
            let Some(record) = self.records.get_mut(lock) else { continue };
            let waiter = record.queue.get_mut(lease_id).filter(|w| w.group == Some(id));
            let Some(waiter) = waiter else { continue };
            if lock == group.first_lock() {
                let alarm = Alarm::Waiter(waiter.request.lease_id);
                self.alarms.remove(&(waiter.patience_ms(server), lock.clone(), alarm));
                self.alarms.insert((until_ms, lock.clone(), alarm));
            }
            if waiter.move_to(server, now_ms) {
                self.waiters += 1;
            }
            waiter.until_ms = until_ms;
            places.push((lock.clone(), waiter.place));
        }
        for (lock, place) in places {
            self.note_place(&lock, place);
        }
    }

    fn check_kinds(&self, parts: &[Acquire]) -> Result<(), StoreError> {
        for wish in parts {
            let kind = self.records.get(&wish.lock).and_then(|record| record.kind());
            if let Some(kind) = kind.filter(|kind| *kind != wish.mode.kind()) {
                return Err(part(&wish.lock, StoreError::OtherKind(kind)));
            }
        }
        Ok(())
    }

    fn check_rooms(&self, parts: &[Acquire]) -> Result<(), StoreError> {
        let room = self.limits.locks.saturating_sub(self.records.len());
        let mut new = parts.iter().filter(|wish| !self.records.contains(&wish.lock));
        match new.nth(room) {
            None => Ok(()),
            Some(wish) => {
                Err(part(&wish.lock, limit("locks held or remembered", self.limits.locks)))
            }
        }
    }

    /// Returns the first lock that a request would have to wait for.
    pub(super) fn first_taken(&self, wishes: &[(LockName, Mode)]) -> Option<LockName> {
        let open = |lock: &LockName, mode: Mode| {
            self.records.get(lock).is_none_or(|record| record.is_open_to(mode, &self.limits))
        };
        wishes.iter().find(|(lock, mode)| !open(lock, *mode)).map(|(lock, _)| lock.clone())
    }

    /// Issues a token for each lock, rising in the order of the request, or changes nothing.
    fn grant_all(
        &mut self,
        now_ms: u64,
        parts: Vec<Acquire>,
        route: GrantRoute,
    ) -> Result<Vec<(LockName, Grant)>, StoreError> {
        let mut counter = self.counter;
        for wish in &parts {
            let token = tokens::next(counter, wish.min_token);
            counter = token.ok_or_else(|| part(&wish.lock, StoreError::Exhausted))?.get();
        }
        let mut grants = Vec::with_capacity(parts.len());
        for wish in parts {
            let lock = wish.lock.clone();
            let mut record = self.take_out(&lock).unwrap_or_default();
            let granted = self.grant(now_ms, &lock, &mut record, wish, route);
            self.put_back(lock.clone(), record);
            grants.push((lock, granted?));
        }
        Ok(grants)
    }

    fn enqueue_all(
        &mut self,
        now_ms: u64,
        parts: Vec<Acquire>,
        wishes: Vec<(LockName, Mode)>,
    ) -> Result<Reply<Vec<Grant>>, StoreError> {
        let most = self.limits.waiters_per_lock;
        let full = |lock: &LockName| {
            self.records.get(lock).is_some_and(|record| record.queue.len() >= most)
        };
        if let Some((lock, _)) = wishes.iter().find(|(lock, _)| full(lock)) {
            return Err(part(lock, limit("waiters of this lock", most)));
        }
        let first = parts[0].lock.clone();
        let lease_id = parts[0].lease_id;
        self.take_place(parts.len()).map_err(|refusal| part(&first, refusal))?;
        self.last_group += 1;
        let group = Some(self.last_group);
        let until_ms = now_ms + parts[0].wait_ms;
        self.groups.insert(self.last_group, Group { parts: wishes });
        self.alarms.insert((until_ms, first, Alarm::Waiter(lease_id)));
        for request in parts {
            let lock = request.lock.clone();
            let mut record = self.take_out(&lock).unwrap_or_default();
            let place = record.next_place();
            let server = self.server();
            let waiter = Waiter { request, group, place, server, since_ms: now_ms, until_ms };
            self.push_waiter(&mut record, waiter);
            self.put_back(lock, record);
        }
        Ok(Reply::Queued)
    }

    /// Returns the first lock that a group waits for: the group is not first there, or not
    /// admitted. `None` if it can be served, as far as is known.
    pub(super) fn waits_for(&self, id: GroupId) -> Option<&LockName> {
        let waits = |lock: &LockName, mode: Mode| {
            self.records.get(lock).is_some_and(|record| {
                let first = record.queue.front().is_some_and(|front| front.group == Some(id));
                !first || !record.admits(mode, &self.limits)
            })
        };
        let parts = &self.groups.get(&id)?.parts;
        parts.iter().find(|(lock, mode)| waits(lock, *mode)).map(|(lock, _)| lock)
    }

    /// Returns whether a group can be granted. A server that shares the namespace may not have
    /// loaded each of its locks: then the group's position there is unknown, and the result is
    /// `false`.
    pub(super) fn can_be_served(&self, id: GroupId) -> bool {
        let parts = self.groups.get(&id).map_or(&[][..], |group| &group.parts);
        parts.iter().all(|(lock, _)| self.knows(lock)) && self.waits_for(id).is_none()
    }

    /// Removes a group, whose entries have this lease id, from every queue that it is still in.
    pub(super) fn disband(&mut self, lease_id: LeaseId, id: GroupId) -> Option<Group> {
        let group = self.groups.remove(&id)?;
        self.note_together(&group.parts);
        for (lock, _) in &group.parts {
            let record = self.records.get(lock);
            if record.is_some_and(|record| record.queue.part(lease_id, id).is_some()) {
                self.leave_one(lock, lease_id);
            }
        }
        Some(group)
    }

    /// Grants a group all of its locks if it can be served.
    pub(super) fn serve_group(&mut self, now_ms: u64, id: GroupId) {
        if !self.can_be_served(id) {
            return;
        }
        let Some(group) = self.groups.remove(&id) else { return };
        self.note_together(&group.parts);
        // The waiters behind it are checked when its own grants are made.
        let waiters = group.parts.iter().filter_map(|(lock, _)| {
            let front = self.records.get(lock)?.queue.front()?;
            self.leave_one(lock, front.request.lease_id)
        });
        let waiters: Vec<Waiter> = waiters.collect();
        let Some(first) = waiters.first().cloned() else { return };
        let lock = group.first_lock().clone();
        if let Err(refusal) = self.check_session(now_ms, &first.request, waiters.len()) {
            self.refuse_waiter(&lock, &Left { waiter: first, group: Some(group) }, refusal);
            return;
        }
        let waited_ms = now_ms.saturating_sub(first.since_ms);
        let requests = waiters.into_iter().map(|waiter| waiter.request).collect();
        let route = GrantRoute::FromQueue { waited_ms, server: first.server };
        let granted = self.grant_all(now_ms, requests, route);
        let (result, others) = match granted {
            Ok(mut grants) => (Ok(grants.remove(0).1), grants),
            Err(refusal) => (Err(refusal), Vec::new()),
        };
        let lease_id = first.request.lease_id;
        self.deliveries.push(Delivery { lock, lease_id, result, others, server: first.server });
    }
}

/// Wraps the refusal of one lock of several.
fn part(lock: &LockName, refusal: StoreError) -> StoreError {
    StoreError::Part { lock: lock.clone(), refusal: Box::new(refusal) }
}

/// Refuses too many locks, and a lock that is named twice: it would wait for itself.
fn check_shape(parts: &[Acquire]) -> Result<(), StoreError> {
    if parts.len() > LOCKS_PER_ACQUIRE_MAX {
        return Err(limit("locks in one request", LOCKS_PER_ACQUIRE_MAX));
    }
    let mut seen = BTreeSet::new();
    match parts.iter().find(|wish| !seen.insert(&wish.lock)) {
        None => Ok(()),
        Some(wish) => Err(part(&wish.lock, StoreError::IdConflict { owner: wish.owner.clone() })),
    }
}
