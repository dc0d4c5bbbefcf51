//! Invariants of any history, independent of the implementation.

use fence_protocol::SessionId;

use super::super::*;
use super::{LOCKS, SESSION_MS, SHARED, number, session_number};
use crate::{Acquire, Kind, Mode};

/// A live lease.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) lock: u8,
    pub(super) request: Acquire,
    pub(super) token: Token,
    pub(super) until_ms: u64,
    /// No retry or renewal has shown yet that the grant arrived.
    pub(super) handed: bool,
}

/// An entry in a queue, and all locks that its request waits for.
#[derive(Clone, Debug)]
struct Place {
    lock: u8,
    request: Acquire,
    locks: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Oracle {
    pub(super) last_token: u64,
    /// In the order of their grants.
    lives: Vec<Live>,
    /// Lock-delays: lock, mode, end, token.
    closed: Vec<(u8, Mode, u64, Token)>,
    /// Lock-delay after each token's lease.
    delays: Vec<(Token, u64)>,
    /// In the order of arrival.
    places: Vec<Place>,
    /// Lock, lease and the step that ended it.
    ended: Vec<(u8, LeaseId, u64)>,
    steps: u64,
    /// Lock, lease and owner that another incarnation took over.
    taken_over: Vec<(u8, LeaseId, Owner, Option<Owner>)>,
    superseding: Option<LeaseId>,
    /// Of each owner: number of sessions begun, expiry of the last one, and whether it is blocked.
    pub(super) sessions: [(u128, u64, bool); 3],
    /// Locks that a granted request for several named.
    groups: Vec<(LeaseId, Vec<u8>)>,
}

impl Oracle {
    pub(super) fn live(&self, lock: u8, lease_id: LeaseId) -> Option<&Live> {
        self.lives.iter().find(|live| live.lock == lock && live.request.lease_id == lease_id)
    }

    /// Returns the leases of a lock and their expiry, in the order of the grants.
    pub(super) fn held(&self, lock: u8) -> Vec<(LeaseId, u64)> {
        let of_lock = self.lives.iter().filter(|live| live.lock == lock);
        of_lock.map(|live| (live.request.lease_id, live.until_ms)).collect()
    }

    pub(super) fn delayed_ms(&self, now_ms: u64, lock: u8) -> Option<u64> {
        let of_lock = self.closed.iter().filter(|(on, ..)| *on == lock);
        of_lock.map(|(_, _, until_ms, _)| until_ms - now_ms).max()
    }

    /// Returns whether a live lease or a lock-delay has this token.
    pub(super) fn has_token(&self, token: Token) -> bool {
        self.lives.iter().any(|live| live.token == token)
            || self.closed.iter().any(|(_, _, _, theirs)| *theirs == token)
    }

    fn queue_of(&self, lock: u8) -> impl Iterator<Item = &Place> {
        self.places.iter().filter(move |place| place.lock == lock)
    }

    pub(super) fn queued(&self, lock: u8) -> Vec<LeaseId> {
        self.queue_of(lock).map(|place| place.request.lease_id).collect()
    }

    pub(super) fn waits(&self, lock: u8, lease_id: LeaseId) -> bool {
        self.queue_of(lock).any(|place| place.request.lease_id == lease_id)
    }

    /// Returns the kind that a lock is in use as.
    pub(super) fn kind(&self, lock: u8) -> Option<Kind> {
        let mut modes = self.modes(lock);
        let waits = self.queue_of(lock).map(|place| place.request.mode);
        modes.extend(waits);
        let kind = modes.first()?.kind();
        assert!(modes.iter().all(|mode| mode.kind() == kind), "one lock, two kinds: {modes:?}");
        Some(kind)
    }

    /// Returns the modes of live leases and lock-delays.
    fn modes(&self, lock: u8) -> Vec<Mode> {
        let live = self.lives.iter().filter(|live| live.lock == lock);
        let closed = self.closed.iter().filter(|(on, ..)| *on == lock);
        live.map(|live| live.request.mode).chain(closed.map(|(_, mode, ..)| *mode)).collect()
    }

