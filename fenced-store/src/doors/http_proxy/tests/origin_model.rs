//! Model test of conditional writes: lane, attempts and an upstream with versions. Writes take
//! effect at any later time, even long after the stated lifetime if they name a tag; replies get
//! lost, contents repeat, the guard crashes and changes its mode.

mod directed;
mod resource;

use std::collections::{BTreeMap, VecDeque};

use fence_protocol::Token;
use proptest::prelude::*;

use self::resource::Resource;
use crate::doors::http_proxy::conditions::attempt::{
    Attempt, AttemptStep, End, Precondition, Seen, Version, Written,
};
use crate::doors::http_proxy::conditions::{Doubt, probe};
use crate::doors::http_proxy::lane::{Action, Event, Inherited, Kind, Lane, OpId};
use crate::etag::Condition;
use crate::stores::lanes::Opening;
use crate::verdict::Mark;
use crate::verdict::tests::mark;

/// Maximum request lifetime of the upstream, for writes that name no tag.
const LIFETIME_MS: u64 = 10;
const RESOURCES: usize = 2;

#[derive(Clone, Copy, Debug)]
enum ModelStep {
    Arrive {
        token: u64,
        resource: usize,
        what: What,
        patience_ms: u64,
    },
    Persist(usize),
    Rest,
    /// A write is checked and takes effect at the upstream.
    Land(usize),
    /// A write is refused for another reason than its version.
    Deny(usize),
    Answer(usize),
    Break(usize),
    Pass(u64),
    /// The guard crashes, and starts again with or without conditions.
    Crash(usize, bool),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Put(u8),
    /// A PUT that its client wants to create with.
    Create(u8),
    Delete,
    Post(u8),
    Read,
    Seal,
}

#[derive(Debug)]
struct Op {
    presented: Mark,
    kind: Kind,
    resource: usize,
    body: Option<String>,
    client: Condition,
    attempt: Option<Attempt>,
    /// Nothing with an unknown outcome was out when it was admitted.
    is_alone: bool,
}

/// A request at the upstream.
#[derive(Debug)]
struct Flight {
    op: OpId,
    token: Token,
    kind: Kind,
    resource: usize,
    body: Option<String>,
    precondition: Option<Precondition>,
    is_alone: bool,
    /// The guard waits for the reply.
    awaited: bool,
    result: Option<Written>,
    dies_at_ms: Option<u64>,
}

impl Flight {
    fn is_mortal(&self) -> bool {
        !matches!(self.precondition, Some(Precondition::Match(_)))
    }
}

#[derive(Debug, Default)]
struct World {
    lane: Lane,
    now_ms: u64,
    next: OpId,
    ops: BTreeMap<OpId, Op>,
    persists: VecDeque<(u64, Option<Mark>, Option<Opening>)>,
    disk_mark: Option<Mark>,
    disk_open: Option<Opening>,
    flights: BTreeMap<u64, Flight>,
    origin: [Resource; RESOURCES],
    known: [Option<Version>; RESOURCES],
    is_conditional: bool,
    /// Highest token that was applied to each resource.
    applied: [Option<Token>; RESOURCES],
    /// Highest token that was answered after all lower ones had ended.
    answered: Option<Token>,
    landed: usize,
}

impl World {
    fn new(is_hashed: bool) -> Self {
        let origin = [Resource::new(is_hashed), Resource::new(is_hashed)];
        let mut world = Self { origin, ..Self::default() };
        world.start(true);
        world
    }

    /// Starts the guard: conditions are used only after the probe.
    fn start(&mut self, is_wanted: bool) {
        let is_hashed = self.origin[0].is_hashed;
        let probed = Resource::new(is_hashed);
        let time = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let passed = time.block_on(probe::examine(&probed)).is_ok();
        assert_eq!(probed.version(), Version::Absent, "the probe leaves something behind");
        self.is_conditional = is_wanted && passed;
        self.known = Default::default();
    }

