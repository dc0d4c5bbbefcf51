//! The drain lane of one lock: events in, actions out, no I/O and no clock.
//!
//! An opaque upstream cannot compare tokens, so the guard waits until nothing lower can take effect
//! before it forwards or replies to anything higher:
//!
//! - A token above the mark first makes the mark durable. From then on everything lower is refused.
//! - It is forwarded once no lower operation is at the upstream. A write that ended without a reply
//!   has an *unknown outcome*: it may still take effect. The lane is then quarantined until the
//!   upstream's maximum request lifetime has passed.
//! - A write is forwarded only while the lane is durably *open* under its token or a lower one. The
//!   first write of a token opens the lane, and an interval of rest closes it, so that writes
//!   between them cost no disk. After a restart every open lane has an unknown outcome.
//!
//! In quarantine the holder of the token with the unknown outcome may read and seal, not write: its
//! next write could be overtaken by the earlier one, so that the newer value is lost. Tokens
//! compare equal, so the fence alone would not prevent it. Reads are forwarded in turn like writes,
//! but neither open nor quarantine a lane: they change nothing.
//!
//! Where the upstream checks versions, writes can be *conditional* (`conditions` says why that is
//! safe). While all writes with an unknown outcome are, a conditional PUT need not wait for them;
//! a DELETE must, because a creation with an unknown outcome could take effect after it. Whether an
//! open lane has conditional writes alone is durable, like its token.

mod events;

use std::collections::VecDeque;

use fence_protocol::wire::lane::{LaneLine, Quarantine, QuarantineCause};
use fence_protocol::{LockName, Token};

pub use self::events::{Action, Event, Kind, OpId, Why};
use crate::stores::lanes::Opening;
use crate::verdict::{Mark, Verdict, judge};

/// Maximum number of waiting operations of one lock.
pub const MAX_WAITING: usize = 1024;

/// The lane of one lock.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// The mark. While it is being made durable nothing is decided.
    mark: Option<Mark>,
    mark_seq: u64,
    /// Writes that may be at the upstream. They may once `open_seq` is durable.
    open: Option<Opening>,
    open_seq: u64,
    /// Numbers of the last [`Action::Persist`], and of the last one that is durable.
    emitted_seq: u64,
    durable_seq: u64,
    /// Operations at the upstream. They have one token: a higher one waits for their end, and
    /// lower ones are refused.
    active: Option<Active>,
    unanswered: Option<Unanswered>,
    waiting: VecDeque<Waiting>,
    /// No write since the last [`Event::Rest`].
    has_rested: bool,
}

#[derive(Clone, Copy, Debug)]
struct Active {
    token: Token,
    writes: u32,
    reads: u32,
}

/// Operations with an unknown outcome.
#[derive(Clone, Copy, Debug)]
pub struct Unanswered {
    /// Lowest token with an unknown outcome.
    pub token: Token,
    /// Time at which they can no longer take effect.
    pub until_ms: u64,
    /// Cause of the last one.
    pub cause: QuarantineCause,
    /// Their number; those of an earlier process count as one.
    pub unknown_outcomes: u32,
    /// Time until which another guard may send more of them, so that no operator can know the end.
    pub unresolvable_until_ms: u64,
    /// All of them are conditional writes.
    is_conditional: bool,
}

/// Writes of a lane that was found open, which it waits for.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    /// Reason why it was open.
    pub cause: QuarantineCause,
    /// Time at which its writes can no longer take effect.
    pub until_ms: u64,
    /// Time until which the guard that opened it may send writes; 0 if it has ended.
    pub unresolvable_until_ms: u64,
}

