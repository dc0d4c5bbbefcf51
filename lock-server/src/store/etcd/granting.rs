//! The granting transaction, and what is known when its answer is lost.

use std::time::Duration;

use fence_protocol::{LeaseId, LockName};

use super::acquire::told;
use super::counter::{Known, Occasion};
use super::gateway::GatewayError;
use super::keeper::Kept;
use super::leases::Leases;
use super::offset::Seen;
use super::sessions::Terms;
use super::txn::{Compare, On, Op, Txn};
use super::values::{self, HeldAt, Record, written};
use super::view::View;
use super::wire::{Header, TxnReply};
use super::{EtcdStore, millis, store_error};
use crate::store::{Acquire, Grant, StoreError};

mod draft;

use self::draft::Draft;

/// For how long a grant is read back whose answer was lost.
const READ_BACK_MAX: Duration = Duration::from_secs(5);
const READ_BACK_PAUSE: Duration = Duration::from_millis(100);

/// What came of one transaction.
pub(super) enum Try {
    Granted(Grant),
    /// Something had changed; this is how it is now.
    Changed(Box<View>),
    /// The etcd leases are used up; with new ones it may go.
    Anew,
}

impl EtcdStore {
    /// Runs the granting transaction.
    pub(super) async fn grant(
        &self,
        request: &Acquire,
        terms: &Terms,
        view: &View,
        known: &Known,
        unused: &mut Unused<'_>,
        claimed: bool,
    ) -> Result<Try, StoreError> {
        let leases = match (terms.leases(), unused.leases) {
            (Some(bound), _) => bound,
            (None, Some(made)) => made,
            (None, None) => {
                let made = self.make_leases(request.ttl.ms()).await.map_err(store_error)?;
                *unused.leases.insert(made)
            }
        };
        let draft = Draft::new(self, request, terms, known, leases, claimed);
        let seen = self.inner.counter.seen();
        match self
            .inner
            .gateway
            .write(&draft.txn(&self.inner.keys, request, terms, view, known))
            .await
        {
            Ok(reply) if reply.succeeded => {
                unused.leases = None;
                self.granted(request, terms, &draft, view, &seen, &reply).await
            }
            Ok(reply) => {
                self.look_over(&seen, &reply.header);
                View::of(reply).map(|view| Try::Changed(Box::new(view)))
            }
            Err(error) if error.is_no_lease() => {
                unused.leases = None;
                // A session's etcd lease that is gone has ended; reading again says so.
                if terms.is_bound() {
                    Err(self.session_is_gone(request).await)
                } else {
                    Ok(Try::Anew)
                }
            }
            Err(GatewayError::Unknown(reason)) => {
                unused.leases = None;
                self.read_back(request, terms, &draft, &seen, reason).await
            }
            Err(error) => Err(store_error(error)),
        }
    }

    /// etcd has made the grant; tells it unless the token is in doubt.
    async fn granted(
        &self,
        request: &Acquire,
        terms: &Terms,
        draft: &Draft,
        before: &View,
        seen: &Seen,
        reply: &TxnReply,
    ) -> Result<Try, StoreError> {
        let revision = reply.header.revision;
        let token = values::token(draft.held.offset, revision);
        let doubt =
            token.as_ref().ok().map(|token| seen.doubt_of_grant(&reply.header, token.get()));
        let token = match (token, doubt.flatten()) {
            (Ok(token), None) => token,
            (token, doubt) => {
                self.take_back(&request.lock, revision, draft, &before.record.record).await?;
                token?;
                tracing::warn!(doubt = ?doubt, "a grant is in doubt and was taken back; verifying etcd");
                self.inner.counter.forget();
                self.inner.counter.verify(&self.inner.gateway, Occasion::Later).await?;
                return Ok(Try::Anew);
            }
        };
        self.inner.counter.saw(&reply.header);
        self.inner.counter.saw_token(token);
        let at = HeldAt {
            held: draft.held.clone(),
            create_revision: revision,
            mod_revision: revision,
            lease: draft.leases.holder,
        };
        let record = values::filled(draft.record(&before.record.record), revision);
        let remaining_ms = self.keep(&request.lock, at.clone(), record, draft.leases, terms);
        told(&at, remaining_ms).map(Try::Granted)
    }

    /// Keeps a lease that begins now, and gives what it lives.
    pub(super) fn keep(
        &self,
        lock: &LockName,
        at: HeldAt,
        record: values::RecordAt,
        leases: Leases,
        terms: &Terms,
    ) -> u64 {
        let now_ms = self.now_ms();
        let (remaining_ms, deadline_ms) = match terms.remaining_ms(now_ms) {
            Some(remaining_ms) => (remaining_ms, None),
            None => {
                let deadline_ms = (now_ms + at.held.ttl_ms).min(leases.until_ms);
                (deadline_ms.saturating_sub(now_ms), Some(deadline_ms))
            }
        };
        self.inner.keeper.keep(lock, Kept { at, record, deadline_ms });
        remaining_ms
    }

