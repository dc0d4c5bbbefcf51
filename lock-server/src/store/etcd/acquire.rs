//! Granting a lock.

use std::time::Duration;

use fence_protocol::wire::lock::HolderInfo;
use fence_protocol::{LeaseId, LockName, Token};

use super::counter::{Known, Occasion};
use super::gateway::GatewayError;
use super::keeper::Kept;
use super::leases::Leases;
use super::offset::Seen;
use super::sessions::Terms;
use super::txn::{Compare, On, Op, Txn};
use super::values::{self, Granted, Held, HeldAt, Record, written};
use super::view::{self, Standing, View};
use super::wire::{Header, TxnReply};
use super::{EtcdStore, TRIES, millis, store_error};
use crate::store::{Acquire, Grant, Mode, StoreError};

/// How long a lock may be on its way to a waiter before a newcomer is told so, in milliseconds.
const HANDOVER_MS_MAX: u64 = 3_000;
/// How often it is looked at meanwhile.
const HANDOVER_LOOK: Duration = Duration::from_millis(10);

/// For how long a grant is read back whose answer was lost.
const READ_BACK_MAX: Duration = Duration::from_secs(5);
const READ_BACK_PAUSE: Duration = Duration::from_millis(100);

/// What came of asking once.
pub(super) enum Attempt {
    /// The lock is the caller's.
    Granted(Grant),
    /// Somebody holds it, or is before the caller.
    NotNow(Box<View>),
}

/// What came of one transaction.
enum Try {
    Granted(Grant),
    /// Something had changed; this is how it is now.
    Changed(Box<View>),
    /// The etcd leases are used up; with new ones it may go.
    Anew,
}

impl EtcdStore {
    /// Reads a lock for a request with this id.
    pub(super) async fn view(
        &self,
        lock: &LockName,
        lease_id: LeaseId,
    ) -> Result<View, StoreError> {
        let txn = Txn::reading(view::ops(&self.inner.keys, lock, lease_id));
        let seen = self.inner.counter.seen();
        let reply = self.inner.gateway.read(&txn).await.map_err(store_error)?;
        self.look_over(&seen, &reply.header);
        View::of(reply)
    }

    /// Notes how far etcd is; an etcd that is not where it was must be verified before the next grant.
    pub(super) fn look_over(&self, seen: &Seen, header: &Header) {
        match seen.doubt(header) {
            None => self.inner.counter.saw(header),
            Some(doubt) => {
                tracing::warn!(%doubt, "etcd is not as it was left; verifying it again");
                self.inner.counter.forget();
            }
        }
    }

    /// Grants the lock now or refuses.
    pub(super) async fn acquire_now(&self, request: &Acquire) -> Result<Grant, StoreError> {
        let until_ms = self.now_ms() + HANDOVER_MS_MAX;
        loop {
            let view = match self.attempt(request, true).await? {
                Attempt::Granted(grant) => return Ok(grant),
                Attempt::NotNow(view) => view,
            };
            if let Some(refusal) = self.held(&request.lock, &view).await? {
                return Err(refusal);
            }
            if self.now_ms() >= until_ms {
                return Err(StoreError::Unavailable(
                    "the lock is free and on its way to somebody who waited; repeat the request"
                        .to_owned(),
                ));
            }
            tokio::time::sleep(HANDOVER_LOOK).await;
        }
    }

    /// The refusal that names the holder; none where nobody holds the lock.
    pub(super) async fn held(
        &self,
        lock: &LockName,
        view: &View,
    ) -> Result<Option<StoreError>, StoreError> {
        let Some(at) = &view.held else { return Ok(None) };
        let holder = self.info(lock, at).await?;
        Ok(Some(StoreError::Held { holder, queue_length: view.queue_length }))
    }

    /// A live lease as others see it.
    pub(super) async fn info(
        &self,
        lock: &LockName,
        at: &HeldAt,
    ) -> Result<HolderInfo, StoreError> {
        Ok(HolderInfo {
            owner: at.held.owner.clone(),
            token: at.token()?,
            held_ms: self.wall_ms().saturating_sub(at.held.granted_at_ms),
            expires_in_ms: self.remaining_ms(lock, at).await?,
        })
    }

    /// What remains of a live lease: to the millisecond where this server keeps it, else as etcd says.
    pub(super) async fn remaining_ms(
        &self,
        lock: &LockName,
        at: &HeldAt,
    ) -> Result<u64, StoreError> {
        if let Some(deadline_ms) = self.inner.keeper.deadline_ms(lock, at.create_revision) {
            return Ok(deadline_ms.saturating_sub(self.now_ms()));
        }
        if let Some(session) = at.held.session {
            return self.session_remaining_ms(session).await;
        }
        let remaining = self.inner.gateway.lease_remaining(at.lease).await.map_err(store_error)?;
        Ok(remaining.map_or(0, |secs| (secs * 1_000).min(at.held.ttl_ms)))
    }