impl Inherited {
    /// Inherits from an earlier process.
    pub fn of_restart(until_ms: u64) -> Self {
        Self { cause: QuarantineCause::Restart, until_ms, unresolvable_until_ms: 0 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    op: OpId,
    presented: Mark,
    kind: Kind,
    patience_until_ms: u64,
}

enum Gate {
    Open,
    Wait,
    Quarantined { until_ms: u64 },
}

impl Lane {
    /// Makes a lane from its durable mark.
    pub fn new(mark: Option<Mark>) -> Self {
        Self { mark, ..Self::default() }
    }

    /// Makes a lane after a restart or a take-over, from its durable mark and how it was open.
    pub fn restore(mark: Option<Mark>, open: Opening, inherited: Inherited) -> Self {
        let Opening { token, is_conditional } = open;
        let Inherited { cause, until_ms, unresolvable_until_ms } = inherited;
        let unanswered = Unanswered {
            token,
            until_ms,
            cause,
            unknown_outcomes: 1,
            unresolvable_until_ms,
            is_conditional,
        };
        Self { mark, open: Some(open), unanswered: Some(unanswered), ..Self::default() }
    }

    /// Returns the operations with an unknown outcome, while the lane waits for them.
    pub fn quarantine(&self) -> Option<Unanswered> {
        self.unanswered
    }

    /// Returns `true` while a higher token waits for the end of operations at the upstream.
    pub fn is_draining(&self) -> bool {
        let mark = self.mark.map(|mark| mark.token);
        self.active.is_some_and(|active| Some(active.token) < mark)
    }

    /// Returns a summary for operators, with their view of the [`quarantine`](Self::quarantine).
    pub fn line(&self, lock: LockName, quarantine: Option<Quarantine>) -> LaneLine {
        let (writes, reads) = self.active.map_or((0, 0), |active| (active.writes, active.reads));
        LaneLine {
            lock,
            mark: self.mark.map(|mark| mark.token),
            open_token: self.open.map(|open| open.token),
            writes_in_flight: writes,
            reads_in_flight: reads,
            waiting: self.waiting.len(),
            quarantine,
        }
    }

    /// Returns `true` while a restart may find the lane open.
    pub fn is_open(&self) -> bool {
        self.open.is_some() || self.durable_seq < self.emitted_seq
    }

    /// Returns `true` if the lane can be dropped and made again from the durable mark.
    pub fn is_idle(&self) -> bool {
        !self.is_open()
            && self.active.is_none()
            && self.unanswered.is_none()
            && self.waiting.is_empty()
    }

    /// Handles an event; appends the resulting actions in order.
    pub fn handle(&mut self, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Arrive { op, presented, kind, patience_until_ms } => {
                if self.waiting.len() == MAX_WAITING {
                    return actions.push(Action::Refuse { op, why: Why::Full });
                }
                self.waiting.push_back(Waiting { op, presented, kind, patience_until_ms });
                // Those before it wait for something else.
                return self.pump(self.waiting.len() - 1, actions);
            }
            Event::Persisted { seq } => self.durable_seq = self.durable_seq.max(seq),
            Event::Ended { kind } => {
                self.ended(kind);
                if self.active.is_some() {
                    return;
                }
            }
            Event::Unanswered { kind, until_ms } => self.unanswered(kind, until_ms, actions),
            Event::Resolved => self.unanswered = None,
            Event::Extended { until_ms } => {
                if let Some(unanswered) = &mut self.unanswered {
                    unanswered.until_ms = until_ms.max(unanswered.until_ms);
                }
            }
            Event::Abandoned { op } => return self.abandoned(op, actions),
            Event::Tick { now_ms } => {
                self.unanswered.take_if(|unanswered| unanswered.until_ms <= now_ms);
            }
            Event::Rest => return self.rest(actions),
            Event::Close => return self.close(actions),
        }
        self.pump(0, actions);
    }

    fn ended(&mut self, kind: Kind) {
        let Some(active) = &mut self.active else { return };
        match kind {
            Kind::Seal => {}
            Kind::Read => active.reads = active.reads.saturating_sub(1),
            Kind::Write | Kind::ConditionalPut | Kind::ConditionalDelete => {
                active.writes = active.writes.saturating_sub(1);
                self.has_rested = false;
            }
        }
        if active.writes == 0 && active.reads == 0 {
            self.active = None;
        }
    }

    fn unanswered(&mut self, kind: Kind, until_ms: u64, actions: &mut Vec<Action>) {
        let Some(Active { token, .. }) = self.active else { return };
        let is_conditional = kind.is_conditional();
        let cause = QuarantineCause::NoReply;
        let unanswered = self.unanswered.get_or_insert(Unanswered {
            token,
            until_ms,
            cause,
            unknown_outcomes: 0,
            unresolvable_until_ms: 0,
            is_conditional,
        });
        unanswered.token = unanswered.token.min(token);
        unanswered.is_conditional &= is_conditional;
        unanswered.cause = cause;
        unanswered.unknown_outcomes += 1;
        unanswered.until_ms = unanswered.until_ms.max(until_ms);
        self.ended(kind);
        // A restart must not take it for conditional either.
        self.open_for(token, is_conditional, actions);
    }

    fn abandoned(&mut self, op: OpId, actions: &mut Vec<Action>) {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.op == op) else { return };
        self.waiting.remove(at);
        let why = match &self.unanswered {
            Some(unanswered) => Why::Quarantined { until_ms: unanswered.until_ms },
            None => Why::Draining,
        };
        actions.push(Action::Refuse { op, why });
    }

