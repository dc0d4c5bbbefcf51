//! One request to the rules: what it needs to know, how it is decided, and its answer.
//!
//! A request is decided as often as its commit loses a race, and answered once.

use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};
use fence_protocol::{LeaseId, LockName, Token};
use lease::{Machine, Reply, lift};
use tokio::sync::oneshot;

use super::waiters::{Answered, Waiters, Waiting};
use crate::store::records::Key;
use crate::store::{Acquire, Grant, StoreError};

/// By how much the tokens of a batch lie above those that were decided on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lift {
    /// The counter that the batch was decided on.
    pub(super) counter: u64,
    pub(super) by: u64,
}

/// When a batch was decided, by this server's clock and by the store's, and its tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decided {
    pub(super) at_ms: u64,
    pub(super) now_ms: u64,
    pub(super) lift: Lift,
}

/// A request.
pub(super) trait Op: Send {
    /// The records that it is about.
    fn keys(&self) -> Vec<Key>;

    /// Decides it. What it decided before is replaced.
    fn run(&mut self, machine: &mut Machine, now_ms: u64);

    /// Answers it: what was decided last is committed. A request that is to be withdrawn, because
    /// no caller waits for its answer any more, is returned.
    fn finish(self: Box<Self>, decided: Decided, waiters: &mut Waiters) -> Option<Withdraw>;

    /// Answers it: it was not carried out, or that is not known.
    fn fail(self: Box<Self>, error: StoreError);

    /// How often its commit has lost a race, this time included.
    fn lost(&mut self) -> u32;
}

/// An answer with tokens in it.
pub(super) trait Tokens: Send + 'static {
    /// Replaces tokens that were decided on by those that were taken.
    fn lift(&mut self, lift: Lift);
}

impl Tokens for Token {
    fn lift(&mut self, by: Lift) {
        *self = lift(*self, by.counter, by.by);
    }
}

impl Tokens for Grant {
    fn lift(&mut self, lift: Lift) {
        self.token.lift(lift);
    }
}

impl Tokens for EndedReply {
    fn lift(&mut self, lift: Lift) {
        self.token.lift(lift);
    }
}

impl<T: Tokens> Tokens for Vec<T> {
    fn lift(&mut self, lift: Lift) {
        self.iter_mut().for_each(|each| each.lift(lift));
    }
}

/// Answers that name no token, or only such as were committed before.
macro_rules! without_new_tokens {
    ($($answer:ty),*) => {
        $(impl Tokens for $answer {
            fn lift(&mut self, _: Lift) {}
        })*
    };
}
without_new_tokens!((), LockReply, LockPage, SessionReply, SessionEndedReply, SessionPage);

/// A request whose answer is one value.
pub(super) struct Call<T, W> {
    keys: Vec<Key>,
    work: W,
    result: Option<Result<T, StoreError>>,
    answer: oneshot::Sender<Result<T, StoreError>>,
    lost: u32,
}

impl<T, W> Call<T, W>
where
    T: Tokens,
    W: FnMut(&mut Machine, u64) -> Result<T, StoreError> + Send + 'static,
{
    pub(super) fn boxed(
        keys: Vec<Key>,
        work: W,
    ) -> (Box<dyn Op>, oneshot::Receiver<Result<T, StoreError>>) {
        let (answer, reply) = oneshot::channel();
        (Box::new(Self { keys, work, result: None, answer, lost: 0 }), reply)
    }
}

impl<T, W> Op for Call<T, W>
where
    T: Tokens,
    W: FnMut(&mut Machine, u64) -> Result<T, StoreError> + Send + 'static,
{
    fn keys(&self) -> Vec<Key> {
        self.keys.clone()
    }

    fn run(&mut self, machine: &mut Machine, now_ms: u64) {
        self.result = Some((self.work)(machine, now_ms));
    }

    fn finish(self: Box<Self>, decided: Decided, _: &mut Waiters) -> Option<Withdraw> {
        let mut result = self.result?;
        if let Ok(value) = &mut result {
            value.lift(decided.lift);
        }
        // A caller that left learns the result by repeating.
        drop(self.answer.send(result));
        None
    }

    fn fail(self: Box<Self>, error: StoreError) {
        drop(self.answer.send(Err(error)));
    }

    fn lost(&mut self) -> u32 {
        self.lost += 1;
        self.lost
    }
}

