//! Granting a lock.

use std::time::Duration;

use fence_protocol::wire::lock::HolderInfo;
use fence_protocol::{LeaseId, LockName, Token};

use super::counter::Known;
use super::granting::{Try, Unused};
use super::keeper::Kept;
use super::offset::Seen;
use super::sessions::Terms;
use super::txn::{On, Op, Txn};
use super::values::{self, Held, HeldAt, written};
use super::view::{self, Standing, View};
use super::wire::Header;
use super::{EtcdStore, TRIES, store_error};
use crate::store::{Acquire, Grant, Mode, StoreError};

/// How long a lock may be on its way to a waiter before a newcomer is told so, in milliseconds.
const HANDOVER_MS_MAX: u64 = 3_000;
/// How often it is looked at meanwhile.
const HANDOVER_LOOK: Duration = Duration::from_millis(10);

/// What came of asking once.
pub(super) enum Attempt {
    /// The lock is the caller's.
    Granted(Grant),
    /// Somebody holds it, or is before the caller.
    NotNow(Box<View>),
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
        if let Some(deadline_ms) = self.inner.keeper.deadline_ms(lock, at) {
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
            // The reading itself may have raised a doubt.
            let in_force = self.inner.counter.known();
            if in_force.as_ref() != Some(&known) || !known.is(view.meta.as_ref()) {
                if in_force.as_ref() == Some(&known) {
                    self.inner.counter.forget();
                }
                self.ready(None).await?;
                known_view = Some(view).filter(|view| self.is_counted(view));
                continue;
            }
            match self.grant(request, &terms, view, &known, &mut leases, claimed).await? {
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
        self.inner.counter.known().is_some_and(|known| known.is(view.meta.as_ref()))
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
        let (lock, lease_id) = (&request.lock, request.lease_id);
        if !self.may_be_told(lock, at, &view.header).await? {
            return Ok(None);
        }
        let is_kept = self.inner.keeper.deadline_ms(lock, at).is_some();
        if at.held.session.is_none() && !is_kept {
            // Another server ends it by its own watch, which nobody here can read: etcd's lease is
            // longer. So it is renewed, and what is told is true.
            return match self.renew_lease(lock, lease_id, None).await {
                Err(StoreError::Lost { .. }) => Ok(None),
                renewed => renewed.map(Some),
            };
        }
        let remaining_ms = self.told_ms(lock, at).await?;
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
            compare: self.same(lock, at),
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

    /// A token that no lease has.
    pub(super) async fn mint_token(&self) -> Result<Token, StoreError> {
        for _ in 0..TRIES {
            let known = self.ready(None).await?;
            let seen = self.inner.counter.seen();
            let txn = Txn {
                compare: known.compare(&self.inner.keys).into(),
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