    /// Closes a lane that has rested, and forgets a token whose last write has ended.
    fn rest(&mut self, actions: &mut Vec<Action>) {
        if std::mem::replace(&mut self.has_rested, true) {
            return self.close(actions);
        }
        let Some(lowest) = self.lowest_out() else { return };
        if let Some(open) = self.open.filter(|open| open.token < lowest && self.is_open_durable()) {
            self.open = Some(Opening { token: lowest, ..open });
            self.persist(None, actions);
        }
    }

    /// Closes the lane unless a write is out or waits for the opening.
    fn close(&mut self, actions: &mut Vec<Action>) {
        if self.open.is_some() && self.is_open_durable() && self.lowest_out().is_none() {
            self.open = None;
            self.persist(None, actions);
        }
    }

    /// Admits every waiting operation that may go, from position `at` on. Those behind one that has
    /// to wait are checked too: they may be stale, or raise the mark.
    fn pump(&mut self, mut at: usize, actions: &mut Vec<Action>) {
        while self.is_mark_durable()
            && let Some(waiting) = self.waiting.get(at).copied()
        {
            let why = match judge(self.mark, waiting.presented) {
                Verdict::Raise => return self.raise(waiting, actions),
                Verdict::Stale { mark } => Why::Stale { mark },
                Verdict::Collision { mark } => Why::Collision { mark },
                Verdict::Admit => match self.gate(&waiting, actions) {
                    Gate::Wait => {
                        at += 1;
                        continue;
                    }
                    Gate::Quarantined { until_ms } => Why::Quarantined { until_ms },
                    Gate::Open => {
                        self.waiting.remove(at);
                        self.admit(waiting, actions);
                        continue;
                    }
                },
            };
            self.waiting.remove(at);
            actions.push(Action::Refuse { op: waiting.op, why });
        }
    }

    /// Makes the mark durable. The same step opens the lane for a write that need not wait, and
    /// closes it behind lower ones that have ended.
    fn raise(&mut self, waiting: Waiting, actions: &mut Vec<Action>) {
        let mark = waiting.presented;
        self.mark = Some(mark);
        if self.lowest_out().is_none() {
            let is_conditional = waiting.kind.is_conditional();
            let open = Opening { token: mark.token, is_conditional };
            self.open = waiting.kind.is_write().then_some(open);
            self.open_seq = self.emitted_seq + 1;
        }
        self.persist(Some(mark), actions);
        self.mark_seq = self.emitted_seq;
    }

    fn gate(&mut self, waiting: &Waiting, actions: &mut Vec<Action>) -> Gate {
        let token = waiting.presented.token;
        if self.active.is_some_and(|active| active.token < token) {
            return Gate::Wait;
        }
        let is_write = waiting.kind.is_write();
        match &self.unanswered {
            None => {}
            Some(unanswered) if unanswered.token == token && !is_write => {}
            Some(unanswered)
                if unanswered.is_conditional && waiting.kind == Kind::ConditionalPut => {}
            Some(unanswered) if unanswered.until_ms > waiting.patience_until_ms => {
                return Gate::Quarantined { until_ms: unanswered.until_ms };
            }
            Some(_) => return Gate::Wait,
        }
        if !is_write {
            return Gate::Open;
        }
        self.open_for(token, waiting.kind.is_conditional(), actions);
        if self.is_open_durable() { Gate::Open } else { Gate::Wait }
    }

