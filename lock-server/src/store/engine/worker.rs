//! The thread: one batch after the other is applied, committed and answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use fence_protocol::{LeaseId, LockName, Token};
use service_kit::clock::Clock;
use service_kit::health::{Health, Status};
use tokio::sync::oneshot;

use super::{Answer, Asked, Heard, Journal, Ready, Request};
use crate::store::{Acquire, StoreError};
use lease::{Machine, Reply, tokens};

/// How many requests share one journal write at most.
const BATCH: usize = 4_096;
/// How long the thread sleeps when nothing is due.
const IDLE: Duration = Duration::from_secs(3_600);
/// The readiness check of the journal.
const CHECK: &str = "journal";

pub(super) struct Worker<J> {
    machine: Machine,
    journal: J,
    clock: Arc<dyn Clock>,
    /// Who waits for which answer; a repeated request has several listeners.
    waiting: HashMap<(LockName, LeaseId), Vec<oneshot::Sender<Heard>>>,
    /// Answers that leave after the commit.
    ready: Vec<Ready>,
    failed: Option<String>,
    health: Health,
}

impl<J: Journal> Worker<J> {
    pub(super) fn new(machine: Machine, journal: J, clock: Arc<dyn Clock>, health: Health) -> Self {
        health.set(CHECK, Status::Ok);
        let (waiting, ready) = (HashMap::new(), Vec::new());
        Self { machine, journal, clock, waiting, ready, failed: None, health }
    }

