//! A request to the rules: its records, its decision, its reply.
//!
//! A request is decided again whenever its commit loses a race, and gets one reply. A grant that is
//! committed waits for it while the engine confirms that it is safe.

use fence_protocol::{LeaseId, LockName, Token};
use lease::{Machine, Reply};
use tokio::sync::oneshot;

use super::decided::{Decided, Tokens};
use super::waiters::{Delivered, Waiters};
use super::waiting::{Answered, Unreceived, Waiting};
use crate::engines::contract::{Confirmed, Key};
use crate::store::{Acquire, Grant, StoreError};

/// Work that remains for a committed request.
pub(super) enum Remainder {
    /// Nothing: its callers have their reply.
    Nothing,
    /// It must be withdrawn, because no caller waits for its reply.
    Withdraw(Withdraw),
    /// The engine has to confirm its grant.
    Confirm(PendingGrant),
    /// It must be decided anew: its wait is not over.
    Ask(Waiting),
}

impl From<Option<Unreceived>> for Remainder {
    fn from(unreceived: Option<Unreceived>) -> Self {
        unreceived.map_or(Self::Nothing, |unreceived| Self::Withdraw(unreceived.into()))
    }
}

impl From<Delivered> for Remainder {
    fn from(delivered: Delivered) -> Self {
        match delivered {
            Delivered::Nothing => Self::Nothing,
            Delivered::Unreceived(unreceived) => Self::Withdraw(unreceived.into()),
            Delivered::Reply { waiting, answered, unconfirmed } => {
                reply(waiting, answered, unconfirmed)
            }
            Delivered::Ask(waiting) => Self::Ask(waiting),
        }
    }
}

/// Replies at once, or once the engine has confirmed the grants up to `unconfirmed`.
fn reply(waiting: Waiting, answered: Answered, unconfirmed: Option<Token>) -> Remainder {
    match unconfirmed.filter(|_| answered.result.is_ok()) {
        Some(token) => Remainder::Confirm(PendingGrant::grant(token, waiting, answered)),
        None => waiting.answer(answered).into(),
    }
}

/// A request.
pub(super) trait Op: Send {
    /// Returns the records that it concerns.
    fn keys(&self) -> Vec<Key>;

    /// Decides it, in place of an earlier decision.
    fn run(&mut self, machine: &mut Machine, now_ms: u64);

    /// Replies with the last decision, which is committed.
    fn finish(self: Box<Self>, decided: Decided, waiters: &mut Waiters) -> Remainder;

    /// Replies that it was not carried out, or that the outcome is unknown.
    fn fail(self: Box<Self>, error: StoreError);

    /// Returns whether it was in a queue before it was decided.
    fn has_waited(&self) -> bool {
        false
    }

    /// Returns it as a waiter that was not decided.
    fn into_waiting(self: Box<Self>) -> Option<Waiting> {
        None
    }

    /// Returns the entry that it may have in queues after this error, while no caller waits there.
    fn abandons(&self, _: &StoreError) -> Option<(Vec<LockName>, LeaseId)> {
        None
    }

    /// Counts a lost race, and returns the number so far.
    fn lost(&mut self) -> u32;

    /// Returns a request that may wait, as it stands at its first lock.
    fn asked(&self) -> Option<&Acquire> {
        None
    }

    /// Returns the first lock and the lease of a request that is withdrawn because its callers have
    /// left.
    fn withdrawn(&self) -> Option<(LockName, LeaseId)> {
        None
    }
}

/// Creates a request that decides nothing: if the record has changed, it is read.
pub(super) fn look_at(key: Key) -> (Box<dyn Op>, CallReply<()>) {
    Call::boxed(vec![key], |_, _| Ok(()))
}

/// The reply to a [`Call`].
pub(super) type CallReply<T> = oneshot::Receiver<Result<T, StoreError>>;

/// A request whose reply is one value.
pub(super) struct Call<T, W> {
    keys: Vec<Key>,
    work: W,
    /// The lease that has to be confirmed first.
    lease: Option<(LockName, LeaseId)>,
    unconfirmed: Option<Token>,
    result: Option<Result<T, StoreError>>,
    answer: oneshot::Sender<Result<T, StoreError>>,
    lost: u32,
}

impl<T, W> Call<T, W>
where
    T: Tokens,
    W: FnMut(&mut Machine, u64) -> Result<T, StoreError> + Send + 'static,
{
    pub(super) fn boxed(keys: Vec<Key>, work: W) -> (Box<dyn Op>, CallReply<T>) {
        Self::of_lease(keys, None, work)
    }

    /// Creates a request whose reply names a lease.
    pub(super) fn of_lease(
        keys: Vec<Key>,
        lease: Option<(LockName, LeaseId)>,
        work: W,
    ) -> (Box<dyn Op>, CallReply<T>) {
        let (answer, reply) = oneshot::channel();
        let call = Self { keys, work, lease, unconfirmed: None, result: None, answer, lost: 0 };
        (Box::new(call), reply)
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
        let lease = self.lease.as_ref();
        self.unconfirmed = lease.and_then(|(lock, lease_id)| {
            machine.unconfirmed(std::slice::from_ref(lock), *lease_id)
        });
        if self.unconfirmed.is_none() {
            self.result = Some((self.work)(machine, now_ms));
        }
    }

    fn finish(mut self: Box<Self>, decided: Decided, _: &mut Waiters) -> Remainder {
        if let Some(token) = self.unconfirmed {
            return Remainder::Confirm(PendingGrant::retry(token, self));
        }
        if let Some(mut result) = self.result.take() {
            result.lift(decided.lift);
            // A caller that left gets the result by a retry.
            drop(self.answer.send(result));
        }
        Remainder::Nothing
    }

    fn fail(self: Box<Self>, error: StoreError) {
        drop(self.answer.send(Err(error)));
    }

    fn lost(&mut self) -> u32 {
        self.lost += 1;
        self.lost
    }
}