    /// Opens the lane for a write, unless it is open for writes of its form.
    fn open_for(&mut self, token: Token, is_conditional: bool, actions: &mut Vec<Action>) {
        let is_open = |open: Opening| is_conditional || !open.is_conditional;
        if self.open.is_some_and(is_open) {
            return;
        }
        let token = self.open.map_or(token, |open| open.token);
        self.open = Some(Opening { token, is_conditional });
        self.open_seq = self.emitted_seq + 1;
        self.persist(None, actions);
    }

    fn admit(&mut self, waiting: Waiting, actions: &mut Vec<Action>) {
        let Waiting { op, presented, kind, .. } = waiting;
        let token = presented.token;
        if kind != Kind::Seal {
            let active = self.active.get_or_insert(Active { token, writes: 0, reads: 0 });
            debug_assert_eq!(active.token, token, "operations of two tokens at the upstream");
            if kind.is_write() {
                active.writes += 1;
            } else {
                active.reads += 1;
            }
        }
        self.has_rested &= !kind.is_write();
        actions.push(Action::Go { op });
    }

    fn persist(&mut self, mark: Option<Mark>, actions: &mut Vec<Action>) {
        self.emitted_seq += 1;
        actions.push(Action::Persist { seq: self.emitted_seq, mark, open: self.open });
    }

    fn is_mark_durable(&self) -> bool {
        self.durable_seq >= self.mark_seq
    }

    fn is_open_durable(&self) -> bool {
        self.durable_seq >= self.open_seq
    }

    /// Lowest token of the writes that may still take effect.
    fn lowest_out(&self) -> Option<Token> {
        let active = self.active.filter(|active| active.writes > 0).map(|active| active.token);
        let unanswered = self.unanswered.map(|unanswered| unanswered.token);
        active.into_iter().chain(unanswered).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::mark;

    /// The upstream showed that it may take effect on any version: a restart must not let a PUT
    /// pass it.
    #[test]
    fn a_write_that_lost_its_condition_is_durably_a_plain_one() {
        let mut lane = Lane::new(Some(mark(5, 1)));
        let mut actions = Vec::new();
        let kind = Kind::ConditionalPut;
        let presented = mark(5, 1);
        lane.handle(Event::Arrive { op: 1, presented, kind, patience_until_ms: 9 }, &mut actions);
        lane.handle(Event::Persisted { seq: 1 }, &mut actions);
        actions.clear();
        let unanswered = |kind| Event::Unanswered { kind, until_ms: 1_000 };
        let mut conditional = lane.clone();
        conditional.handle(unanswered(kind), &mut actions);
        assert_eq!(actions, []);
        lane.handle(unanswered(Kind::Write), &mut actions);
        let open = Some(Opening { token: presented.token, is_conditional: false });
        assert_eq!(actions, [Action::Persist { seq: 2, mark: None, open }]);
    }

    #[test]
    fn a_collision_is_no_stale_token() {
        let mut lane = Lane::new(Some(mark(5, 1)));
        let mut feed = |event| {
            let mut actions = Vec::new();
            lane.handle(event, &mut actions);
            actions
        };
        let arrive = |op, presented| {
            let kind = Kind::Write;
            Event::Arrive { op, presented, kind, patience_until_ms: 1_000 }
        };
        let open = |token| Some(Opening { token: Token::new(token).ok()?, is_conditional: false });
        let opened = open(5);
        assert_eq!(
            feed(arrive(1, mark(5, 1))),
            [Action::Persist { seq: 1, mark: None, open: opened }]
        );
        // The same while the opening is on its way to the disk.
        let collision = Why::Collision { mark: mark(5, 1) };
        assert_eq!(feed(arrive(2, mark(5, 2))), [Action::Refuse { op: 2, why: collision }]);
        let raised = Some(mark(6, 2));
        let opened = Action::Persist { seq: 2, mark: raised, open: open(6) };
        assert_eq!(feed(arrive(3, mark(6, 2))), [opened]);
        let stale = Why::Stale { mark: mark(6, 2) };
        assert_eq!(
            feed(Event::Persisted { seq: 2 }),
            [Action::Refuse { op: 1, why: stale }, Action::Go { op: 3 }]
        );
    }
}
