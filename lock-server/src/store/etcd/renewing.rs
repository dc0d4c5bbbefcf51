//! Live leases get their time again.

use fence_protocol::{LeaseId, LockName, Ttl};

use super::acquire::told;
use super::ending::contended;
use super::gateway::GatewayError;
use super::leases::{Leases, holder_ttl_s};
use super::sessions::Terms;
use super::txn::{Compare, On, Op, Txn};
use super::values::{Held, HeldAt, RecordAt, filled, written};
use super::view::{self, View};
use super::wire::TxnReply;
use super::{EtcdStore, TRIES, store_error};
use crate::store::{Grant, NoSession, StoreError};

/// What came of one try.
enum Renewal {
    Done(Grant),
    /// Something had changed.
    Changed,
    /// The etcd lease of the record is gone; it gets a new one.
    Anew,
}

impl EtcdStore {
    /// Replaces what remains of a live lease.
    pub(super) async fn renew_lease(
        &self,
        lock: &LockName,
        lease_id: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError> {
        let stamp = service_kit::ids::random_hex(8);
        let mut known = self.live(lock, lease_id).await?;
        let (mut unclear, mut anew) = (None, false);
        for _ in 0..TRIES {
            let (at, record) = match known.take() {
                Some(known) => known,
                None => {
                    let view = self.view(lock, lease_id).await;
                    let view = view.map_err(|error| unclear.clone().unwrap_or(error))?;
                    let live = view.held.clone().filter(|at| at.held.lease_id == lease_id);
                    let live = live.ok_or_else(|| view.gone(lease_id))?;
                    if !self.may_be_told(lock, &live, &view.header).await? {
                        continue;
                    }
                    (live, view.record)
                }
            };
            // Where an answer was lost it may be done already. It is done once more, because what etcd
            // has left of it is not known: the time that is told must be etcd's as well.
            let next = self.renewed(&at, ttl, &stamp)?;
            let outcome = if at.held.session.is_some() {
                self.renew_bound(lock, &at, record, next).await
            } else if !anew && holder_ttl_s(next.ttl_ms) == holder_ttl_s(at.held.ttl_ms) {
                self.renew_in_place(lock, &at, record, next).await
            } else {
                self.renew_with_new_leases(lock, &at, record, next).await
            };
            match outcome {
                Ok(Renewal::Done(grant)) => return Ok(grant),
                Ok(Renewal::Changed) => anew = false,
                Ok(Renewal::Anew) => anew = true,
                Err(error @ StoreError::Unknown(_)) => unclear = Some(error),
                Err(error) => return Err(unclear.unwrap_or(error)),
            }
        }
        Err(unclear.unwrap_or_else(|| contended(lock)))
    }

    /// The lease after its renewal by this server.
    fn renewed(&self, at: &HeldAt, ttl: Option<Ttl>, stamp: &str) -> Result<Held, StoreError> {
        if let (Some(session), Some(_)) = (at.held.session, ttl) {
            return Err(NoSession::Bound.of(session));
        }
        Ok(Held {
            ttl_ms: ttl.map_or(at.held.ttl_ms, Ttl::ms),
            renewals: at.held.renewals + u64::from(at.held.stamp != stamp),
            keeper: self.inner.server_id.clone(),
            claimed: true,
            stamp: stamp.to_owned(),
            ..at.held.clone()
        })
    }

    /// The transaction and both keepalives at the same time. A keepalive alone renews nothing: the
    /// transaction decides whether the lease was live.
    async fn renew_in_place(
        &self,
        lock: &LockName,
        at: &HeldAt,
        record: RecordAt,
        next: Held,
    ) -> Result<Renewal, StoreError> {
        let until_ms = self.now_ms() + holder_ttl_s(next.ttl_ms) * 1_000;
        let leases = Leases { holder: at.lease, record: next.record_lease, until_ms };
        let gateway = &self.inner.gateway;
        let (written, holder, remembered) = tokio::join!(
            self.write_renewal(lock, at, &next),
            gateway.lease_keepalive(leases.holder),
            gateway.lease_keepalive(leases.record),
        );
        let reply = written?;
        if !reply.succeeded {
            return Ok(Renewal::Changed);
        }
        // The answer of a leader that is none any more gives nothing its time again.
        let term = reply.header.raft_term;
        let (holder, remembered) = tokio::join!(
            gateway.alive_in(term, leases.holder, holder),
            gateway.alive_in(term, leases.record, remembered),
        );
        let half_done = |error: GatewayError| {
            StoreError::Unknown(format!(
                "whether the lease on {lock} has its time again is not known ({error}); repeat the \
                 renewal"
            ))
        };
        match (holder.map_err(half_done)?, remembered.map_err(half_done)?) {
            // It was over between the two, and reading again says so.
            (false, _) => Ok(Renewal::Changed),
            (true, false) => Ok(Renewal::Anew),
            (true, true) => {
                let at = renewed_at(at, next, at.lease, &reply);
                let remaining_ms = self.keep(lock, at.clone(), record, leases, &Terms::default());
                told(&at, remaining_ms).map(Renewal::Done)
            }
        }
    }

    async fn write_renewal(
        &self,
        lock: &LockName,
        at: &HeldAt,
        next: &Held,
    ) -> Result<TxnReply, StoreError> {
        let key = self.inner.keys.holder(lock);
        let txn = Txn {
            compare: self.same(lock, at),
            success: vec![Op::put(&key, &written(next), On::TheSame)],
            failure: Vec::new(),
        };
        let seen = self.inner.counter.seen();
        let reply = self.inner.gateway.write_compared(&txn).await.map_err(store_error)?;
        self.look_over(&seen, &reply.header);
        Ok(reply)
    }

    /// Another time to live wants other etcd leases.
    async fn renew_with_new_leases(
        &self,
        lock: &LockName,
        at: &HeldAt,
        record: RecordAt,
        next: Held,
    ) -> Result<Renewal, StoreError> {
        let leases = self.make_leases(next.ttl_ms).await.map_err(store_error)?;
        let next = Held { record_lease: leases.record, ..next };
        let keys = &self.inner.keys;
        let (holder_key, record_key) = (keys.holder(lock), keys.record(lock));
        let remembered = record.record.holding(at);
        let mut compare = self.same(lock, at);
        compare.push(Compare::unchanged(&record_key, record.mod_revision));
        let txn = Txn {
            compare,
            success: vec![
                Op::put(&holder_key, &written(&next), On::Lease(leases.holder)),
                Op::put(&record_key, &written(&remembered), On::Lease(leases.record)),
            ],
            failure: view::ops(keys, lock, next.lease_id),
        };
        let reply = match self.inner.gateway.write_compared(&txn).await {
            // Which of the two pairs is in use is not known: their times end them.
            Err(error @ GatewayError::Unknown(_)) => return Err(store_error(error)),
            Err(error) => {
                self.revoke_later(vec![leases.holder, leases.record]);
                return Err(store_error(error));
            }
            Ok(reply) if !reply.succeeded => {
                self.revoke_unused(at, leases, &View::of(reply)?);
                return Ok(Renewal::Changed);
            }
            Ok(reply) => reply,
        };
        self.revoke_later(vec![at.lease, at.held.record_lease]);
        let at = renewed_at(at, next, leases.holder, &reply);
        let record = filled(remembered, reply.header.revision);
        let remaining_ms = self.keep(lock, at.clone(), record, leases, &Terms::default());
        told(&at, remaining_ms).map(Renewal::Done)
    }

    /// Ends the pair of etcd leases that nothing hangs on after a transaction that something had
    /// changed for: that may have been the transaction itself, sent to a member that did not answer
    /// and then to the next.
    fn revoke_unused(&self, before: &HeldAt, made: Leases, now: &View) {
        let (old, new) = ([before.lease, before.held.record_lease], [made.holder, made.record]);
        match &now.held {
            Some(at) if at.lease == made.holder => self.revoke_later(old.into()),
            // The holder's key is as it was, and the record was not: where that goes back to how it
            // was, what is on its way yet may still be done.
            Some(at) if at.mod_revision == before.mod_revision => {}
            _ => self.revoke_later(new.into()),
        }
    }

    /// What remains of a live lease that is kept here, or that a session keeps, for its holder to
    /// rely on.
    pub(super) async fn told_ms(&self, lock: &LockName, at: &HeldAt) -> Result<u64, StoreError> {
        match at.held.session {
            Some(session) => self.session_told_ms(session).await,
            None => {
                let deadline_ms = self.inner.keeper.deadline_ms(lock, at).unwrap_or(0);
                Ok(deadline_ms.saturating_sub(self.now_ms()))
            }
        }
    }

    /// Counts the renewal of a lease that a session keeps, and tells what remains of that.
    async fn renew_bound(
        &self,
        lock: &LockName,
        at: &HeldAt,
        record: RecordAt,
        next: Held,
    ) -> Result<Renewal, StoreError> {
        let reply = self.write_renewal(lock, at, &next).await?;
        if !reply.succeeded {
            return Ok(Renewal::Changed);
        }
        let at = renewed_at(at, next, at.lease, &reply);
        let remaining_ms = self.told_ms(lock, &at).await?;
        let kept = super::keeper::Kept { at: at.clone(), record, deadline_ms: None };
        self.inner.keeper.keep(lock, kept);
        told(&at, remaining_ms).map(Renewal::Done)
    }
}

fn renewed_at(before: &HeldAt, held: Held, lease: u64, reply: &TxnReply) -> HeldAt {
    let create_revision = before.create_revision;
    HeldAt { held, create_revision, mod_revision: reply.header.revision, lease }
}