/// Retries the acquire at its queue entry: the grant would be delivered.
pub(super) fn retry(waiting: &Waiting, now_ms: u64) -> Option<Box<dyn Op>> {
    let wait_ms = waiting.until_ms.saturating_sub(now_ms);
    let request = Acquire { wait_ms, ..waiting.parts.first()?.clone() };
    let session = request.session.map(Key::Session);
    let keys = std::iter::once(Key::Lock(request.lock.clone())).chain(session).collect();
    let work = move |machine: &mut Machine, now_ms| {
        drop(machine.acquire(now_ms, request.clone()));
        Ok(())
    };
    Some(Call::boxed(keys, work).0)
}

/// An acquire of one lock or of several.
pub(super) struct Asking {
    waiting: Waiting,
    reply: Option<Reply<Vec<Grant>>>,
    /// Token of a grant that is not confirmed yet.
    unconfirmed: Option<Token>,
    /// It was granted before: another caller may have got the reply, so nothing is withdrawn.
    is_held: bool,
    lost: u32,
}

impl Asking {
    pub(super) fn boxed(waiting: Waiting) -> Box<dyn Op> {
        Box::new(Self { waiting, reply: None, unconfirmed: None, is_held: false, lost: 0 })
    }

    /// Returns the grants that another server made for it while it waited. A retry would count as
    /// proof of receipt, after which they could not be withdrawn.
    fn delivered(&self, machine: &mut Machine, now_ms: u64) -> Option<Reply<Vec<Grant>>> {
        let lease_id = self.waiting.parts.first()?.lease_id;
        let grants = machine.delivered(now_ms, &self.waiting.locks(), lease_id)?;
        Some(Reply::Done(Ok(grants)))
    }