    /// Asks once. `claimed` is whether the caller hears of the grant for certain.
    pub(super) async fn attempt(
        &self,
        request: &Acquire,
        claimed: bool,
    ) -> Result<Attempt, StoreError> {
        let mut terms = self.terms(request).await?;
        let mut leases = Unused { store: self, leases: None };
        let mut known_view = None;
        for _ in 0..TRIES {
            let known = self.ready(request.min_token).await?;
            let view = match known_view.take() {
                Some(view) => view,
                None => Box::new(self.look_before(request, &terms, &mut leases).await?),
            };
            match view.standing(request.lease_id, &request.owner) {
                Standing::Yours => match self.repeat(request, &view).await? {
                    Some(grant) => return Ok(Attempt::Granted(grant)),
                    None => continue,
                },
                Standing::Conflict(owner) => return Err(StoreError::IdConflict { owner }),
                Standing::Ended(lost) => return Err(lost),
                Standing::Held | Standing::Behind => {
                    self.inner.keeper.is_busy(&request.lock, self.now_ms());
                    return Ok(Attempt::NotNow(view));
                }
                Standing::Open => {}
            }
            if view.meta.as_ref().map(|(_, revision)| *revision) != Some(known.mod_revision) {
                self.inner.counter.forget();
                known_view = Some(view);
                self.ready(None).await?;
                known_view = known_view.filter(|view| self.is_counted(view));
                continue;
            }
            match self.grant(request, &terms, &view, &known, &mut leases, claimed).await? {
                Try::Granted(grant) => return Ok(Attempt::Granted(grant)),
                Try::Changed(view) => {
                    known_view = Some(view);
                    // What changed may be the session.
                    terms = if terms.is_bound() { self.terms(request).await? } else { terms };
                }
                Try::Anew => {}
            }
        }
        Err(StoreError::Unavailable(format!(
            "lock {} changes all the time; nothing was granted; try again",
            request.lock
        )))
    }

    /// Whether a view was read with the counter that is in force.
    fn is_counted(&self, view: &View) -> bool {
        let in_force = self.inner.counter.mod_revision();
        in_force.is_some() && view.meta.as_ref().map(|(_, revision)| *revision) == in_force
    }

    async fn ready(&self, above: Option<Token>) -> Result<Known, StoreError> {
        self.inner.counter.ready(&self.inner.gateway, above).await
    }

    /// Reads the lock, and makes the etcd leases at the same time unless they would be for nothing.
    async fn look_before(
        &self,
        request: &Acquire,
        terms: &Terms,
        leases: &mut Unused<'_>,
    ) -> Result<View, StoreError> {
        let lock = &request.lock;
        let needless = leases.leases.is_some()
            || terms.is_bound()
            || self.inner.keeper.looks_busy(lock, self.now_ms());
        if needless {
            return self.view(lock, request.lease_id).await;
        }
        let (view, made) =
            tokio::join!(self.view(lock, request.lease_id), self.make_leases(request.ttl.ms()));
        leases.leases = Some(made.map_err(store_error)?);
        view
    }

    /// The grant that the id has already; `None` where it has just changed.
    async fn repeat(&self, request: &Acquire, view: &View) -> Result<Option<Grant>, StoreError> {
        let Some(at) = &view.held else { return Ok(None) };
        let remaining_ms = self.remaining_ms(&request.lock, at).await?;
        if !at.held.claimed && !self.claim(&request.lock, at).await? {
            return Ok(None);
        }
        self.inner.keeper.claim(&request.lock, request.lease_id);
        told(at, remaining_ms).map(Some)
    }

    /// Writes that a caller was told of a grant, so that nobody takes it back.
    async fn claim(&self, lock: &LockName, at: &HeldAt) -> Result<bool, StoreError> {
        let key = self.inner.keys.holder(lock);
        let held = Held { claimed: true, ..at.held.clone() };
        let txn = Txn {
            compare: vec![Compare::unchanged(&key, at.mod_revision)],
            success: vec![Op::put(&key, &written(&held), On::TheSame)],
            failure: Vec::new(),
        };
        let reply = self.inner.gateway.write_compared(&txn).await.map_err(store_error)?;
        if reply.succeeded
            && let Some(kept) = self.inner.keeper.lease(lock, at.held.lease_id)
        {
            let at = HeldAt { held, mod_revision: reply.header.revision, ..at.clone() };
            self.inner.keeper.keep(lock, Kept { at, ..kept });
        }
        Ok(reply.succeeded)
    }