    fn feed(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.lane.handle(event, &mut actions);
        for action in actions {
            match action {
                Action::Persist { seq, mark, open } => self.persists.push_back((seq, mark, open)),
                Action::Go { op } => self.go(op),
                Action::Refuse { op, .. } => drop(self.ops.remove(&op)),
            }
        }
    }

    fn arrive(&mut self, mut op: Op, patience_ms: u64) {
        let number = self.next;
        self.next += 1;
        if op.kind.is_conditional() {
            let known = self.known[op.resource].clone();
            let is_delete = op.kind == Kind::ConditionalDelete;
            op.attempt = Some(Attempt::new(is_delete, op.client.clone(), known, true));
        }
        let Op { presented, kind, .. } = op;
        self.ops.insert(number, op);
        let patience_until_ms = self.now_ms + patience_ms;
        self.feed(Event::Arrive { op: number, presented, kind, patience_until_ms });
    }

    fn go(&mut self, op: OpId) {
        let is_alone = self.lane.quarantine().is_none();
        let admitted = self.ops.get_mut(&op).expect("an operation goes once");
        admitted.is_alone = is_alone;
        match (admitted.kind, admitted.presented.token) {
            (Kind::Seal, token) => {
                self.ops.remove(&op);
                self.answer(token);
            }
            (kind, _) if kind.is_conditional() => self.proceed(op),
            _ => self.send(op, None),
        }
    }

    fn send(&mut self, number: OpId, precondition: Option<Precondition>) {
        let op = &self.ops[&number];
        let flight = Flight {
            op: number,
            token: op.presented.token,
            kind: op.kind,
            resource: op.resource,
            body: op.body.clone(),
            precondition,
            is_alone: op.is_alone,
            awaited: true,
            result: None,
            dies_at_ms: None,
        };
        self.flights.insert(self.next, flight);
        self.next += 1;
    }

    /// Carries out the steps of a conditional write, as the proxy does.
    fn proceed(&mut self, number: OpId) {
        loop {
            let op = self.ops.get_mut(&number).expect("it has not ended");
            let attempt = op.attempt.as_mut().expect("it is conditional");
            match attempt.step() {
                AttemptStep::Look => {
                    attempt.looked(Seen::Version(self.origin[op.resource].version()));
                }
                AttemptStep::Send(precondition) => return self.send(number, Some(precondition)),
                AttemptStep::End(end) => return self.end(number, &end),
            }
        }
    }

    fn end(&mut self, number: OpId, end: &End) {
        let op = self.ops.remove(&number).expect("an operation ends once");
        let mut kind = op.kind;
        if let Some(attempt) = op.attempt {
            self.is_conditional &= attempt.doubt() != Some(Doubt::Reused);
            if attempt.doubt().is_some() && *end == End::Unsettled {
                kind = Kind::Write;
            }
            self.known[op.resource] = attempt.version();
        }
        match end {
            End::Unsettled => {
                let until_ms = self.now_ms + LIFETIME_MS;
                self.feed(Event::Unanswered { kind, until_ms });
            }
            End::Unconditional => {
                self.feed(Event::Ended { kind });
                self.arrive(Op { kind: Kind::Write, attempt: None, ..op }, LIFETIME_MS);
            }
            // Its reply waits as a read does, and as a seal does, which has no reply of the origin.
            End::Failed { .. } => {
                self.feed(Event::Ended { kind });
                self.arrive(Op { kind: Kind::Seal, attempt: None, ..op }, LIFETIME_MS);
            }
            _ => self.feed(Event::Ended { kind }),
        }
    }

    fn answer(&mut self, token: Token) {
        assert!(self.answered <= Some(token), "{token} answered after {:?}", self.answered);
        self.answered = Some(token);
    }

    fn pick(&self, at: usize, want: impl Fn(&Flight) -> bool) -> Option<u64> {
        let found: Vec<u64> =
            self.flights.iter().filter(|(_, flight)| want(flight)).map(|(id, _)| *id).collect();
        (!found.is_empty()).then(|| found[at % found.len()])
    }

