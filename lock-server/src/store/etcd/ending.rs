//! How leases end: released, revoked, expired, or taken back from nobody.

use fence_protocol::wire::lock::{EndReason, EndedReply};
use fence_protocol::{LeaseId, LockName, Owner};

use super::keeper::Kept;
use super::txn::{Compare, On, Op, Txn};
use super::values::{Ending, HeldAt, RecordAt, WaiterAt, written};
use super::view::View;
use super::{EtcdStore, TRIES, store_error};
use crate::store::{Revoke, StoreError};

/// What came of one transaction that ends a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    /// Something had changed.
    Changed,
}

impl EtcdStore {
    pub(super) fn ending(&self, reason: EndReason, why: Option<Owner>) -> Ending {
        let stamp = service_kit::ids::random_hex(8);
        Ending { reason, why, at_ms: self.wall_ms(), stamp }
    }

    /// Ends a live lease. An id that is not known is remembered as ended where it is released.
    pub(super) async fn end_lease(
        &self,
        lock: &LockName,
        lease_id: LeaseId,
        reason: EndReason,
        why: Option<Owner>,
    ) -> Result<EndedReply, StoreError> {
        let ending = self.ending(reason, why);
        let mut known = self.live(lock, lease_id).await?;
        let mut unclear = None;
        for _ in 0..TRIES {
            let (at, record) = match known.take() {
                Some(known) => known,
                None => {
                    let view = self.view(lock, lease_id).await;
                    let view = view.map_err(|error| unclear.clone().unwrap_or(error))?;
                    match self.found(lock, lease_id, &ending, view).await? {
                        Ok(reply) => return Ok(reply),
                        Err(live) => *live,
                    }
                }
            };
            match self.end(lock, &at, &record, &ending).await {
                Ok(End::Done) => {
                    let token = at.token()?;
                    return Ok(EndedReply { lock: lock.clone(), lease_id, token, reason });
                }
                Ok(End::Changed) => {}
                // Reading it back finds whether it was done.
                Err(error @ StoreError::Unknown(_)) => unclear = Some(error),
                Err(error) => return Err(unclear.unwrap_or(error)),
            }
        }
        Err(unclear.unwrap_or_else(|| contended(lock)))
    }

    /// The lease as this server keeps it, where its time is not over; where it is, it is ended.
    pub(super) async fn live(
        &self,
        lock: &LockName,
        lease_id: LeaseId,
    ) -> Result<Option<(HeldAt, RecordAt)>, StoreError> {
        let Some(kept) = self.inner.keeper.lease(lock, lease_id) else { return Ok(None) };
        if kept.deadline_ms.is_some_and(|deadline_ms| deadline_ms <= self.now_ms()) {
            self.expire(lock, &kept).await?;
            return Ok(None);
        }
        Ok(Some((kept.at, kept.record)))
    }

    /// What a reading says of a lease that is to be ended: that this ending was done, or the lease.
    async fn found(
        &self,
        lock: &LockName,
        lease_id: LeaseId,
        ending: &Ending,
        view: View,
    ) -> Result<Result<EndedReply, Box<(HeldAt, RecordAt)>>, StoreError> {
        if let Some(at) = view.held.clone().filter(|at| at.held.lease_id == lease_id) {
            return Ok(Err(Box::new((at, view.record))));
        }
        let ended = view.record.record.ended(lease_id);
        if let Some(ended) = ended.filter(|ended| ended.stamp == ending.stamp)
            && let Some(token) = ended.token
        {
            let reason = ended.reason;
            return Ok(Ok(EndedReply { lock: lock.clone(), lease_id, token, reason }));
        }
        if ending.reason == EndReason::Released {
            return Err(self.disown(lock, lease_id, view).await);
        }
        Err(view.gone(lease_id))
    }