    /// Returns whether a lease of this mode is compatible with them.
    fn admits(&self, lock: u8, mode: Mode) -> bool {
        let modes = self.modes(lock);
        match mode {
            Mode::Exclusive => modes.is_empty(),
            Mode::Shared => modes.len() < SHARED && modes.iter().all(|m| *m == Mode::Shared),
            Mode::Permit { size } => {
                modes.len() < size as usize && modes.iter().all(|other| *other == mode)
            }
        }
    }

    pub(super) fn is_open(&self, lock: u8, mode: Mode) -> bool {
        self.queue_of(lock).next().is_none() && self.admits(lock, mode)
    }

    /// Checks L1, L2, L3 and the order of the queue for one grant.
    pub(super) fn grant(
        &mut self,
        now_ms: u64,
        lock: u8,
        grant: &Grant,
        request: &Acquire,
        handed: bool,
    ) {
        let until_ms = now_ms + grant.remaining_ms;
        let is_it = |live: &&mut Live| live.lock == lock && live.request.lease_id == grant.lease_id;
        if let Some(live) = self.lives.iter_mut().find(is_it) {
            assert_eq!(live.token, grant.token, "L3: one id, one grant");
            assert_eq!(grant.mode, live.request.mode);
            live.until_ms = until_ms;
            live.handed = false;
            return;
        }
        assert!(grant.token.get() > self.last_token, "L1: tokens rise");
        self.last_token = grant.token.get();
        assert_eq!(grant.mode, request.mode);
        assert!(self.admits(lock, request.mode), "L2: no place beside {:?}", self.modes(lock));
        assert!(!self.remembers(lock, grant.lease_id), "an ended id came back");
        let own = self.superseding.take() == Some(grant.lease_id);
        match self.queue_of(lock).position(|place| place.request.lease_id == grant.lease_id) {
            Some(place) => assert_eq!(place, 0, "first come, first served"),
            None => {
                assert!(
                    own || self.queue_of(lock).next().is_none(),
                    "a request overtook the queue"
                );
            }
        }
        self.places.retain(|p| p.lock != lock || p.request.lease_id != grant.lease_id);
        if let Some(session) = request.session {
            let (_, ends_ms, _) = self.sessions[session_number(session)];
            assert_eq!(self.session(session_number(session)), session, "of an ended session");
            assert!(ends_ms > now_ms, "granted to a session that has ended");
            assert_eq!(until_ms, ends_ms, "a bound lease lives as long as its session");
        }
        let request = request.clone();
        self.lives.push(Live { lock, request, token: grant.token, until_ms, handed });
    }

    /// Returns whether the end of this lease is one of the last eight of its lock, in whatever
    /// order those of one step came.
    fn remembers(&self, lock: u8, lease_id: LeaseId) -> bool {
        let own = self.ended.iter().rev().find(|(on, id, _)| (*on, *id) == (lock, lease_id));
        let Some((_, _, step)) = own else { return false };
        self.ended.iter().filter(|(on, _, at)| *on == lock && at >= step).count() <= 8
    }

    /// Returns the last session that an owner has begun.
    pub(super) fn session(&self, owner: usize) -> SessionId {
        let number = self.sessions[owner].0 * 3 + owner as u128;
        SessionId::new(uuid_of(number + 3)).unwrap()
    }

    /// Renews or ends a session, and all its leases with it.
    pub(super) fn session_lives_until(&mut self, owner: usize, until_ms: u64) {
        self.sessions[owner].1 = until_ms;
        let session = self.session(owner);
        for live in &mut self.lives {
            if live.request.session == Some(session) {
                live.until_ms = until_ms;
            }
        }
    }

