//! The requests of the API, as the driver takes them.

use super::*;

#[async_trait]
impl LockStore for Driver {
    async fn acquire(&self, request: Acquire) -> Result<Grant, StoreError> {
        let grants = self.acquire_parts(vec![request], false).await?;
        grants.into_iter().next().ok_or_else(unanswered)
    }

    async fn acquire_all(&self, parts: Vec<Acquire>) -> Result<Vec<Grant>, StoreError> {
        self.acquire_parts(parts, true).await
    }

    async fn renew_as(
        &self,
        principal: Option<&str>,
        lock: &LockName,
        lease: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError> {
        let keys = of_lock(lock);
        let lock = lock.clone();
        let principal = principal.map(ToOwned::to_owned);
        let named = Some((lock.clone(), lease));
        let work = move |machine: &mut Machine, now_ms| {
            machine.check_principal(now_ms, &lock, lease, principal.as_deref())?;
            machine.renew(now_ms, &lock, lease, ttl)
        };
        let sent_ms = self.inner.kit.clock.monotonic_ms();
        let (op, reply) = Call::of_lease(keys, named, work);
        self.inner.submit(op)?;
        let grant = reply.await.unwrap_or_else(|_| Err(unanswered()))?;
        Ok(grant.later(self.inner.since_ms(sent_ms)))
    }

    async fn release_as(
        &self,
        principal: Option<&str>,
        lock: &LockName,
        lease: LeaseId,
    ) -> Result<EndedReply, StoreError> {
        let keys = of_lock(lock);
        let lock = lock.clone();
        let principal = principal.map(ToOwned::to_owned);
        let work = move |machine: &mut Machine, now_ms| {
            machine.check_principal(now_ms, &lock, lease, principal.as_deref())?;
            machine.release(now_ms, &lock, lease)
        };
        self.call(keys, work).await
    }

    async fn revoke(&self, lock: &LockName, revoke: Revoke) -> Result<Vec<EndedReply>, StoreError> {
        let keys = of_lock(lock);
        let lock = lock.clone();
        self.call(keys, move |machine, now_ms| machine.revoke(now_ms, &lock, &revoke)).await
    }

    async fn mint(&self, _lock: &LockName) -> Result<Token, StoreError> {
        self.call(Vec::new(), |machine, _| machine.mint()).await
    }

    async fn floor(&self) -> Result<Token, StoreError> {
        self.call(Vec::new(), |machine, _| machine.mint()).await
    }

    async fn show(&self, lock: &LockName) -> Result<LockReply, StoreError> {
        if !self.inner.store.is_alone() {
            return self.shared_lock(lock).await;
        }
        let lock = lock.clone();
        self.call(Vec::new(), move |machine, now_ms| Ok(machine.show(now_ms, &lock))).await
    }

    async fn list(&self, query: ListQuery) -> Result<LockPage, StoreError> {
        if !self.inner.store.is_alone() {
            return self.shared_locks(query).await;
        }
        self.call(Vec::new(), move |machine, now_ms| Ok(machine.list(now_ms, &query))).await
    }

    async fn lift(&self, mark: Token) -> Result<(), StoreError> {
        if !self.inner.store.is_alone() {
            return self.inner.store.lift(mark).await;
        }
        let clock = self.inner.kit.clock.clone();
        let work = move |machine: &mut Machine, _| {
            let counter = machine.counter();
            if counter < mark.get() {
                let lifted = tokens::after_loss(mark.get(), clock.wall_ms());
                tracing::warn!(
                    counter, %mark, lifted,
                    "a guard has seen a higher token than this store has issued: the store lost its \
                     memory; tokens continue above everything that can have been issued"
                );
                machine.raise_counter(lifted);
            }
            Ok(())
        };
        self.call(Vec::new(), work).await
    }

    fn report_to(&self, reports: Arc<dyn Report>) -> Option<ServerId> {
        let state = &mut *self.inner.state();
        if self.inner.reports.set(reports).is_ok() {
            state.core.machine.report_events();
        }
        Some(self.inner.server.id)
    }

    fn name(&self) -> &'static str {
        self.inner.store.name()
    }
}

#[async_trait]
impl SessionStore for Driver {
    async fn create_session(&self, new: NewSession) -> Result<SessionReply, StoreError> {
        let keys = vec![Key::Session(new.session_id)];
        let work = move |machine: &mut Machine, now_ms| machine.create_session(now_ms, new.clone());
        Ok(self.done(self.timed(keys, work, later).await?).await)
    }

    async fn heartbeat(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        let work = move |machine: &mut Machine, now_ms| machine.heartbeat(now_ms, session);
        Ok(self.done(self.timed(vec![Key::Session(session)], work, later).await?).await)
    }

    async fn end_session(&self, session: SessionId) -> Result<SessionEndedReply, StoreError> {
        if !self.inner.store.is_alone() {
            return self.end_shared(session).await;
        }
        self.call(Vec::new(), move |machine, now_ms| machine.end_session(now_ms, session)).await
    }

    async fn block_session(
        &self,
        session: SessionId,
        reason: Owner,
    ) -> Result<SessionReply, StoreError> {
        let work = move |machine: &mut Machine, now_ms: u64| {
            machine.block_session(now_ms, session, reason.clone())
        };
        Ok(self.done(self.timed(vec![Key::Session(session)], work, later).await?).await)
    }

    async fn show_session(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        if !self.inner.store.is_alone() {
            return self.shared_session(session).await;
        }
        let work = move |machine: &mut Machine, now_ms| machine.show_session(now_ms, session);
        self.timed(Vec::new(), work, later).await
    }

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<SessionPage, StoreError> {
        if !self.inner.store.is_alone() {
            return self.shared_sessions(after, limit).await;
        }
        let work = move |machine: &mut Machine, now_ms: u64| {
            Ok(machine.list_sessions(now_ms, after, limit))
        };
        self.call(Vec::new(), work).await
    }
}
