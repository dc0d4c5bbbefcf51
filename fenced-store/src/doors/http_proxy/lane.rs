//! The drain lane of one lock: events in, actions out, no I/O and no clock.
//!
//! An opaque upstream cannot compare tokens, so the guard waits until nothing lower can take effect
//! before it forwards or replies to anything higher:
//!
//! - A token above the mark first makes the mark durable. From then on everything lower is refused,
//!   also operations that were admitted and not yet forwarded.
//! - It is forwarded once no lower operation is at the upstream. An operation that ended without a
//!   reply has an *unknown outcome*: it may still take effect. The lane is then quarantined until
//!   the upstream's maximum request lifetime has passed.
//! - A write is forwarded only after its intent is durable. After a restart every unresolved intent
//!   has an unknown outcome.
//!
//! In quarantine the holder of the token with the unknown outcome may read and seal, not write: its
//! next write could be overtaken by the earlier one, so that the newer value is lost. Tokens
//! compare equal, so the fence alone would not prevent it. Reads are forwarded in turn like writes,
//! but need no intent and never quarantine a lane: they change nothing.

use std::collections::{BTreeMap, VecDeque};

use fence_protocol::Token;

use crate::verdict::{Mark, Verdict, judge};

/// Number of one operation; unique in the state folder's life.
pub type OpId = u64;

/// Effect of an operation at the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// May change something.
    Write,
    /// A safe method.
    Read,
    /// Never forwarded: raises the mark and awaits the drain.
    Seal,
}

/// Input of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An operation arrives, to be forwarded.
    Arrive {
        /// Number of the operation.
        op: OpId,
        /// Its token and lease.
        presented: Mark,
        /// Its effect.
        kind: Kind,
        /// Time at which it times out.
        patience_until_ms: u64,
    },
    /// The content of an [`Action::Persist`] is durable.
    Persisted {
        /// Raised mark, if any.
        mark: Option<Mark>,
        /// Operation whose intent it is, if any.
        intent: Option<OpId>,
    },
    /// A forwarded operation has its reply, or was certainly never sent.
    Ended {
        /// The operation.
        op: OpId,
    },
    /// A forwarded write has no reply: it may take effect until `until_ms`.
    Unanswered {
        /// The operation.
        op: OpId,
        /// Time at which it can no longer take effect.
        until_ms: u64,
    },
    /// A waiting operation times out, or its client disconnected.
    Abandoned {
        /// The operation.
        op: OpId,
    },
    /// Time has passed.
    Tick {
        /// Time now.
        now_ms: u64,
    },
}

/// Output of a lane, to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make both durable in one step, then send [`Event::Persisted`].
    Persist {
        /// Raised mark, if any.
        mark: Option<Mark>,
        /// The intent to forward this write.
        intent: Option<OpId>,
    },
    /// Forward the operation (reply, if it is a seal).
    Go {
        /// The operation.
        op: OpId,
    },
    /// Reply with a refusal; the operation was not forwarded.
    Refuse {
        /// The operation.
        op: OpId,
        /// The reason.
        why: Why,
    },
    /// The intent is resolved and can be removed.
    Forget {
        /// The operation.
        op: OpId,
    },
}

/// Reason why an operation was not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its token is below the mark.
    Stale {
        /// Mark that refused it.
        mark: Mark,
    },
    /// Another lease owns this very token.
    Collision {
        /// Mark that refused it.
        mark: Mark,
    },
    /// Lower operations are still at the upstream.
    Draining,
    /// An operation with an unknown outcome may still take effect.
    Quarantined {
        /// Time at which it no longer can.
        until_ms: u64,
    },
    /// Too many operations wait.
    Full,
}

/// Maximum number of waiting operations of one lock.
pub const MAX_WAITING: usize = 1024;

/// The lane of one lock.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// The durable mark.
    mark: Option<Mark>,
    /// A mark being made durable; nothing else is decided meanwhile.
    persisting: Option<Mark>,
    /// Admitted: the intent is being written, or the operation is at the upstream.
    active: BTreeMap<OpId, Active>,
    unanswered: Option<Unanswered>,
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Copy, Debug)]
struct Active {
    presented: Mark,
    kind: Kind,
}

#[derive(Clone, Debug)]
struct Unanswered {
    /// Lowest token with an unknown outcome.
    token: Token,
    until_ms: u64,
    ops: Vec<OpId>,
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

    /// Makes a lane after a restart, from its durable mark and the unresolved intents.
    pub fn restore(mark: Option<Mark>, intents: &[(OpId, Token)], until_ms: u64) -> Self {
        let lowest = intents.iter().map(|(_, token)| *token).min();
        let ops = intents.iter().map(|(op, _)| *op).collect();
        let unanswered = lowest.map(|token| Unanswered { token, until_ms, ops });
        Self { mark, unanswered, ..Self::default() }
    }

    /// Returns the durable mark.
    pub fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// Returns `true` while the lane waits for an operation with an unknown outcome.
    pub fn is_quarantined(&self) -> bool {
        self.unanswered.is_some()
    }