    /// Ends a lease by one transaction.
    async fn end(
        &self,
        lock: &LockName,
        at: &HeldAt,
        record: &RecordAt,
        ending: &Ending,
    ) -> Result<End, StoreError> {
        let remembering = self.remembering().await.map_err(store_error)?;
        let keys = &self.inner.keys;
        let (holder_key, record_key) = (keys.holder(lock), keys.record(lock));
        let after = record.record.holding(at).end(at.held.lease_id, ending);
        let mut success = vec![
            Op::delete(&holder_key),
            Op::put(&record_key, &written(&after), On::Lease(remembering)),
        ];
        success.extend(self.unbind(at.held.session, lock, at.held.lease_id));
        let mut compare = self.same(lock, at);
        compare.push(Compare::unchanged(&record_key, record.mod_revision));
        let txn = Txn { compare, success, failure: Vec::new() };
        let seen = self.inner.counter.seen();
        let reply = match self.inner.gateway.write_compared(&txn).await {
            Err(error) if error.is_no_lease() => {
                self.inner.remembering.forget(remembering);
                return Ok(End::Changed);
            }
            reply => reply.map_err(store_error)?,
        };
        self.look_over(&seen, &reply.header);
        if !reply.succeeded {
            return Ok(End::Changed);
        }
        self.inner.keeper.forget(lock, at.create_revision);
        self.inner.places.wake(lock);
        if at.held.session.is_none() {
            self.revoke_later(vec![at.lease, at.held.record_lease]);
        }
        Ok(End::Done)
    }

    /// Ends a lease whose time is over, unless another server has renewed it.
    pub(super) async fn expire(&self, lock: &LockName, kept: &Kept) -> Result<(), StoreError> {
        let ending = self.ending(EndReason::Expired, None);
        let mut kept = kept.clone();
        for _ in 0..TRIES {
            if self.end(lock, &kept.at, &kept.record, &ending).await? == End::Done {
                return Ok(());
            }
            let view = self.view(lock, kept.at.held.lease_id).await?;
            let term = view.header.raft_term;
            let same = |at: &HeldAt| at.create_revision == kept.at.create_revision;
            let Some(at) = view.held.filter(same) else {
                self.inner.keeper.forget(lock, kept.at.create_revision);
                return Ok(());
            };
            if at.mod_revision != kept.at.mod_revision {
                return self.renewed_elsewhere(lock, at, view.record, term).await;
            }
            // The record alone was written: an id was released that never was granted.
            kept.record = view.record;
        }
        Err(contended(lock))
    }

    /// A lease was renewed by another server, which keeps it from now on, or by this one, and the
    /// answer was lost: then it has its full time from now, which is late rather than early, and etcd
    /// gives it that time too before anybody can be told of it.
    async fn renewed_elsewhere(
        &self,
        lock: &LockName,
        at: HeldAt,
        record: RecordAt,
        term: u64,
    ) -> Result<(), StoreError> {
        if at.held.keeper != self.inner.server_id {
            self.inner.keeper.forget(lock, at.create_revision);
            return Ok(());
        }
        let deadline_ms = Some(self.now_ms() + at.held.ttl_ms);
        let gateway = &self.inner.gateway;
        let (is_there, _) = tokio::try_join!(
            gateway.keep_alive(at.lease, term),
            gateway.keep_alive(at.held.record_lease, term),
        )
        .map_err(store_error)?;
        if !is_there {
            self.inner.keeper.forget(lock, at.create_revision);
            return Ok(());
        }
        let known = self.inner.keeper.lease(lock, at.held.lease_id);
        if known.is_none_or(|known| known.at.mod_revision < at.mod_revision) {
            self.inner.keeper.keep(lock, Kept { at, record, deadline_ms });
        }
        Ok(())
    }

    /// Remembers an id as ended that does not hold the lock, and takes it out of the queue: it will
    /// never be granted from now on. Gives what the caller is told.
    async fn disown(&self, lock: &LockName, lease_id: LeaseId, first: View) -> StoreError {
        let lost = first.gone(lease_id);
        let ending = self.ending(EndReason::Released, None);
        let mut view = first;
        for _ in 0..TRIES {
            // Also where it is this very ending, of which no answer came.
            if view.ended(lease_id).is_some() {
                return lost;
            }
            match self.disown_once(lock, lease_id, &view, &ending).await {
                Ok(true) => {
                    self.inner.places.wake_id(lock, lease_id);
                    return lost;
                }
                Ok(false) | Err(StoreError::Unknown(_)) => {}
                Err(error) => return error,
            }
            view = match self.view(lock, lease_id).await {
                Ok(view) => view,
                Err(error) => return StoreError::Unknown(error.to_string()),
            };
            if view.held.as_ref().is_some_and(|at| at.held.lease_id == lease_id) {
                // It was granted meanwhile.
                return StoreError::Unknown(format!(
                    "lock {lock} was granted to this lease_id just now; release it again"
                ));
            }
        }
        contended(lock)
    }