    /// Serves until the channel is closed or [`Request::Stop`] comes.
    pub(super) fn run(mut self, requests: &Receiver<Request>) {
        loop {
            let first = match requests.recv_timeout(self.pause()) {
                Ok(request) => Some(request),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let stop = self.turn(first, requests);
            if stop {
                return;
            }
        }
    }

    fn pause(&self) -> Duration {
        if self.failed.is_some() {
            // No turn settles anything any more: what is due stays due.
            return IDLE;
        }
        if self.machine.has_news() {
            return Duration::ZERO;
        }
        let Some(at_ms) = self.machine.next_alarm_ms() else { return IDLE };
        Duration::from_millis(at_ms.saturating_sub(self.clock.monotonic_ms())).min(IDLE)
    }

    /// One batch: apply, commit, answer. Returns whether to stop.
    fn turn(&mut self, first: Option<Request>, requests: &Receiver<Request>) -> bool {
        let batch = first.into_iter().chain(requests.try_iter()).take(BATCH);
        if self.failed.is_some() {
            return batch.fold(false, |stop, request| stop | matches!(request, Request::Stop));
        }
        let now_ms = self.clock.monotonic_ms();
        self.machine.tick(now_ms);
        let mut stop = false;
        for request in batch {
            stop |= matches!(request, Request::Stop);
            self.apply(now_ms, request);
        }
        self.collect_deliveries();
        match self.journal.commit(&mut self.machine) {
            Ok(()) => self.answer(now_ms),
            Err(reason) => self.fail(reason),
        }
        stop
    }

    /// What is in memory is ahead of what is durable: every answer in hand is dropped, which its
    /// caller reads as "unknown", and nothing is served any more.
    fn fail(&mut self, reason: String) {
        tracing::error!(reason, "the journal failed; nothing is served until a restart");
        let text = format!("the journal failed: {reason}; restart this server");
        self.health.set(CHECK, Status::Failing(text));
        self.failed = Some(reason);
        self.ready.clear();
        self.waiting.clear();
    }

    fn apply(&mut self, now_ms: u64, request: Request) {
        match request {
            Request::Acquire(acquire, answer) => self.acquire(now_ms, acquire, answer),
            Request::AcquireAll(parts, answer) => self.acquire_all(now_ms, parts, answer),
            Request::Withdraw { asked, granted: true } => self.withdraw(now_ms, asked),
            Request::Withdraw { asked, granted: false } => self.leave(now_ms, asked),
            Request::Renew(lock, lease_id, ttl, answer) => {
                let result = self.machine.renew(now_ms, &lock, lease_id, ttl);
                self.answer_later(answer, result);
            }
            Request::Release(lock, lease_id, answer) => {
                let result = self.machine.release(now_ms, &lock, lease_id);
                self.answer_later(answer, result);
            }
            Request::Show(lock, answer) => {
                let result = self.machine.show(now_ms, &lock);
                self.answer_later(answer, Ok(result));
            }
            Request::List(query, answer) => {
                let result = self.machine.list(now_ms, &query);
                self.answer_later(answer, Ok(result));
            }
            Request::Lift(mark, answer) => {
                self.lift(mark);
                self.answer_later(answer, Ok(()));
            }
            Request::Run(work) => {
                let ready = work(&mut self.machine, now_ms);
                self.ready.push(ready);
            }
            Request::Stop => {}
        }
    }

    fn acquire(&mut self, now_ms: u64, acquire: Acquire, answer: oneshot::Sender<Heard>) {
        let key = (acquire.lock.clone(), acquire.lease_id);
        match self.machine.acquire(now_ms, acquire) {
            Reply::Done(result) => self.ready.push(Box::new(move |_, at_ms| {
                drop(answer.send(Heard { at_ms, result, others: Vec::new(), shared: true }));
            })),
            Reply::Queued => self.waiting.entry(key).or_default().push(answer),
        }
    }

    fn acquire_all(&mut self, now_ms: u64, parts: Vec<Acquire>, answer: oneshot::Sender<Heard>) {
        let Some(first) = parts.first() else { return };
        // The rules deliver the answer of several under the first of them.
        let key = (first.lock.clone(), first.lease_id);
        match self.machine.acquire_all(now_ms, parts) {
            Reply::Done(result) => self.ready.push(Box::new(move |_, at_ms| {
                let (result, others) = match result {
                    Ok(mut grants) => (Ok(grants.remove(0)), grants),
                    Err(refusal) => (Err(refusal), Vec::new()),
                };
                drop(answer.send(Heard { at_ms, result, others, shared: true }));
            })),
            Reply::Queued => self.waiting.entry(key).or_default().push(answer),
        }
    }

    /// A caller left without hearing its answer: what was granted is taken back.
    fn withdraw(&mut self, now_ms: u64, asked: Asked) {
        let (mut locks, lease_id) = (asked.others, asked.lease_id);
        if locks.is_empty() {
            return self.machine.withdraw(now_ms, &asked.lock, lease_id);
        }
        locks.push(asked.lock);
        self.machine.withdraw_all(now_ms, &locks, lease_id);
    }

    /// A guard has seen a token that this counter has not given yet: the counter lost its memory.
    fn lift(&mut self, mark: Token) {
        let counter = self.machine.counter();
        if counter >= mark.get() {
            return;
        }
        let lifted = tokens::after_loss(mark.get(), self.clock.wall_ms());
        tracing::warn!(
            counter, %mark, lifted,
            "a guard has seen a higher token than this store has issued: the store lost its memory; \
             tokens go on above everything that can have been issued"
        );
        self.machine.raise_counter(lifted);
    }

    /// A caller left the queue, unless another one waits for the same id.
    fn leave(&mut self, now_ms: u64, asked: Asked) {
        let key = (asked.lock.clone(), asked.lease_id);
        let Some(listeners) = self.waiting.get_mut(&key) else { return };
        listeners.retain(|listener| !listener.is_closed());
        if listeners.is_empty() {
            self.waiting.remove(&key);
            self.withdraw(now_ms, asked);
        }
    }

    fn collect_deliveries(&mut self) {
        for delivery in self.machine.take_deliveries() {
            let key = (delivery.lock.clone(), delivery.lease_id);
            let listeners = self.waiting.remove(&key).unwrap_or_default();
            self.ready.push(Box::new(move |machine, now_ms| {
                let granted = delivery.result.is_ok();
                let shared = listeners.len() > 1;
                let mut heard = false;
                for listener in listeners {
                    let result = delivery.result.clone();
                    let others = delivery.others.iter().map(|(_, grant)| grant.clone()).collect();
                    let answer = Heard { at_ms: now_ms, result, others, shared };
                    heard |= listener.send(answer).is_ok();
                }
                if granted && !heard {
                    machine.withdraw_all(now_ms, &delivery.locks(), delivery.lease_id);
                }
            }));
        }
    }

    fn answer_later<T: Send + 'static>(
        &mut self,
        answer: Answer<T>,
        result: Result<T, StoreError>,
    ) {
        // A caller that left without waiting in the queue learns the result by repeating.
        self.ready.push(Box::new(move |_, _| drop(answer.send(result))));
    }

    /// Answers what the commit covered. Grants that nobody hears are taken back, which the next
    /// turn commits and hands on.
    fn answer(&mut self, now_ms: u64) {
        for ready in std::mem::take(&mut self.ready) {
            ready(&mut self.machine, now_ms);
        }
    }
}

#[cfg(test)]
mod tests;