    /// Undoes a grant that nobody was told of, as if it had never been.
    async fn take_back(
        &self,
        lock: &LockName,
        revision: u64,
        draft: &Draft,
        before: &Record,
    ) -> Result<(), StoreError> {
        let remembering = self.remembering().await.map_err(store_error)?;
        let keys = &self.inner.keys;
        let (holder, record) = (keys.holder(lock), keys.record(lock));
        let mut success =
            vec![Op::delete(&holder), Op::put(&record, &written(before), On::Lease(remembering))];
        success.extend(self.unbind(draft.held.session, lock, draft.held.lease_id));
        let txn = Txn {
            compare: vec![Compare::created_by(&holder, revision)],
            success,
            failure: Vec::new(),
        };
        let undone = self.inner.gateway.write_compared(&txn).await;
        undone.map_err(|error| {
            StoreError::Unknown(format!(
                "the grant of lock {lock} is in doubt, and could not be taken back: {error}; repeat \
                 the request with the same lease_id"
            ))
        })?;
        if draft.held.session.is_none() {
            self.revoke_later(vec![draft.leases.holder, draft.leases.record]);
        }
        Ok(())
    }

    /// Whether a transaction whose answer was lost was done. Where it was not, the etcd lease that it
    /// names is ended first: without that it can never be done any more, and so the answer is final.
    async fn read_back(
        &self,
        request: &Acquire,
        terms: &Terms,
        draft: &Draft,
        seen: &Seen,
        reason: String,
    ) -> Result<Try, StoreError> {
        let unknown = |why: String| {
            StoreError::Unknown(format!(
                "whether lock {} was granted is not known ({reason}; {why}); repeat the request \
                 with the same lease_id",
                request.lock
            ))
        };
        let until_ms = self.now_ms() + millis(READ_BACK_MAX);
        let look = || async {
            let view = self.view_until(&request.lock, request.lease_id, until_ms).await;
            view.map_err(|error| unknown(error.to_string()))
        };
        let view = look().await?;
        if let Some(at) = view.held.clone().filter(|at| at.held.stamp == draft.held.stamp) {
            let token = at.token()?;
            let header = Header { revision: at.create_revision, ..view.header };
            if let Some(doubt) = seen.doubt_of_grant(&header, token.get()) {
                let before = view.record.record.without(request.lease_id);
                self.take_back(&request.lock, at.create_revision, draft, &before).await?;
                tracing::warn!(%doubt, "a grant is in doubt and was taken back; verifying etcd");
                self.inner.counter.forget();
                return Ok(Try::Anew);
            }
            self.inner.counter.saw_token(token);
            let remaining_ms =
                self.keep(&request.lock, at.clone(), view.record, draft.leases, terms);
            return told(&at, remaining_ms).map(Try::Granted);
        }
        if terms.is_bound() {
            // Its etcd lease is the session's, which lives on.
            return Err(unknown("it is not there yet".to_owned()));
        }
        let revoked = self.inner.gateway.lease_revoke(draft.leases.holder).await;
        revoked.map_err(|error| unknown(error.to_string()))?;
        let view = look().await?;
        let granted = view.record.record.granted.as_ref();
        if granted.is_some_and(|granted| granted.lease_id == request.lease_id) {
            return Err(unknown("it was granted late, and has ended".to_owned()));
        }
        self.revoke_later(vec![draft.leases.record]);
        Err(StoreError::Unavailable(format!(
            "lock {} was not granted, and will not be: {reason}; try again",
            request.lock
        )))
    }

    /// Reads a lock, again and again while etcd cannot be used: a new leader takes a second or two.
    async fn view_until(
        &self,
        lock: &LockName,
        lease_id: LeaseId,
        until_ms: u64,
    ) -> Result<View, StoreError> {
        loop {
            match self.view(lock, lease_id).await {
                Err(StoreError::Unavailable(_)) if self.now_ms() < until_ms => {
                    tokio::time::sleep(READ_BACK_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }
}

/// Etcd leases that were made for a grant. Dropped before it was made, they are ended.
pub(super) struct Unused<'a> {
    pub(super) store: &'a EtcdStore,
    pub(super) leases: Option<Leases>,
}

impl Drop for Unused<'_> {
    fn drop(&mut self) {
        if let Some(leases) = self.leases.take() {
            self.store.revoke_later(vec![leases.holder, leases.record]);
        }
    }
}
