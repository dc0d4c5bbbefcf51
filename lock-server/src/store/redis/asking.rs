//! Asking for one lock or for several, and waiting until they are granted.

use std::collections::HashSet;
use std::time::Duration;

use ::redis::Cmd;
use fence_protocol::wire::lock::LOCKS_PER_ACQUIRE_MAX;
use fence_protocol::{LeaseId, LockName, Owner, Token};
use service_kit::clock::Clock;

use super::reply::{self, Answer};
use super::waiting::{Leaving, Place, Wake};
use super::{RedisStore, millis};
use crate::store::{Acquire, Grant, StoreError};

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wish<'a> {
    /// One lock.
    One(&'a Acquire),
    /// All of these in one step; not empty.
    All(&'a [Acquire]),
}

impl<'a> Wish<'a> {
    /// What all parts have in common is in the first one.
    fn first(self) -> &'a Acquire {
        match self {
            Self::One(request) => request,
            Self::All(parts) => &parts[0],
        }
    }

    fn lock_delay_ms(self) -> u64 {
        match self {
            Self::One(request) => request.lock_delay_ms,
            Self::All(parts) => parts.iter().map(|part| part.lock_delay_ms).max().unwrap_or(0),
        }
    }

    fn locks(self) -> Vec<LockName> {
        match self {
            Self::One(request) => vec![request.lock.clone()],
            Self::All(parts) => parts.iter().map(|part| part.lock.clone()).collect(),
        }
    }

    /// Its locks by name: whoever repeats it in another order is known by the same first one.
    fn sorted(self) -> Vec<LockName> {
        let mut locks = self.locks();
        locks.sort_unstable();
        locks
    }

    /// A refusal that concerns the request as a whole names its first lock.
    fn part(self, error: StoreError) -> StoreError {
        match self {
            Self::One(_) => error,
            Self::All(_) => {
                let lock = self.first().lock.clone();
                StoreError::Part { lock, refusal: Box::new(error) }
            }
        }
    }
}

/// What a request for several locks must be, or the scripts could grant a lock twice.
///
/// # Errors
/// [`StoreError::Limit`] for too many; [`StoreError::Part`] for one that is named twice.
pub(super) fn check_parts(parts: &[Acquire]) -> Result<(), StoreError> {
    if parts.len() > LOCKS_PER_ACQUIRE_MAX {
        let limit = LOCKS_PER_ACQUIRE_MAX as u64;
        return Err(StoreError::Limit { what: "locks in one request", limit });
    }
    let mut names = HashSet::new();
    match parts.iter().find(|part| !names.insert(&part.lock)) {
        None => Ok(()),
        Some(twice) => Err(StoreError::Part {
            lock: twice.lock.clone(),
            refusal: Box::new(StoreError::IdConflict { owner: twice.owner.clone() }),
        }),
    }
}

impl RedisStore {
    /// Asks once: now, or a place in the queue.
    pub(super) async fn ask(&self, wish: Wish<'_>, queue: bool) -> Result<Answer, StoreError> {
        let scripts = &self.inner.scripts;
        let lineage = self.grants_in();
        let ask = async |acknowledged: String| match wish {
            Wish::One(request) => {
                let ask = |command: &mut Cmd| {
                    self.ask_one(command, request, queue);
                    command.arg(&acknowledged);
                };
                self.run(&scripts.acquire, ask).await
            }
            Wish::All(parts) => {
                let known_by = wish.sorted().swap_remove(0);
                let ask = |command: &mut Cmd| {
                    self.ask_all(command, parts, (&known_by, &acknowledged), queue);
                };
                self.run(&scripts.acquire_all, ask).await
            }
        };
        let mut answer = ask(self.acknowledged()).await?;
        if let Answer::Unacknowledged(token) = answer {
            self.acknowledge(lineage.clone()).await?;
            answer = ask(token.to_string()).await?;
        }
        if let Some(lives_ms) = answer.lives_ms() {
            self.inner.time.granted(lives_ms, wish.lock_delay_ms());
        }
        let (lease_id, locks) = (wish.first().lease_id, || wish.locks());
        let answer = answer.of(lease_id, &self.inner.options.limits);
        // A waiter does not ask again for what replicas lacked: it lost its place with the grant.
        let vouched = self.vouched(lineage, locks, lease_id, answer).await;
        Ok(vouched.unwrap_or_else(Answer::RolledBack))
    }

    fn ask_one(&self, command: &mut Cmd, request: &Acquire, queue: bool) {
        let limits = &self.inner.options.limits;
        command
            .arg(request.lock.as_str())
            .arg(request.lease_id.to_string())
            .arg(request.owner.as_str())
            .arg(request.ttl.ms())
            .arg(u8::from(queue))
            .arg(request.min_token.map_or(0, Token::get))
            .arg(request.metadata.as_deref().unwrap_or_default())
            .arg(limits.waiters_per_lock)
            .arg(millis(self.inner.options.liveness))
            .arg(reply::takeover_word(request.takeover))
            .arg(request.incarnation.as_ref().map_or("", Owner::as_str))
            .arg(request.session.map(|id| id.to_string()).unwrap_or_default())
            .arg(limits.session_leases)
            .arg(reply::mode_word(request.mode))
            .arg(request.lock_delay_ms);
    }