    fn step(&mut self, step: ModelStep) {
        match step {
            ModelStep::Arrive { token, resource, what, patience_ms } => {
                let (kind, content) = match what {
                    What::Put(content) | What::Create(content) if self.is_conditional => {
                        (Kind::ConditionalPut, Some(content))
                    }
                    What::Delete if self.is_conditional => (Kind::ConditionalDelete, None),
                    What::Put(content) | What::Create(content) | What::Post(content) => {
                        (Kind::Write, Some(content))
                    }
                    What::Delete => (Kind::Write, None),
                    What::Read => (Kind::Read, None),
                    What::Seal => (Kind::Seal, None),
                };
                let presented = mark(token, token);
                let body = content.map(|content| content.to_string());
                let client = match what {
                    What::Create(_) => Condition::Absent,
                    _ => Condition::None,
                };
                let attempt = None;
                let op = Op { presented, kind, resource, body, client, attempt, is_alone: false };
                self.arrive(op, patience_ms);
            }
            ModelStep::Persist(more) => {
                if let Some(seq) = self.persist(more + 1) {
                    self.feed(Event::Persisted { seq });
                }
            }
            ModelStep::Rest => self.feed(Event::Rest),
            ModelStep::Land(at) => self.land(at, true),
            ModelStep::Deny(at) => self.land(at, false),
            ModelStep::Answer(at) => self.reply(at),
            ModelStep::Break(at) => self.break_off(at),
            ModelStep::Pass(ms) => {
                self.now_ms += ms;
                let now_ms = self.now_ms;
                let is_dead = |flight: &Flight| flight.dies_at_ms.is_some_and(|at| at <= now_ms);
                self.flights.retain(|_, flight| !flight.is_mortal() || !is_dead(flight));
                self.feed(Event::Tick { now_ms });
            }
            ModelStep::Crash(durable, is_conditional) => self.crash(durable, is_conditional),
        }
    }

    fn persist(&mut self, count: usize) -> Option<u64> {
        let mut last = None;
        for (seq, mark, open) in self.persists.drain(..count.min(self.persists.len())) {
            self.disk_mark = mark.or(self.disk_mark);
            self.disk_open = open;
            last = Some(seq);
        }
        last
    }

    /// A request is checked and, if it is permitted, takes effect. G1 for each resource, at any
    /// time; G2 for the lock, within the stated lifetime.
    fn land(&mut self, at: usize, is_permitted: bool) {
        let waits = |flight: &Flight| flight.result.is_none() && flight.kind.is_write();
        let Some(id) = self.pick(at, waits) else { return };
        let flight = self.flights.get_mut(&id).unwrap();
        let Flight { token, resource, .. } = *flight;
        let origin = &self.origin[resource];
        let holds = origin.holds(flight.precondition.as_ref());
        flight.result = Some(if !holds || !is_permitted && flight.precondition.is_some() {
            Written::Refused
        } else if flight.body.is_none() && origin.version() == Version::Absent {
            Written::Missing
        } else {
            let highest = self.applied[resource];
            assert!(highest <= Some(token), "{flight:?} was applied after {highest:?}");
            if flight.dies_at_ms.is_none_or(|dies_at_ms| self.now_ms < dies_at_ms) {
                let answered = self.answered;
                assert!(answered <= Some(token), "{flight:?} was applied after {answered:?}");
            }
            self.applied[resource] = Some(token);
            self.landed += 1;
            if flight.is_alone && flight.dies_at_ms.is_none() {
                self.answered = self.answered.max(Some(token));
            }
            Written::Applied(origin.set(flight.body.as_deref()))
        });
        if !flight.awaited {
            self.flights.remove(&id);
        }
    }

    fn reply(&mut self, at: usize) {
        let is_due = |flight: &Flight| {
            flight.awaited && (flight.result.is_some() || flight.kind == Kind::Read)
        };
        let Some(id) = self.pick(at, is_due) else { return };
        let flight = self.flights.remove(&id).unwrap();
        match (flight.result, flight.precondition) {
            (Some(written), Some(_)) => self.replied(flight.op, written),
            _ => {
                if flight.kind == Kind::Read {
                    self.answer(flight.token);
                }
                self.end(flight.op, &End::Replied);
            }
        }
    }