    fn unconfirmed(&self, machine: &Machine) -> Option<Token> {
        let lease_id = self.waiting.parts.first()?.lease_id;
        machine.unconfirmed(&self.waiting.locks(), lease_id)
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
        self.is_held = self.waiting.parts.first().is_some_and(|part| {
            let record = machine.record(&part.lock);
            record.is_some_and(|record| record.holders.get(part.lease_id).is_some())
        });
        self.reply = self.waiting.waited.then(|| self.delivered(machine, now_ms)).flatten();
        self.unconfirmed = machine.confirms().then(|| self.unconfirmed(machine)).flatten();
        if self.reply.is_some() || self.unconfirmed.is_some() {
            return;
        }
        let patience_ms = self.waiting.until_ms.saturating_sub(now_ms);
        let asked = |part: &Acquire| Acquire {
            // After a while its time-out is only what remains of it.
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

    fn finish(mut self: Box<Self>, decided: Decided, waiters: &mut Waiters) -> Remainder {
        let mut result = match (self.reply.take(), self.unconfirmed) {
            (Some(Reply::Done(result)), _) => result,
            (Some(Reply::Queued), _) => return waiters.insert(self.waiting).into(),
            (None, Some(token)) => return Remainder::Confirm(PendingGrant::retry(token, self)),
            (None, None) => return Remainder::Nothing,
        };
        let waiting = self.waiting;
        let mut unconfirmed = self.unconfirmed;
        if let Ok(grants) = &mut result {
            unconfirmed = unconfirmed.max(decided.to_confirm(grants));
            waiting.add_waited(grants, decided.now_ms);
        }
        result.lift(decided.lift);
        // Shared: the reply to a request that never waited is not withdrawn.
        let answered = Answered { at_ms: decided.at_ms, result, is_shared: !waiting.waited };
        reply(waiting, answered, unconfirmed)
    }

    fn fail(self: Box<Self>, error: StoreError) {
        self.waiting.refuse(error);
    }

    fn has_waited(&self) -> bool {
        self.waiting.waited
    }

    fn into_waiting(self: Box<Self>) -> Option<Waiting> {
        Some(self.waiting)
    }

    fn asked(&self) -> Option<&Acquire> {
        self.waiting.parts.first()
    }

    fn abandons(&self, error: &StoreError) -> Option<(Vec<LockName>, LeaseId)> {
        let first = self.waiting.parts.first()?;
        let may_wait = first.wait_ms > 0 && matches!(error, StoreError::Unknown(_));
        (may_wait && !self.is_held).then(|| (self.waiting.locks(), first.lease_id))
    }

    fn lost(&mut self) -> u32 {
        self.lost += 1;
        self.lost
    }
}

/// A reply that waits for the confirmation of a grant.
pub(super) struct PendingGrant {
    /// Highest of the tokens.
    token: Token,
    reply: Held,
}

enum Held {
    /// A grant of this server, which is acknowledged or rolled back.
    Grant(Waiting, Answered),
    /// A renewal or a retry, which is decided once the grant is confirmed.
    Retry(Box<dyn Op>),
}

impl PendingGrant {
    pub(super) fn grant(token: Token, waiting: Waiting, answered: Answered) -> Self {
        Self { token, reply: Held::Grant(waiting, answered) }
    }

    pub(super) fn retry(token: Token, op: Box<dyn Op>) -> Self {
        Self { token, reply: Held::Retry(op) }
    }

    /// Acknowledges the grant, or refuses the request. Returns what is to be decided next.
    pub(super) fn settle(self, confirmed: &Confirmed) -> Option<Box<dyn Op>> {
        let is_confirmed = self.token.get() <= confirmed.token;
        let shortfall = confirmed.shortfall.clone().filter(|_| !is_confirmed);
        match (self.reply, shortfall) {
            (Held::Grant(waiting, answered), None) => {
                waiting.answer(answered).map(|unreceived| boxed(unreceived.into()))
            }
            (Held::Grant(waiting, _), Some(shortfall)) => {
                Withdraw::unconfirmed(waiting, shortfall).map(boxed)
            }
            (Held::Retry(op), None) => Some(op),
            (Held::Retry(op), Some(shortfall)) => {
                op.fail(StoreError::Unknown(format!("{shortfall}; retry with the same id")));
                None
            }
        }
    }
}

fn boxed(withdraw: Withdraw) -> Box<dyn Op> {
    Box::new(withdraw)
}

/// A request whose caller has left, or whose grant was not confirmed: it leaves its queues, and its
/// grants are rolled back.
pub(super) struct Withdraw {
    locks: Vec<LockName>,
    lease_id: LeaseId,
    unacknowledged: Option<Unacknowledged>,
    is_rolled_back: bool,
    lost: u32,
}

/// A grant that was not confirmed, and whose callers wait for the outcome of its roll-back.
struct Unacknowledged {
    waiting: Waiting,
    shortfall: String,
}

impl From<Unreceived> for Withdraw {
    fn from(Unreceived { locks, lease_id }: Unreceived) -> Self {
        Self::new(locks, lease_id)
    }
}

impl Withdraw {
    pub(super) fn new(locks: Vec<LockName>, lease_id: LeaseId) -> Self {
        Self { locks, lease_id, unacknowledged: None, is_rolled_back: false, lost: 0 }
    }

    /// Rolls back a grant that was not confirmed; its callers get the outcome.
    pub(super) fn unconfirmed(waiting: Waiting, shortfall: String) -> Option<Self> {
        let lease_id = waiting.parts.first()?.lease_id;
        let withdraw = Self::new(waiting.locks(), lease_id);
        let unacknowledged = Some(Unacknowledged { waiting, shortfall });
        Some(Self { unacknowledged, ..withdraw })
    }
}

impl Op for Withdraw {
    fn keys(&self) -> Vec<Key> {
        self.locks.iter().cloned().map(Key::Lock).collect()
    }

    fn run(&mut self, machine: &mut Machine, now_ms: u64) {
        let locks = &self.locks;
        let lease_id = self.lease_id;
        match &self.unacknowledged {
            None => machine.withdraw_all(now_ms, locks, lease_id),
            Some(_) => self.is_rolled_back = machine.roll_back(now_ms, locks, lease_id),
        }
    }

    fn finish(self: Box<Self>, _: Decided, _: &mut Waiters) -> Remainder {
        if let Some(Unacknowledged { waiting, shortfall }) = self.unacknowledged {
            waiting.refuse(if self.is_rolled_back {
                StoreError::Unavailable(format!("{shortfall}; it was rolled back, try again"))
            } else {
                StoreError::Unknown(format!(
                    "{shortfall}; it lives, because it was requested before: retry with the \
                     same id"
                ))
            });
        }
        Remainder::Nothing
    }

    fn fail(self: Box<Self>, error: StoreError) {
        tracing::debug!(lease_id = %self.lease_id, %error, "a withdrawal was not committed yet");
        if let Some(Unacknowledged { waiting, shortfall }) = self.unacknowledged {
            let text = format!("{shortfall}; taking it back failed: {error}");
            waiting.refuse(StoreError::Unknown(text));
        }
    }

    fn withdrawn(&self) -> Option<(LockName, LeaseId)> {
        let lock = self.locks.first().filter(|_| self.unacknowledged.is_none())?;
        Some((lock.clone(), self.lease_id))
    }

    fn abandons(&self, _: &StoreError) -> Option<(Vec<LockName>, LeaseId)> {
        self.unacknowledged.is_none().then(|| (self.locks.clone(), self.lease_id))
    }

    fn lost(&mut self) -> u32 {
        self.lost += 1;
        self.lost
    }
}
