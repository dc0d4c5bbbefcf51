//! The granting transaction. What is known when its answer is lost is in [`read_back`], what becomes
//! of a grant whose token is in doubt in [`doubted`].

use std::time::Duration;

use fence_protocol::LockName;

use super::acquire::told;
use super::counter::{Known, Occasion};
use super::gateway::GatewayError;
use super::keeper::Kept;
use super::leases::Leases;
use super::offset::{Doubt, Seen};
use super::sessions::Terms;
use super::txn::Txn;
use super::values::{self, HeldAt};
use super::view::View;
use super::wire::TxnReply;
use super::{EtcdStore, store_error};
use crate::store::{Acquire, Grant, StoreError};

mod doubted;
mod draft;
mod read_back;
mod unjudged;

use self::draft::Draft;
pub(super) use self::unjudged::Unjudged;

/// For how long it is tried to learn what became of a grant, while its caller waits.
const LEARN_MAX: Duration = Duration::from_secs(5);
const LEARN_PAUSE: Duration = Duration::from_millis(100);

/// What came of one transaction.
pub(super) enum Try {
    Granted(Grant),
    /// Something had changed; this is how it is now.
    Changed(Box<View>),
    /// With what is new now it may go.
    Anew,
}

/// A grant that is carried out. It goes on to its end when its caller leaves: only then is it known
/// whether its token is in doubt, and whether its etcd leases are in use.
struct Granting {
    store: EtcdStore,
    request: Acquire,
    terms: Terms,
    before: Box<View>,
    draft: Draft,
    txn: Txn,
    seen: Seen,
}

/// What came of it, and the etcd leases where it is certain that nothing hangs on them.
type Outcome = (Result<Try, StoreError>, Option<Leases>);

impl EtcdStore {
    /// Runs the granting transaction.
    pub(super) async fn grant(
        &self,
        request: &Acquire,
        terms: &Terms,
        view: Box<View>,
        known: &Known,
        unused: &mut Unused<'_>,
        claimed: bool,
    ) -> Result<Try, StoreError> {
        let leases = self.leases_for(request, terms, unused).await?;
        let draft = Draft::new(self, request, terms, known, leases, claimed);
        let txn = draft.txn(&self.inner.keys, request, terms, &view, known);
        let seen = self.inner.counter.seen();
        let (unjudged, now_ms) = (&self.inner.unjudged, self.now_ms());
        unjudged.send(&request.lock, request.lease_id, &view.header, now_ms);
        // From here on they may be in use, also by a repeat at another server that has renewed the
        // lease: whoever drops this must not end them.
        unused.leases = None;
        let granting = Granting {
            store: self.clone(),
            request: request.clone(),
            terms: terms.clone(),
            before: view,
            draft,
            txn,
            seen,
        };
        match self.inner.tasks.spawn(granting.run()).await {
            Ok((outcome, left)) => {
                unused.leases = left.filter(|_| !terms.is_bound());
                outcome
            }
            Err(_) => Err(StoreError::Unknown(
                "the server ends; repeat the request with the same lease_id".to_owned(),
            )),
        }
    }

    /// The etcd leases to grant with: the session's, or those that were made and last.
    async fn leases_for(
        &self,
        request: &Acquire,
        terms: &Terms,
        unused: &mut Unused<'_>,
    ) -> Result<Leases, StoreError> {
        if let Some(bound) = terms.leases() {
            return Ok(bound);
        }
        let (now_ms, ttl_ms) = (self.now_ms(), request.ttl.ms());
        if let Some(made) = unused.leases.filter(|made| made.last(now_ms, ttl_ms)) {
            return Ok(made);
        }
        unused.end();
        let made = self.make_leases(ttl_ms).await.map_err(store_error)?;
        Ok(*unused.leases.insert(made))
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
}

impl Granting {
    async fn run(self) -> Outcome {
        let outcome = self.carry_out().await;
        let (lock, id, now_ms) = (&self.request.lock, self.request.lease_id, self.store.now_ms());
        let unjudged = &self.store.inner.unjudged;
        match &outcome.0 {
            Err(StoreError::Unknown(_)) => {
                let until_ms = now_ms.max(self.draft.leases.until_ms);
                unjudged.left_open(lock, id, until_ms, now_ms);
            }
            _ => unjudged.judged(lock, id, now_ms),
        }
        outcome
    }

    async fn carry_out(&self) -> Outcome {
        let (store, leases) = (&self.store, self.draft.leases);
        match store.inner.gateway.write(&self.txn).await {
            Ok(reply) if reply.succeeded => (self.granted(&reply).await, None),
            Ok(reply) => {
                store.look_over(&self.seen, &reply.header);
                (View::of(reply).map(|view| Try::Changed(Box::new(view))), Some(leases))
            }
            // A session's etcd lease that is gone has ended; reading again says so.
            Err(error) if error.is_no_lease() && self.terms.is_bound() => {
                (Err(store.session_is_gone(&self.request).await), None)
            }
            Err(error) if error.is_no_lease() => {
                store.revoke_later(vec![leases.holder, leases.record]);
                (Ok(Try::Anew), None)
            }
            Err(GatewayError::Unknown(reason)) => (self.read_back(reason).await, None),
            Err(error) => (Err(store_error(error)), Some(leases)),
        }
    }

    /// etcd has made the grant; tells it unless the token is in doubt.
    async fn granted(&self, reply: &TxnReply) -> Result<Try, StoreError> {
        let (store, draft, lock) = (&self.store, &self.draft, &self.request.lock);
        let revision = reply.header.revision;
        let at = HeldAt {
            held: draft.held.clone(),
            create_revision: revision,
            mod_revision: revision,
            lease: draft.leases.holder,
        };
        let token = at.token();
        let doubt = match &token {
            Ok(token) => self.seen.doubt_of_grant(&reply.header, token.get()),
            Err(_) => Some(Doubt::Below { next: u64::MAX, seen: self.seen.token }),
        };
        if let Some(doubt) = doubt {
            self.undo(&at, doubt).await?;
            token?;
            return Ok(Try::Anew);
        }
        store.inner.counter.saw(&reply.header);
        store.inner.counter.saw_token(token?);
        let record = values::filled(draft.record(&self.before.record.record), revision);
        let remaining_ms = store.keep(lock, at.clone(), record, draft.leases, &self.terms);
        told(&at, remaining_ms).map(Try::Granted)
    }

    /// Takes a grant back whose token is in doubt, and verifies etcd.
    async fn undo(&self, at: &HeldAt, doubt: Doubt) -> Result<(), StoreError> {
        let (store, lock) = (&self.store, &self.request.lock);
        store.inner.counter.forget();
        store.take_back(lock, at, doubt).await?;
        store.inner.counter.verify(&store.inner.gateway, Occasion::Later).await
    }
}

/// Etcd leases that were made for a grant. Dropped before one was sent with them, they are ended.
pub(super) struct Unused<'a> {
    pub(super) store: &'a EtcdStore,
    pub(super) leases: Option<Leases>,
}

impl Unused<'_> {
    fn end(&mut self) {
        if let Some(leases) = self.leases.take() {
            self.store.revoke_later(vec![leases.holder, leases.record]);
        }
    }
}

impl Drop for Unused<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