    /// Runs the granting transaction.
    async fn grant(
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
        match self.inner.gateway.write(&draft.txn(self, request, terms, view, known)).await {
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
                self.read_back(request, terms, &draft, reason).await
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

    /// A token that no lease has.
    pub(super) async fn mint_token(&self) -> Result<Token, StoreError> {
        for _ in 0..TRIES {
            let known = self.ready(None).await?;
            let seen = self.inner.counter.seen();
            let txn = Txn {
                compare: vec![Compare::unchanged(&self.inner.keys.meta(), known.mod_revision)],
                success: vec![Op::put(&self.inner.keys.mint(), "", On::Nothing)],
                failure: Vec::new(),
            };
            let reply = self.inner.gateway.write(&txn).await.map_err(store_error)?;
            if !reply.succeeded {
                self.inner.counter.forget();
                continue;
            }
            let token = values::token(known.meta.offset, reply.header.revision)?;
            if let Some(doubt) = seen.doubt_of_grant(&reply.header, token.get()) {
                tracing::warn!(%doubt, "a minted token is in doubt and is not used; verifying etcd");
                self.inner.counter.forget();
                continue;
            }
            self.inner.counter.saw(&reply.header);
            self.inner.counter.saw_token(token);
            return Ok(token);
        }
        Err(StoreError::Unavailable("the token counter changes all the time; try again".to_owned()))
    }
}

/// The reply for a live lease.
pub(super) fn told(at: &HeldAt, remaining_ms: u64) -> Result<Grant, StoreError> {
    Ok(Grant {
        lease_id: at.held.lease_id,
        token: at.token()?,
        owner: at.held.owner.clone(),
        remaining_ms,
        waited_ms: 0,
        mode: Mode::Exclusive,
    })
}

/// A grant as it is going to be written.
struct Draft {
    held: Held,
    leases: Leases,
    granted: Granted,
}

impl Draft {
    fn new(
        store: &EtcdStore,
        request: &Acquire,
        terms: &Terms,
        known: &Known,
        leases: Leases,
        claimed: bool,
    ) -> Self {
        let at_ms = store.wall_ms();
        let (offset, owner) = (known.meta.offset, request.owner.clone());
        Self {
            held: Held {
                lease_id: request.lease_id,
                owner: owner.clone(),
                ttl_ms: terms.ttl_ms(request),
                offset,
                granted_at_ms: at_ms,
                renewals: 0,
                keeper: store.inner.server_id.clone(),
                claimed,
                stamp: service_kit::ids::random_hex(8),
                record_lease: leases.record,
                metadata: request.metadata.clone(),
                incarnation: request.incarnation.clone(),
                session: request.session,
            },
            leases,
            granted: Granted {
                lease_id: request.lease_id,
                owner,
                offset,
                at_ms,
                session: request.session,
                token: None,
            },
        }
    }

    fn record(&self, before: &Record) -> Record {
        before.grant(self.granted.clone(), &self.held.stamp)
    }

    fn txn(
        &self,
        store: &EtcdStore,
        request: &Acquire,
        terms: &Terms,
        view: &View,
        known: &Known,
    ) -> Txn {
        let (keys, lock) = (&store.inner.keys, &request.lock);
        let (holder, record) = (keys.holder(lock), keys.record(lock));
        let (queue, place) = (keys.queue(lock), keys.waiter(lock, request.lease_id));
        let mut compare = vec![
            Compare::unchanged(&keys.meta(), known.mod_revision),
            Compare::absent(&holder),
            Compare::unchanged(&record, view.record.mod_revision),
        ];
        let mut success = vec![
            Op::put(&holder, &written(&self.held), On::Lease(self.leases.holder)),
            Op::put(
                &record,
                &written(&self.record(&view.record.record)),
                On::Lease(self.leases.record),
            ),
        ];
        match &view.place {
            Some(own) => {
                // The place is still there, the same one, and nobody has an earlier one.
                compare.push(Compare::created_by(&place, own.create_revision));
                compare.push(Compare::none_earlier_in(&queue, own.create_revision));
                success.push(Op::delete(&place));
            }
            None => compare.push(Compare::nothing_in(&queue)),
        }
        compare.extend(terms.compare());
        success.extend(terms.hold());
        Txn { compare, success, failure: view::ops(keys, lock, request.lease_id) }
    }
}

/// Etcd leases that were made for a grant. Dropped before it was made, they are ended.
struct Unused<'a> {
    store: &'a EtcdStore,
    leases: Option<Leases>,
}

impl Drop for Unused<'_> {
    fn drop(&mut self) {
        if let Some(leases) = self.leases.take() {
            self.store.revoke_later(vec![leases.holder, leases.record]);
        }
    }
}