    /// Applies a takeover, if the request made one: only from a lease of the same owner, and only
    /// from the named lease or another incarnation that was not itself taken over.
    pub(super) fn supersede(&mut self, now_ms: u64, lock: u8, request: &Acquire) {
        let exclusive = |live: &&Live| live.lock == lock && live.request.mode == Mode::Exclusive;
        let Some(before) = self.lives.iter().find(exclusive).cloned() else { return };
        let before = before.request;
        let owner = &request.owner;
        if before.lease_id == request.lease_id {
            return;
        }
        assert_eq!(before.owner, *owner, "takeover crossed owners");
        match request.takeover {
            Takeover::Never => panic!("a lock was taken over unasked"),
            Takeover::Of(lease_id) => assert_eq!(lease_id, before.lease_id),
            Takeover::EarlierSelf => {
                assert!(before.incarnation.is_some() && request.incarnation.is_some());
                assert_ne!(before.incarnation, request.incarnation, "a process from itself");
                assert!(
                    !self.taken_over.iter().any(|(on, lease, theirs, life)| *on == lock
                        && self.remembers(lock, *lease)
                        && (theirs, life) == (owner, &request.incarnation)),
                    "the earlier life took the lock back"
                );
            }
        }
        self.end(now_ms, lock, before.lease_id, false);
        self.taken_over.push((lock, before.lease_id, before.owner, before.incarnation));
        self.leave(lock, request.lease_id);
        self.superseding = Some(request.lease_id);
    }

    /// Ends a lease, or an id without one; `silent` if the holder did not release it.
    pub(super) fn end(&mut self, now_ms: u64, lock: u8, lease_id: LeaseId, silent: bool) {
        self.steps += 1;
        if let Some(live) = self.live(lock, lease_id).cloned() {
            self.lives.retain(|l| l.lock != lock || l.request.lease_id != lease_id);
            let mode = live.request.mode;
            let delay_ms = live.request.lock_delay_ms;
            if silent && delay_ms > 0 {
                self.closed.push((lock, mode, now_ms + delay_ms, live.token));
                self.delays.push((live.token, delay_ms));
            }
        } else if self.remembers(lock, lease_id) {
            return;
        }
        self.ended.push((lock, lease_id, self.steps));
    }

    /// Ends everything that is due in one step.
    pub(super) fn expire(&mut self, now_ms: u64) {
        self.closed.retain(|(_, _, until_ms, _)| *until_ms > now_ms);
        let due: Vec<_> =
            self.lives.iter().filter(|live| live.until_ms <= now_ms).cloned().collect();
        let step = self.steps + 1;
        for live in due {
            self.end(now_ms, live.lock, live.request.lease_id, true);
            self.steps = step - 1;
        }
        self.steps = step;
    }

    /// Restarts the process: the waiters are gone, and live leases and sessions have their full
    /// time again.
    pub(super) fn restart(&mut self, now_ms: u64) {
        self.places.clear();
        for session in &mut self.sessions {
            if session.1 > now_ms {
                session.1 = now_ms + SESSION_MS;
            }
        }
        for live in &mut self.lives {
            let is_bound = live.request.session.is_some();
            let ttl_ms = if is_bound { SESSION_MS } else { live.request.ttl.ms() };
            (live.until_ms, live.handed) = (now_ms + ttl_ms, false);
        }
        for (_, _, until_ms, token) in &mut self.closed {
            let (_, delay_ms) = self.delays.iter().find(|(theirs, _)| theirs == token).unwrap();
            *until_ms = now_ms + delay_ms;
        }
    }

    /// Adds the queue entries of a request.
    pub(super) fn queue(&mut self, parts: &[Acquire]) {
        let locks: Vec<u8> = parts.iter().map(|part| number(&part.lock)).collect();
        for part in parts {
            let lock = number(&part.lock);
            assert!(!self.waits(lock, part.lease_id), "two places in one queue");
            assert!(self.live(lock, part.lease_id).is_none(), "a holder waits");
            self.places.push(Place { lock, request: part.clone(), locks: locks.clone() });
            let _ = self.kind(lock);
        }
    }

    /// Removes a waiter from all of its queues.
    pub(super) fn leave(&mut self, lock: u8, lease_id: LeaseId) {
        let is_it = |place: &&Place| place.lock == lock && place.request.lease_id == lease_id;
        let Some(locks) = self.places.iter().find(is_it).map(|place| place.locks.clone()) else {
            return;
        };
        self.places.retain(|p| p.request.lease_id != lease_id || !locks.contains(&p.lock));
    }