    async fn disown_once(
        &self,
        lock: &LockName,
        lease_id: LeaseId,
        view: &View,
        ending: &Ending,
    ) -> Result<bool, StoreError> {
        let key = self.inner.keys.record(lock);
        let mut after = view.record.record.end(lease_id, ending);
        if let (Some(place), Some(ended)) = (&view.place, after.ended.first_mut()) {
            ended.owner = Some(place.waiter.owner.clone());
        }
        let remembering = self.remembering().await.map_err(store_error)?;
        // Beside a live lease the record stays where it outlives that.
        let is_kept = view.held.is_some() && view.record.mod_revision > 0;
        let on = if is_kept { On::TheSame } else { On::Lease(remembering) };
        let mut success = vec![
            Op::put(&key, &written(&after), on),
            Op::delete(&self.inner.keys.waiter(lock, lease_id)),
        ];
        let session = view.place.as_ref().and_then(|place| place.waiter.session);
        success.extend(self.unbind(session, lock, lease_id));
        let txn = Txn {
            // Every grant writes the record, so none comes between.
            compare: vec![Compare::unchanged(&key, view.record.mod_revision)],
            success,
            failure: Vec::new(),
        };
        match self.inner.gateway.write_compared(&txn).await {
            Err(error) if error.is_no_lease() => {
                self.inner.remembering.forget(remembering);
                Ok(false)
            }
            reply => Ok(reply.map_err(store_error)?.succeeded),
        }
    }

    /// Ends the live lease, or the one that is named.
    pub(super) async fn revoke_lease(
        &self,
        lock: &LockName,
        revoke: Revoke,
    ) -> Result<Vec<EndedReply>, StoreError> {
        let lease_id = match revoke.lease {
            Some(lease_id) => lease_id,
            None => {
                let view = self.view(lock, service_kit::ids::lease_id()).await?;
                view.held.ok_or(StoreError::NotHeld)?.held.lease_id
            }
        };
        let ended = self.end_lease(lock, lease_id, EndReason::Revoked, revoke.reason).await;
        match ended {
            // It ended by itself between the two.
            Err(StoreError::Lost { .. }) if revoke.lease.is_none() => Err(StoreError::NotHeld),
            ended => ended.map(|ended| vec![ended]),
        }
    }

    /// Takes a request out of the queue whose caller is gone, or its grant back, unless a repeat has
    /// shown meanwhile that it arrived.
    pub(super) async fn withdraw(
        &self,
        lock: &LockName,
        lease_id: LeaseId,
    ) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let view = self.view(lock, lease_id).await?;
            if let Some(at) = view.held.filter(|at| at.held.lease_id == lease_id) {
                let told = self.inner.keeper.lease(lock, lease_id);
                let is_told = at.held.claimed || told.is_some_and(|kept| kept.at.held.claimed);
                // What another server granted, that one delivers or takes back.
                if is_told || at.held.keeper != self.inner.server_id {
                    return Ok(());
                }
                let ending = self.ending(EndReason::Released, None);
                if self.end(lock, &at, &view.record, &ending).await? == End::Done {
                    return Ok(());
                }
                continue;
            }
            let server = &self.inner.server_id;
            match view.place.filter(|place| place.waiter.server == *server) {
                None => return Ok(()),
                Some(place) if self.leave_queue(lock, &place).await? => {
                    return Ok(());
                }
                Some(_) => {}
            }
        }
        Err(contended(lock))
    }

    /// Gives up a place in the queue; whether it was still there as it was.
    pub(super) async fn leave_queue(
        &self,
        lock: &LockName,
        place: &WaiterAt,
    ) -> Result<bool, StoreError> {
        let lease_id = place.waiter.lease_id;
        let key = self.inner.keys.waiter(lock, lease_id);
        let mut success = vec![Op::delete(&key)];
        success.extend(self.unbind(place.waiter.session, lock, lease_id));
        let txn = Txn {
            compare: vec![Compare::unchanged(&key, place.mod_revision)],
            success,
            failure: Vec::new(),
        };
        let reply = self.inner.gateway.write_compared(&txn).await.map_err(store_error)?;
        Ok(reply.succeeded)
    }
}

pub(super) fn contended(lock: &LockName) -> StoreError {
    StoreError::Unavailable(format!("lock {lock} changes all the time; try again"))
}
