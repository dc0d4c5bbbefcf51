//! The drain lane of one lock: events in, actions out, no I/O and no clock.
//!
//! An opaque upstream cannot compare tokens, so the guard has to make sure by waiting that nothing
//! lower can take effect once something higher was forwarded or answered:
//!
//! - A token above the mark first makes the mark durable. From then on everything lower is refused,
//!   also what was admitted and not yet forwarded.
//! - It is forwarded once no lower operation is at the upstream. One that ended without an answer is
//!   *in doubt*: it may still take effect. The lane is then quarantined until the upstream's maximum
//!   request lifetime has passed.
//! - A write is forwarded only after its intent is durable. After a restart every intent that was
//!   not resolved is in doubt.
//!
//! In quarantine the holder of the very token that is in doubt may read and seal, nothing more: a
//! further write of its own could be overtaken by the one in doubt, and a newer value be lost to an
//! older one. Tokens compare equal, so the fence alone would not prevent it. Reads are forwarded in
//! turn like writes, but need no intent and are never in doubt: they change nothing.

use std::collections::{BTreeMap, VecDeque};

use fence_protocol::Token;

use crate::verdict::{Mark, Verdict, judge};

/// Names one operation; unique in the state folder's life.
pub type OpId = u64;

/// What an operation does at the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anything that may change something.
    Write,
    /// A safe method.
    Read,
    /// Nothing: it only raises the mark and awaits the drain.
    Seal,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An operation asks to be forwarded.
    Arrive {
        /// Its name.
        op: OpId,
        /// Its token and lease.
        presented: Mark,
        /// What it does.
        kind: Kind,
        /// Until when it is willing to wait.
        patience_until_ms: u64,
    },
    /// What [`Action::Persist`] asked for is durable.
    Persisted {
        /// The mark.
        mark: Option<Mark>,
        /// The intent.
        intent: Option<OpId>,
    },
    /// A forwarded operation has its answer, or was certainly never sent.
    Ended {
        /// Which.
        op: OpId,
    },
    /// A forwarded write has no answer: it may take effect until then.
    Doubtful {
        /// Which.
        op: OpId,
        /// When it can no longer take effect.
        until_ms: u64,
    },
    /// An operation that was still waiting gives up.
    GaveUp {
        /// Which.
        op: OpId,
    },
    /// Time has passed.
    Tick {
        /// To this.
        now_ms: u64,
    },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make both durable in one step, then say [`Event::Persisted`].
    Persist {
        /// The mark.
        mark: Option<Mark>,
        /// The intent to forward this write.
        intent: Option<OpId>,
    },
    /// Forward the operation (answer it, where it is a seal).
    Go {
        /// Which.
        op: OpId,
    },
    /// Answer the operation; it was not forwarded.
    Refuse {
        /// Which.
        op: OpId,
        /// Why.
        why: Why,
    },
    /// The intent is resolved: it need not be remembered.
    Forget {
        /// Which.
        op: OpId,
    },
}

/// Why an operation was not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its token is below the mark.
    Stale {
        /// What it met.
        mark: Mark,
    },
    /// Another lease owns this very token.
    Collision {
        /// What it met.
        mark: Mark,
    },
    /// Lower operations are still at the upstream.
    Draining,
    /// An operation in doubt may still take effect.
    Quarantined {
        /// Until then.
        until_ms: u64,
    },
    /// Too many are waiting.
    Full,
}

/// At most this many operations of one lock wait.
pub const MAX_WAITING: usize = 1024;

/// The lane of one lock.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// Durable.
    mark: Option<Mark>,
    /// On its way to being durable; nothing else is decided meanwhile.
    persisting: Option<Mark>,
    /// Admitted: its intent is being written, or it is at the upstream.
    active: BTreeMap<OpId, Active>,
    doubt: Option<Doubt>,
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Copy, Debug)]
struct Active {
    presented: Mark,
    kind: Kind,
}

#[derive(Clone, Debug)]
struct Doubt {
    /// The lowest token in doubt.
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
    /// A lane that nothing is known of but its durable mark.
    pub fn new(mark: Option<Mark>) -> Self {
        Self { mark, ..Self::default() }
    }

    /// A lane after a restart: its durable mark, and the intents that were never resolved.
    pub fn restore(mark: Option<Mark>, intents: &[(OpId, Token)], until_ms: u64) -> Self {
        let lowest = intents.iter().map(|(_, token)| *token).min();
        let ops = intents.iter().map(|(op, _)| *op).collect();
        let doubt = lowest.map(|token| Doubt { token, until_ms, ops });
        Self { mark, doubt, ..Self::default() }
    }

    /// The durable mark.
    pub fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// Whether it waits for an operation in doubt.
    pub fn is_quarantined(&self) -> bool {
        self.doubt.is_some()
    }

    /// Whether nothing would be lost if it were forgotten and made anew from the durable mark.
    pub fn is_idle(&self) -> bool {
        self.persisting.is_none()
            && self.active.is_empty()
            && self.doubt.is_none()
            && self.waiting.is_empty()
    }

    /// Takes an event; what is to be done is added to `actions`, in its order.
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
            Event::Doubtful { op, until_ms } => self.doubtful(op, until_ms),
            Event::GaveUp { op } => self.gave_up(op, actions),
            Event::Tick { now_ms } => {
                if let Some(doubt) = self.doubt.take_if(|doubt| doubt.until_ms <= now_ms) {
                    actions.extend(doubt.ops.into_iter().map(|op| Action::Forget { op }));
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
            // The mark rose while the intent was being written: it must not be forwarded any more.
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

    fn doubtful(&mut self, op: OpId, until_ms: u64) {
        let Some(active) = self.active.remove(&op) else { return };
        let token = active.presented.token;
        let doubt = self.doubt.get_or_insert(Doubt { token, until_ms, ops: Vec::new() });
        doubt.token = doubt.token.min(token);
        doubt.until_ms = doubt.until_ms.max(until_ms);
        doubt.ops.push(op);
    }

    fn gave_up(&mut self, op: OpId, actions: &mut Vec<Action>) {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.op == op) else { return };
        self.waiting.remove(at);
        let why = match &self.doubt {
            Some(doubt) => Why::Quarantined { until_ms: doubt.until_ms },
            None => Why::Draining,
        };
        actions.push(Action::Refuse { op, why });
    }

    /// Lets in what can be let in. Whoever is behind somebody who has to wait is looked at too: it
    /// may be stale, or it may raise the mark.
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

    /// Makes the mark durable; a write that would not have to wait has its intent written with it.
    fn raise(&mut self, at: usize, waiting: Waiting, actions: &mut Vec<Action>) {
        let mark = waiting.presented;
        self.persisting = Some(mark);
        let is_clear = self.active.is_empty() && self.doubt.is_none();
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
        match &self.doubt {
            None => Gate::Open,
            Some(doubt) if doubt.token == token && waiting.kind != Kind::Write => Gate::Open,
            Some(doubt) if doubt.until_ms > waiting.patience_until_ms => {
                Gate::Quarantined { until_ms: doubt.until_ms }
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

    /// The mark came to belong to another lease while the intent was being written.
    #[test]
    fn a_collision_with_a_durable_intent_is_no_stale_token() {
        for (raised, why) in [
            (mark(5, 2), Why::Collision { mark: mark(5, 2) }),
            (mark(6, 2), Why::Stale { mark: mark(6, 2) }),
        ] {
            let mut lane = Lane::new(Some(mark(5, 1)));
            let mut actions = Vec::new();
            let (presented, kind) = (mark(5, 1), Kind::Write);
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