    /// Returns the locks of the request that this id waits or waited with.
    pub(super) fn asked_for(&self, lock: u8, lease_id: LeaseId) -> Vec<u8> {
        let waits = self.queue_of(lock).find(|place| place.request.lease_id == lease_id);
        let granted = self.groups.iter().rev();
        let mut granted = granted.filter(|(id, locks)| *id == lease_id && locks.contains(&lock));
        let locks = waits.map(|place| place.locks.clone());
        locks.or_else(|| Some(granted.next()?.1.clone())).unwrap_or_else(|| vec![lock])
    }

    /// Returns a lock and the id of the request for several that was granted last from the queue.
    pub(super) fn last_group(&self) -> Option<(u8, LeaseId)> {
        let group = self.groups.iter().rfind(|(_, locks)| locks.len() > 1);
        group.map(|(lease_id, locks)| (locks[0], *lease_id))
    }

    /// Withdraws a request: unreceived grants are rolled back, all or none.
    pub(super) fn withdraw(&mut self, now_ms: u64, locks: &[u8], lease_id: LeaseId) {
        self.leave(locks[0], lease_id);
        let live: Vec<_> = locks.iter().filter_map(|lock| self.live(*lock, lease_id)).collect();
        if live.iter().all(|live| live.handed) {
            for lock in live.iter().map(|live| live.lock).collect::<Vec<_>>() {
                self.end(now_ms, lock, lease_id, false);
            }
        }
    }

    /// Returns the leases that a revocation ends; `None` if it is refused.
    pub(super) fn revoke(
        &mut self,
        now_ms: u64,
        lock: u8,
        lease: Option<LeaseId>,
    ) -> Option<Vec<LeaseId>> {
        let held = self.held(lock).into_iter().map(|(lease_id, _)| lease_id);
        let ends: Vec<_> = held.filter(|id| lease.is_none_or(|lease| lease == *id)).collect();
        if ends.is_empty() && (lease.is_some() || self.modes(lock).is_empty()) {
            return None;
        }
        for lease_id in &ends {
            self.end(now_ms, lock, *lease_id, false);
        }
        if lease.is_none() {
            self.closed.retain(|(on, ..)| *on != lock);
        }
        Some(ends)
    }

    pub(super) fn delivered(&mut self, now_ms: u64, delivery: &Delivery) {
        let lock = number(&delivery.lock);
        let lease_id = delivery.lease_id;
        let first = match &delivery.result {
            Ok(first) => first,
            Err(why) => {
                let why = if let StoreError::Part { refusal, .. } = why { refusal } else { why };
                assert!(!matches!(why, StoreError::Unavailable(_)), "no holder is named: {why}");
                self.leave(lock, lease_id);
                return;
            }
        };
        if self.live(lock, lease_id).is_some() {
            // A waiter that took over gets both replies.
            assert_eq!(self.live(lock, lease_id).unwrap().token, first.token);
            return;
        }
        let locks: Vec<u8> = delivery.locks().iter().map(number).collect();
        assert_eq!(locks, self.asked_for(lock, lease_id), "all of the locks, in their order");
        self.groups.push((lease_id, locks.clone()));
        let grants = std::iter::once(first).chain(delivery.others.iter().map(|(_, g)| g));
        for (lock, grant) in locks.into_iter().zip(grants) {
            let is_it = |place: &&Place| place.request.lease_id == lease_id;
            let request = self.queue_of(lock).find(is_it).unwrap().request.clone();
            self.grant(now_ms, lock, grant, &request, true);
        }
    }

    /// Checks that the front of every queue has to wait, for this lock or another of its request.
    pub(super) fn every_front_has_to_wait(&self) {
        for lock in 0..LOCKS {
            let Some(front) = self.queue_of(lock).next() else { continue };
            let lease_id = front.request.lease_id;
            let could = front.locks.iter().all(|lock| {
                let place = self.queue_of(*lock).next().unwrap();
                place.request.lease_id == lease_id && self.admits(*lock, place.request.mode)
            });
            assert!(!could, "{lease_id} waits for lock {lock}, and nothing is in its way");
            assert!(front.locks.iter().all(|lock| self.waits(*lock, lease_id)), "a place is lost");
        }
    }
}
