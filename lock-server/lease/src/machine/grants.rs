//! Acquire of one lock: it is granted, queued or refused.

use fence_protocol::{LockName, Token};

use super::alarms::Alarm;
use super::answers::known_answer;
use super::group::GrantRoute;
use super::shared::Bond;
use super::{Machine, Reply, limit};
use crate::record::{Holder, Record, Waiter};
use crate::takeover::{Verdict, verdict};
use crate::{Acquire, Grant, StoreError, tokens};

impl Machine {
    /// Grants, queues or refuses.
    pub fn acquire(&mut self, now_ms: u64, request: Acquire) -> Reply {
        let lock = request.lock.clone();
        self.tick_for(now_ms, &lock);
        if let Err(refusal) = self.check_room(&lock) {
            return Reply::Done(Err(refusal));
        }
        let mut record = self.take_out(&lock).unwrap_or_default();
        let reply = self.acquire_in(now_ms, &lock, &mut record, request);
        self.put_back(lock, record);
        self.pass_on(now_ms);
        reply
    }

    /// Checks that there is a record of the lock, or room for one.
    pub(super) fn check_room(&self, lock: &LockName) -> Result<(), StoreError> {
        let most = self.limits.locks;
        if self.records.len() < most || self.records.contains(lock) {
            return Ok(());
        }
        Err(limit("locks held or remembered", most))
    }

    fn acquire_in(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        record: &mut Record,
        request: Acquire,
    ) -> Reply {
        let holder = record.holders.get(request.lease_id);
        let is_first_retry = holder.is_some_and(|holder| holder.deliverer.is_some());
        if let Some(known) = known_answer(&self.sessions, now_ms, record, &request) {
            if is_first_retry && known.is_ok() {
                self.note_for_others(lock);
            }
            return Reply::Done(known);
        }
        let waiter = record.queue.get(request.lease_id);
        let waits = waiter.is_some();
        if let Some(refusal) = waiter.and_then(|waiter| other_request(waiter, &request)) {
            return Reply::Done(Err(refusal));
        }
        let kind = record.kind().filter(|kind| *kind != request.mode.kind());
        if let Some(kind) = kind.filter(|_| !waits) {
            return Reply::Done(Err(StoreError::OtherKind(kind)));
        }
        if let Err(refusal) = self.check_session(now_ms, &request, 1) {
            return Reply::Done(Err(refusal));
        }
        let paused_ms = self.pause_left_ms(now_ms);
        match verdict(record, &request) {
            Verdict::Supersede(_) if paused_ms.is_some() => {}
            Verdict::Supersede(lease_id) => {
                return Reply::Done(self.supersede(now_ms, lock, record, lease_id, request));
            }
            Verdict::Refuse(holder, why) => {
                let holder = self.info(now_ms, holder);
                return Reply::Done(Err(StoreError::TakeoverRefused { holder, why }));
            }
            Verdict::OfAnother(lease_id) => {
                return Reply::Done(Err(StoreError::OtherPrincipal { lease_id }));
            }
            Verdict::Ordinary => {}
        }
        if let Some(waiter) = record.queue.get_mut(request.lease_id) {
            return match self.take_place(0) {
                Ok(()) => self.wait_longer(now_ms, lock, waiter, request.wait_ms),
                Err(refusal) => Reply::Done(Err(refusal)),
            };
        }
        let is_open = record.is_open_to(request.mode, &self.limits);
        if is_open && paused_ms.is_none() {
            return Reply::Done(self.grant(now_ms, lock, record, request, GrantRoute::AT_ONCE));
        }
        if request.wait_ms == 0 {
            let is_takeover = matches!(verdict(record, &request), Verdict::Supersede(_));
            let paused_ms = paused_ms.filter(|_| is_open || is_takeover);
            let paused = paused_ms.map(|left_ms| StoreError::Paused { left_ms });
            return Reply::Done(Err(paused.unwrap_or_else(|| self.held(now_ms, record))));
        }
        self.enqueue(now_ms, lock, record, request)
    }

