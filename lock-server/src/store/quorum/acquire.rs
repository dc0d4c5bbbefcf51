//! Asking for a lock, and waiting for it.

use std::time::Duration;

use fence_protocol::LockName;

use super::queue::{Entered, Key, Next, Seat};
use super::shown::Standing;
use super::{QuorumStore, random_below, refused};
use crate::rules::quorum::End;
use crate::store::{Acquire, Grant, StoreError};
use fence_protocol::wire::lock::EndReason;

/// The most that the first of a queue waits longer than it must, so that the servers that wait for
/// one lease do not all ask at the moment of its end, in milliseconds.
const SPREAD_MS: u64 = 8;

impl QuorumStore {
    /// Grants the lock, now or within the request's patience. Cancel-safe: dropped, it leaves.
    pub(super) async fn acquire_one(&self, request: Acquire) -> Result<Grant, StoreError> {
        refused::check(&request)?;
        let key: Key = (request.lock.clone(), request.lease_id);
        let deadline = tokio::time::sleep(Duration::from_millis(request.wait_ms));
        tokio::pin!(deadline);
        self.queues().others_left(&key).await;
        let (mut seat, entered) =
            self.queues().enter(self, &request, &self.inner.options.limits)?;
        match entered {
            Entered::First => self.drive(request.lock.clone()),
            Entered::Behind => {
                let standing = tokio::select! {
                    standing = self.standing(&request) => standing,
                    told = seat.told() => return told,
                };
                if let Some(answer) = standing_answer(standing, &request) {
                    return seat.answered_with(answer);
                }
            }
            Entered::Beside => {}
        }
        if request.wait_ms == 0 {
            return self.confirmed(&key, seat.told().await);
        }
        tokio::select! {
            biased;
            told = seat.told() => return self.confirmed(&key, told),
            () = &mut deadline => {}
        }
        let told = seat.last_word().await;
        self.confirmed(&key, told)
    }

    fn confirmed(&self, key: &Key, told: Result<Grant, StoreError>) -> Result<Grant, StoreError> {
        if told.is_ok() {
            self.queues().confirm(key);
        }
        told
    }

    /// Asks for whoever is first in the queue of a lock, one after the other, until nobody is.
    fn drive(&self, lock: LockName) {
        let store = self.clone();
        self.inner.tasks.spawn(async move {
            while let Some((request, wake)) = store.queues().head(&lock) {
                // What woke this up so far is seen by the proposal.
                drain(&wake);
                let outcome = store.propose(&request).await;
                let now_ms = store.now_ms();
                match store.queues().tell(&lock, request.lease_id, outcome, now_ms) {
                    Next::Ask => {}
                    Next::TakeBack(lease) => store.withdraw((lock.clone(), lease)).await,
                    Next::Wait(ms) => {
                        let ms = ms.saturating_add(random_below(SPREAD_MS));
                        tokio::select! {
                            () = wake.notified() => {}
                            () = tokio::time::sleep(Duration::from_millis(ms)) => {}
                        }
                    }
                }
            }
        });
    }

    /// Ends a grant whose callers have gone, unless a repeat has shown meanwhile that it arrived.
    pub(super) fn withdraw_later(&self, key: Key) {
        self.queues().leaves(&key);
        let store = self.clone();
        self.inner.tasks.spawn(async move {
            store.end_lost_grant(&key).await;
            store.queues().has_left(&key);
        });
    }

    async fn withdraw(&self, key: Key) {
        self.queues().leaves(&key);
        self.end_lost_grant(&key).await;
        self.queues().has_left(&key);
    }

    async fn end_lost_grant(&self, key: &Key) {
        let end = End::For { reason: EndReason::Released, why: None };
        if let Err(error) = self.end(&key.0, key.1, end).await {
            tracing::debug!(lock = %key.0, lease_id = %key.1, %error, "a grant that reached nobody");
        }
    }
}

/// What is known of a request that came behind others, where that answers it already.
fn standing_answer(
    standing: Result<Standing, StoreError>,
    request: &Acquire,
) -> Option<Result<Grant, StoreError>> {
    match standing {
        Ok(Standing::Yours(grant)) if grant.owner == request.owner => Some(Ok(grant)),
        Ok(Standing::Yours(grant)) => Some(Err(StoreError::IdConflict { owner: grant.owner })),
        Ok(Standing::Ended { reason, why }) => Some(Err(StoreError::Lost { reason, why })),
        Ok(Standing::Held { holder, queue_length }) if request.wait_ms == 0 => {
            Some(Err(StoreError::Held { holder, queue_length }))
        }
        // Whoever is first in the queue is about to learn the same.
        Ok(Standing::Held { .. } | Standing::Free) | Err(_) => None,
    }
}

/// Forgets that somebody was woken.
fn drain(wake: &tokio::sync::Notify) {
    let notified = wake.notified();
    tokio::pin!(notified);
    notified.as_mut().enable();
}

/// A seat is dropped with its caller; this says that it may be sent along with it.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Seat>();
};