/// An acquire of one lock or of several.
pub(super) struct Asking {
    waiting: Waiting,
    reply: Option<Reply<Vec<Grant>>>,
    lost: u32,
}

impl Asking {
    pub(super) fn boxed(waiting: Waiting) -> Box<dyn Op> {
        Box::new(Self { waiting, reply: None, lost: 0 })
    }
}

impl Op for Asking {
    fn keys(&self) -> Vec<Key> {
        let parts = &self.waiting.parts;
        let locks = parts.iter().map(|part| Key::Lock(part.lock.clone()));
        let session = parts.first().and_then(|part| part.session).map(Key::Session);
        locks.chain(session).collect()
    }

    fn run(&mut self, machine: &mut Machine, now_ms: u64) {
        let patience_ms = self.waiting.until_ms.saturating_sub(now_ms);
        let asked = |part: &Acquire| Acquire {
            // Asked again after a while: its patience is what is left of it.
            wait_ms: part.wait_ms.min(patience_ms),
            ..part.clone()
        };
        let mut parts = self.waiting.parts.iter().map(asked);
        self.reply = match (self.waiting.is_several, parts.next()) {
            (false, Some(request)) => Some(match machine.acquire(now_ms, request) {
                Reply::Done(result) => Reply::Done(result.map(|grant| vec![grant])),
                Reply::Queued => Reply::Queued,
            }),
            (_, first) => {
                let parts = first.into_iter().chain(parts).collect();
                Some(machine.acquire_all(now_ms, parts))
            }
        };
    }

    fn finish(self: Box<Self>, decided: Decided, waiters: &mut Waiters) -> Option<Withdraw> {
        let waiting = self.waiting;
        match self.reply? {
            Reply::Done(mut result) => {
                if let Ok(grants) = &mut result {
                    grants.lift(decided.lift);
                    waiting.add_waited(grants, decided.now_ms);
                }
                // Shared: the answer to a request that never waited is not withdrawn.
                let answered =
                    Answered { at_ms: decided.at_ms, result, is_shared: !waiting.waited };
                waiting.answer(answered)
            }
            Reply::Queued => waiters.insert(waiting),
        }
    }

    fn fail(self: Box<Self>, error: StoreError) {
        let answered = Answered { at_ms: 0, result: Err(error), is_shared: true };
        drop(self.waiting.answer(answered));
    }

    fn lost(&mut self) -> u32 {
        self.lost += 1;
        self.lost
    }
}

/// A request whose caller is gone: it leaves its queues, and what was granted to it is rolled back.
pub(super) struct Withdraw {
    locks: Vec<LockName>,
    lease_id: LeaseId,
    lost: u32,
}

impl Withdraw {
    pub(super) fn new(locks: Vec<LockName>, lease_id: LeaseId) -> Self {
        Self { locks, lease_id, lost: 0 }
    }
}

impl Op for Withdraw {
    fn keys(&self) -> Vec<Key> {
        self.locks.iter().cloned().map(Key::Lock).collect()
    }

    fn run(&mut self, machine: &mut Machine, now_ms: u64) {
        machine.withdraw_all(now_ms, &self.locks, self.lease_id);
    }

    fn finish(self: Box<Self>, _: Decided, _: &mut Waiters) -> Option<Withdraw> {
        None
    }

    fn fail(self: Box<Self>, error: StoreError) {
        tracing::debug!(lease_id = %self.lease_id, %error, "a withdrawal was not committed");
    }

    fn lost(&mut self) -> u32 {
        self.lost += 1;
        self.lost
    }
}