    fn enqueue(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        record: &mut Record,
        request: Acquire,
    ) -> Reply {
        if record.queue.len() >= self.limits.waiters_per_lock {
            return Reply::Done(Err(limit("waiters of this lock", self.limits.waiters_per_lock)));
        }
        if let Err(refusal) = self.take_place(1) {
            return Reply::Done(Err(refusal));
        }
        let until_ms = now_ms + request.wait_ms;
        self.alarms.insert((until_ms, lock.clone(), Alarm::Waiter(request.lease_id)));
        let place = record.next_place();
        let server = self.server();
        let waiter = Waiter { request, group: None, place, server, since_ms: now_ms, until_ms };
        self.push_waiter(record, waiter);
        Reply::Queued
    }

    /// Appends a waiter to the queue.
    pub(super) fn push_waiter(&mut self, record: &mut Record, waiter: Waiter) {
        let lease_id = waiter.request.lease_id;
        if let Some(other) = record.queue.remove(lease_id) {
            // Another request with its id: a group that is asked for anew has lost its entry here.
            self.forget_waiter(&other.request.lock, &other);
            if let Some(group) = other.group {
                drop(self.disband(lease_id, group));
            }
        }
        self.note_place(&waiter.request.lock, waiter.place);
        if waiter.server == self.server() {
            self.waiters += 1;
        }
        if let Some(id) = waiter.request.session {
            let lock = &waiter.request.lock;
            let lease_id = waiter.request.lease_id;
            self.sessions.wait(id, lock, lease_id);
            self.note_bond(id, lock, lease_id, Some(Bond::Waits));
        }
        record.queue.insert(waiter);
    }

    /// Keeps the queue position of a retry, and sets its new time-out at this server.
    fn wait_longer(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        waiter: &mut Waiter,
        wait_ms: u64,
    ) -> Reply {
        let alarm = Alarm::Waiter(waiter.request.lease_id);
        self.alarms.remove(&(self.patience_ms(waiter), lock.clone(), alarm));
        if waiter.move_to(self.server(), now_ms) {
            self.waiters += 1;
        }
        waiter.until_ms = now_ms + wait_ms;
        self.alarms.insert((waiter.until_ms, lock.clone(), alarm));
        let place = waiter.place;
        self.note_place(lock, place);
        Reply::Queued
    }

    pub(super) fn grant(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        record: &mut Record,
        request: Acquire,
        route: GrantRoute,
    ) -> Result<Grant, StoreError> {
        let token: Token =
            tokens::next(self.counter, request.min_token).ok_or(StoreError::Exhausted)?;
        debug_assert!(
            record.admits(request.mode, &self.limits),
            "{lock}: the record does not admit a grant"
        );
        self.counter = token.get();
        let session = request.session.and_then(|id| self.sessions.get(id));
        let ttl = session.map_or(request.ttl, |session| session.ttl);
        let until_ms = session.and_then(|session| session.lives(now_ms).ok());
        if let Some(id) = request.session {
            self.sessions.hold(id, lock, request.lease_id);
            self.note_bond(id, lock, request.lease_id, Some(Bond::Held));
        }
        let (waited_ms, deliverer) = match route {
            GrantRoute::InReply { waited_ms } => {
                (waited_ms, self.confirms().then(|| self.server()))
            }
            GrantRoute::FromQueue { waited_ms, server } => (waited_ms, Some(server)),
        };
        let holder = Holder {
            lease_id: request.lease_id,
            token,
            owner: request.owner,
            mode: request.mode,
            session: request.session,
            incarnation: request.incarnation,
            ttl,
            metadata: request.metadata,
            lock_delay_ms: request.lock_delay_ms,
            principal: request.principal,
            granted_at_ms: now_ms,
            expires_at_ms: until_ms.unwrap_or(now_ms + ttl.ms()),
            renewals: 0,
            deliverer,
            is_unread: deliverer.is_some_and(|server| server != self.server()),
        };
        let grant = holder.grant(now_ms, waited_ms);
        self.report_grant(lock, &holder, waited_ms);
        record.holders.push(holder);
        self.dirty.insert(lock.clone());
        Ok(grant)
    }
}

/// Returns the conflict of a request with the waiter of the same id: it has another owner or
/// principal, or waits for several locks.
fn other_request(waiter: &Waiter, request: &Acquire) -> Option<StoreError> {
    let same = request.is_retry_of(&waiter.request) && waiter.group.is_none();
    (!same).then(|| StoreError::IdConflict { owner: waiter.request.owner.clone() })
}