    fn replied(&mut self, op: OpId, written: Written) {
        let attempt = self.ops.get_mut(&op).and_then(|op| op.attempt.as_mut());
        attempt.expect("it is conditional").replied(written);
        self.proceed(op);
    }

    fn break_off(&mut self, at: usize) {
        let Some(id) = self.pick(at, |flight| flight.awaited) else { return };
        let flight = self.flights.get_mut(&id).unwrap();
        let op = flight.op;
        if flight.kind == Kind::Read {
            self.flights.remove(&id);
            return self.end(op, &End::Replied);
        }
        let is_conditional = flight.precondition.is_some();
        (flight.awaited, flight.dies_at_ms) = (false, Some(self.now_ms + LIFETIME_MS));
        if flight.result.is_some() {
            self.flights.remove(&id);
        }
        if is_conditional {
            self.replied(op, Written::Unknown);
        } else {
            self.end(op, &End::Unsettled);
        }
    }

    fn crash(&mut self, durable: usize, is_conditional: bool) {
        self.persist(durable);
        self.persists.clear();
        self.ops.clear();
        let until_ms = self.now_ms + LIFETIME_MS;
        self.flights.retain(|_, flight| flight.kind.is_write() && flight.result.is_none());
        for flight in self.flights.values_mut() {
            flight.awaited = false;
            flight.dies_at_ms = Some(flight.dies_at_ms.map_or(until_ms, |at| at.min(until_ms)));
        }
        self.lane = match self.disk_open {
            Some(open) => Lane::restore(self.disk_mark, open, Inherited::of_restart(until_ms)),
            None => Lane::new(self.disk_mark),
        };
        self.start(is_conditional);
    }

    /// Once nothing more arrives and time passes, every operation ends.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.lane.is_idle() {
                break;
            }
            for step in [
                ModelStep::Persist(0),
                ModelStep::Land(0),
                ModelStep::Answer(0),
                ModelStep::Rest,
                ModelStep::Pass(1),
            ] {
                self.step(step);
            }
        }
        assert!(self.lane.is_idle() && self.ops.is_empty(), "{:?} {:?}", self.lane, self.ops);
    }
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        6 => (0u8..3).prop_map(What::Put),
        2 => (0u8..2).prop_map(What::Create),
        3 => Just(What::Delete),
        1 => (0u8..2).prop_map(What::Post),
        1 => Just(What::Read),
        1 => Just(What::Seal),
    ]
}

fn step() -> impl Strategy<Value = ModelStep> {
    let arrive = (1u64..5, 0..RESOURCES, what(), 0u64..15).prop_map(
        |(token, resource, what, patience_ms)| ModelStep::Arrive {
            token,
            resource,
            what,
            patience_ms,
        },
    );
    prop_oneof![
        6 => arrive,
        8 => (0usize..3).prop_map(ModelStep::Persist),
        1 => Just(ModelStep::Rest),
        6 => (0usize..4).prop_map(ModelStep::Land),
        1 => (0usize..4).prop_map(ModelStep::Deny),
        6 => (0usize..4).prop_map(ModelStep::Answer),
        3 => (0usize..4).prop_map(ModelStep::Break),
        2 => (1u64..6).prop_map(ModelStep::Pass),
        1 => (0usize..3, prop::bool::weighted(0.8))
            .prop_map(|(durable, wanted)| ModelStep::Crash(durable, wanted)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 2048,
        max_shrink_iters: 4096,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_lower_is_applied_to_a_resource_after_anything_higher(
        is_hashed in prop::bool::weighted(0.2),
        steps in prop::collection::vec(step(), 0..160),
    ) {
        let mut world = World::new(is_hashed);
        for step in steps {
            world.step(step);
        }
        world.settle();
    }
}