    /// Returns `true` if the lane can be dropped and made again from the durable mark.
    pub fn is_idle(&self) -> bool {
        self.persisting.is_none()
            && self.active.is_empty()
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
            }
            Event::Persisted { mark, intent } => self.persisted(mark, intent, actions),
            Event::Ended { op } => {
                if self.active.remove(&op).is_some_and(|active| active.kind == Kind::Write) {
                    actions.push(Action::Forget { op });
                }
            }
            Event::Unanswered { op, until_ms } => self.unanswered(op, until_ms),
            Event::Abandoned { op } => self.abandoned(op, actions),
            Event::Tick { now_ms } => {
                if let Some(unanswered) =
                    self.unanswered.take_if(|unanswered| unanswered.until_ms <= now_ms)
                {
                    actions.extend(unanswered.ops.into_iter().map(|op| Action::Forget { op }));
                }
            }
        }
        self.pump(actions);
    }

    fn persisted(&mut self, mark: Option<Mark>, intent: Option<OpId>, actions: &mut Vec<Action>) {
        if let Some(mark) = mark {
            self.mark = Some(mark);
            self.persisting = None;
        }
        let Some((op, active)) = intent.and_then(|op| Some((op, *self.active.get(&op)?))) else {
            return;
        };
        match judge(self.mark, active.presented) {
            Verdict::Admit => actions.push(Action::Go { op }),
            // The mark rose while the intent was being written: it must no longer be forwarded.
            Verdict::Stale { mark } => self.withdraw(op, Why::Stale { mark }, actions),
            Verdict::Collision { mark } => self.withdraw(op, Why::Collision { mark }, actions),
            Verdict::Raise => debug_assert!(false, "an intent above the durable mark"),
        }
    }

    /// Refuses an operation whose intent is durable.
    fn withdraw(&mut self, op: OpId, why: Why, actions: &mut Vec<Action>) {
        self.active.remove(&op);
        actions.push(Action::Refuse { op, why });
        actions.push(Action::Forget { op });
    }

    fn unanswered(&mut self, op: OpId, until_ms: u64) {
        let Some(active) = self.active.remove(&op) else { return };
        let token = active.presented.token;
        let unanswered =
            self.unanswered.get_or_insert(Unanswered { token, until_ms, ops: Vec::new() });
        unanswered.token = unanswered.token.min(token);
        unanswered.until_ms = unanswered.until_ms.max(until_ms);
        unanswered.ops.push(op);
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

    /// Admits every waiting operation that may go. Those behind one that has to wait are checked
    /// too: they may be stale, or raise the mark.
    fn pump(&mut self, actions: &mut Vec<Action>) {
        let mut at = 0;
        while self.persisting.is_none()
            && let Some(waiting) = self.waiting.get(at).copied()
        {
            let op = waiting.op;
            let refuse = match judge(self.mark, waiting.presented) {
                Verdict::Raise => {
                    self.raise(at, waiting, actions);
                    continue;
                }
                Verdict::Stale { mark } => Why::Stale { mark },
                Verdict::Collision { mark } => Why::Collision { mark },
                Verdict::Admit => match self.gate(&waiting) {
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
            actions.push(Action::Refuse { op, why: refuse });
        }
    }

    /// Makes the mark durable; a write that need not wait has its intent written with it.
    fn raise(&mut self, at: usize, waiting: Waiting, actions: &mut Vec<Action>) {
        let mark = waiting.presented;
        self.persisting = Some(mark);
        let is_clear = self.active.is_empty() && self.unanswered.is_none();
        let intent = (is_clear && waiting.kind == Kind::Write).then_some(waiting.op);
        if let Some(op) = intent {
            self.waiting.remove(at);
            self.active.insert(op, Active { presented: mark, kind: Kind::Write });
        }
        actions.push(Action::Persist { mark: Some(mark), intent });
    }

    fn gate(&self, waiting: &Waiting) -> Gate {
        let token = waiting.presented.token;
        if self.active.values().any(|active| active.presented.token < token) {
            return Gate::Wait;
        }
        match &self.unanswered {
            None => Gate::Open,
            Some(unanswered) if unanswered.token == token && waiting.kind != Kind::Write => {
                Gate::Open
            }
            Some(unanswered) if unanswered.until_ms > waiting.patience_until_ms => {
                Gate::Quarantined { until_ms: unanswered.until_ms }
            }
            Some(_) => Gate::Wait,
        }
    }

    fn admit(&mut self, waiting: Waiting, actions: &mut Vec<Action>) {
        let Waiting { op, presented, kind, .. } = waiting;
        if kind != Kind::Seal {
            self.active.insert(op, Active { presented, kind });
        }
        actions.push(match kind {
            Kind::Write => Action::Persist { mark: None, intent: Some(op) },
            Kind::Read | Kind::Seal => Action::Go { op },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::mark;

    /// The mark passed to another lease while the intent was being written.
    #[test]
    fn a_collision_with_a_durable_intent_is_no_stale_token() {
        for (raised, why) in [
            (mark(5, 2), Why::Collision { mark: mark(5, 2) }),
            (mark(6, 2), Why::Stale { mark: mark(6, 2) }),
        ] {
            let mut lane = Lane::new(Some(mark(5, 1)));
            let mut actions = Vec::new();
            let presented = mark(5, 1);
            let kind = Kind::Write;
            lane.handle(
                Event::Arrive { op: 1, presented, kind, patience_until_ms: 1_000 },
                &mut actions,
            );
            assert_eq!(actions, [Action::Persist { mark: None, intent: Some(1) }]);
            actions.clear();
            lane.handle(Event::Persisted { mark: Some(raised), intent: Some(1) }, &mut actions);
            assert_eq!(actions, [Action::Refuse { op: 1, why }, Action::Forget { op: 1 }]);
        }
    }
}
