//! Asking for a lock, and waiting for it.

use std::time::Duration;

use fence_protocol::{LockName, Token};

use super::queue::{Entered, NextProposal, ProposalOutcome, QueuePosition, QueueReply};
use super::shown::LockStanding;
use super::{QuorumStore, random_below, refused};
use crate::store::{Acquire, Grant, StoreError};

/// The most that the first of a queue waits longer than it must, so that the servers that wait for
/// one lease do not all ask at the moment of its end, in milliseconds.
const SPREAD_MS: u64 = 8;

/// One in so many times the first of a queue gives way when it is woken, because this server is
/// notified of its own releases before others are: a waiter at another server would never be first.
const GIVES_WAY_ONE_IN: u64 = 8;
/// For how long: others ask within five milliseconds of a notification, see `wake`.
const GIVES_WAY: Duration = Duration::from_millis(12);

impl QuorumStore {
    /// Grants the lock, now or within the request's patience. Cancel-safe: dropped, it leaves.
    pub(super) async fn acquire_one(&self, request: Acquire) -> Result<Grant, StoreError> {
        refused::check(&request)?;
        let deadline = tokio::time::sleep(Duration::from_millis(request.wait_ms));
        tokio::pin!(deadline);
        let (mut position, entered) =
            self.queues().enter(self, &request, &self.inner.options.limits)?;
        match entered {
            Entered::First if request.wait_ms > 0 => {
                drop(self.inner.tasks.spawn(self.clone().drive(request.lock.clone())));
            }
            // In the caller's task until it has its reply: most locks are free, and no other
            // request comes meanwhile.
            Entered::First => {
                let drive = self.inner.tasks.finish(self.clone().drive(request.lock.clone()));
                tokio::select! {
                    // Polled first: once it has begun, it is finished even where this request
                    // leaves.
                    biased;
                    () = drive => {}
                    reply = position.reply() => return reply,
                }
            }
            Entered::Behind => {
                tokio::select! {
                    biased;
                    reply = position.reply() => return reply,
                    answer = self.answer_at_once(&request) => match answer {
                        Some(answer) => return position.answered_with(answer),
                        // The next replies of the nodes decide for it, so the queue is woken.
                        None if request.wait_ms == 0 => self.queues().wake(&request.lock),
                        None => {}
                    },
                    () = &mut deadline, if request.wait_ms > 0 => {}
                }
            }
            Entered::Beside => {}
        }
        if request.wait_ms == 0 {
            return position.reply().await;
        }
        if !deadline.is_elapsed() {
            tokio::select! {
                biased;
                reply = position.reply() => return reply,
                () = &mut deadline => {}
            }
        }
        position.final_reply().await
    }

    /// Returns the reply to a request behind others, if the state of the nodes decides it already.
    async fn answer_at_once(&self, request: &Acquire) -> Option<QueueReply> {
        match self.standing(request).await {
            Ok(LockStanding::Mine(token)) => self.confirmed(request, token).await,
            Ok(LockStanding::Ended { reason, why }) => {
                Some(Err(StoreError::Lost { reason, why, is_known: true }))
            }
            Ok(LockStanding::Held { holder, queue_length }) if request.wait_ms == 0 => {
                Some(Err(StoreError::Held { holder, queue_length }))
            }
            // The first of the queue is about to learn the same.
            Ok(LockStanding::Held { .. } | LockStanding::Free) | Err(_) => None,
        }
    }

    /// Confirms a grant before its caller is notified of it: that nodes were seen to hold it is not
    /// enough, because those votes may be rolled back at this moment. A vote for the same token
    /// makes them stay, or shows that they are gone.
    async fn confirmed(&self, request: &Acquire, token: Token) -> Option<QueueReply> {
        let store = self.clone();
        let own = request.clone();
        let voting = self.inner.tasks.spawn(async move { store.confirm(&own, token).await });
        match voting.await {
            Ok(ProposalOutcome::Granted(granted)) => Some(Ok(granted)),
            Ok(ProposalOutcome::Refused(refusal)) => Some(Err(refusal)),
            _ => None,
        }
    }

    /// Proposes for the first request of a lock's queue, one after the other, until the queue is
    /// empty.
    async fn drive(self, lock: LockName) {
        while let Some((request, wake)) = self.queues().head(&lock) {
            // The proposal sees the cause of every wake-up so far.
            drain(&wake);
            let outcome = self.propose(&request).await;
            let now_ms = self.now_ms();
            let poll_ms = self.queues().poll_ms(self.inner.nodes.len());
            match self.queues().settle(&lock, request.lease_id, outcome, now_ms, poll_ms) {
                NextProposal::Propose => {}
                NextProposal::RollBack(delivery) => {
                    if let Some(most) = delivery.roll_back() {
                        // It ends without a word where too few nodes have answered.
                        let _ = most.await;
                    }
                }
                NextProposal::Wait(ms) => {
                    let _listening = self.queues().await_ends();
                    let ms = ms.saturating_add(random_below(SPREAD_MS));
                    tokio::select! {
                        () = wake.notified() => give_way().await,
                        () = tokio::time::sleep(Duration::from_millis(ms)) => {}
                    }
                }
            }
        }
    }
}

/// Lets waiters at other servers ask first, now and then.
async fn give_way() {
    if random_below(GIVES_WAY_ONE_IN) == 0 {
        tokio::time::sleep(GIVES_WAY).await;
    }
}

/// Clears pending wake-ups.
fn drain(wake: &tokio::sync::Notify) {
    let notified = wake.notified();
    tokio::pin!(notified);
    notified.as_mut().enable();
}

/// A position is dropped with its caller; this says that it may be sent along with it.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<QueuePosition>();
};