    fn ask_all(
        &self,
        command: &mut Cmd,
        parts: &[Acquire],
        (known_by, acknowledged): (&LockName, &str),
        queue: bool,
    ) {
        let limits = &self.inner.options.limits;
        let first = &parts[0];
        command
            .arg(first.lock.as_str())
            .arg(first.lease_id.to_string())
            .arg(first.owner.as_str())
            .arg(first.ttl.ms())
            .arg(u8::from(queue))
            .arg(first.metadata.as_deref().unwrap_or_default())
            .arg(limits.waiters_per_lock)
            .arg(millis(self.inner.options.liveness))
            .arg(first.incarnation.as_ref().map_or("", Owner::as_str))
            .arg(first.session.map(|id| id.to_string()).unwrap_or_default())
            .arg(limits.session_leases)
            .arg(known_by.as_str())
            .arg(acknowledged);
        for part in parts {
            command
                .arg(part.lock.as_str())
                .arg(reply::mode_word(part.mode))
                .arg(part.lock_delay_ms)
                .arg(part.min_token.map_or(0, Token::get));
        }
    }

    /// Waits in the queues. Cancel-safe: dropped, it leaves them.
    pub(super) async fn wait(&self, wish: Wish<'_>) -> Result<Vec<Grant>, StoreError> {
        let (limit, request) = (self.inner.options.limits.waiters, wish.first());
        let place = Place::take(self, wish.sorted(), request.lease_id, limit);
        let mut place = place.map_err(|error| wish.part(error))?;
        let began_ms = self.inner.clock.monotonic_ms();
        let deadline = tokio::time::sleep(Duration::from_millis(request.wait_ms));
        tokio::pin!(deadline);
        place.others_left().await;
        let mut answer = self.ask(wish, true).await;
        let mut queued = false;
        loop {
            match answer {
                Ok(Answer::Queued { expires_in_ms, .. }) => {
                    queued = true;
                    let now_ms = self.inner.clock.monotonic_ms();
                    self.inner.waiting.look_again_in(now_ms, expires_in_ms);
                }
                // Whoever has a place in the queue does not lose it to a Redis that is away.
                Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) if queued => {
                    self.inner.waiting.missed();
                }
                other => {
                    place.settled();
                    let grants = other.and_then(Answer::into_grants);
                    return if queued { self.waited(began_ms, grants) } else { grants };
                }
            }
            tokio::select! {
                wake = place.woken() => match wake {
                    Wake::Granted { grant, at_ms, .. } => {
                        place.settled();
                        let late_ms = self.inner.clock.monotonic_ms().saturating_sub(at_ms);
                        let grant = grant.later(late_ms);
                        self.inner.time.granted(grant.remaining_ms, wish.lock_delay_ms());
                        return self.waited(began_ms, Ok(vec![grant]));
                    }
                    Wake::Ask => answer = self.ask(wish, true).await,
                    Wake::Over(refusal) => {
                        place.settled();
                        return Err(refusal);
                    }
                },
                () = &mut deadline => break,
            }
        }
        let together = place.together();
        let last = self.abandon(wish).await;
        place.settled();
        if let Err(refusal) = &last {
            for other in together {
                let _ = other.try_send(Wake::Over(refusal.clone()));
            }
        }
        self.waited(began_ms, last)
    }

    fn waited(
        &self,
        began_ms: u64,
        grants: Result<Vec<Grant>, StoreError>,
    ) -> Result<Vec<Grant>, StoreError> {
        let clock: &dyn Clock = &*self.inner.clock;
        let waited_ms = clock.monotonic_ms().saturating_sub(began_ms);
        let mut grants = grants?;
        for grant in &mut grants {
            grant.waited_ms = waited_ms;
        }
        Ok(grants)
    }

    async fn abandon(&self, wish: Wish<'_>) -> Result<Vec<Grant>, StoreError> {
        let (locks, request) = (wish.locks(), wish.first());
        let lineage = self.grants_in();
        let answer = self
            .run(&self.inner.scripts.abandon, |command| {
                name_locks(command, &locks, request.lease_id);
            })
            .await
            .map_err(|error| match error {
                // It waits in Redis still, and may be granted before anybody sees to it.
                StoreError::Unavailable(reason) => StoreError::Unknown(reason),
                error => error,
            })?;
        if let Some(lives_ms) = answer.lives_ms() {
            self.inner.time.granted(lives_ms, wish.lock_delay_ms());
        }
        let answer = answer.of(request.lease_id, &self.inner.options.limits);
        let answer = self.vouched(lineage, || wish.locks(), request.lease_id, answer).await;
        answer.and_then(Answer::into_grants).map_err(|error| match error {
            // The script names the lock where there are several.
            StoreError::Part { .. } => error,
            error => wish.part(error),
        })
    }

    /// Takes a waiter out of its queues whose caller is gone, or its grants back, unless a repeat has
    /// shown meanwhile that they arrived. Where Redis is away the leases' own time ends them.
    pub(super) fn withdraw_later(
        &self,
        locks: Vec<LockName>,
        lease_id: LeaseId,
        leaving: Option<Leaving>,
    ) {
        let store = self.clone();
        self.inner.tasks.spawn(async move {
            let _leaving = leaving;
            let withdrawn = store.run(&store.inner.scripts.withdraw, |command| {
                name_locks(command, &locks, lease_id);
            });
            if let Err(error) = withdrawn.await {
                tracing::debug!(?locks, %lease_id, %error, "a waiter could not be withdrawn");
            }
        });
    }
}

/// The locks of a request and its id.
pub(super) fn name_locks(command: &mut Cmd, locks: &[LockName], lease_id: LeaseId) {
    let mut locks = locks.iter();
    command.arg(locks.next().map_or("", LockName::as_str)).arg(lease_id.to_string());
    for lock in locks {
        command.arg(lock.as_str());
    }
}
