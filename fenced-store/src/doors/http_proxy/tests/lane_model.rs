//! Model test of the lane against a hostile upstream: forwarded writes take effect at any possible
//! time, replies get lost, disks are slow, the guard crashes.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use fence_protocol::Token;

use crate::doors::http_proxy::lane::{
    Action, Event, Inherited, Kind, Lane, MAX_WAITING, OpId, Why,
};
use crate::stores::lanes::Opening;
use crate::verdict::Mark;
use crate::verdict::tests::mark;

/// Maximum request lifetime of the upstream.
const LIFETIME_MS: u64 = 10;

#[derive(Clone, Copy, Debug)]
enum LaneStep {
    Arrive {
        token: u64,
        lease: u64,
        kind: Kind,
        patience_ms: u64,
    },
    /// The disk completes its oldest requests, in one step.
    Persist(usize),
    /// The lane had an interval of rest.
    Rest,
    /// The process ends in order.
    Close,
    /// A write takes effect at the upstream.
    Land(usize),
    /// The upstream replies.
    Answer(usize),
    /// The connection to the upstream breaks.
    Break(usize),
    Abandon(usize),
    Pass(u64),
    /// An operator ends what has an unknown outcome, and then the quarantine.
    Resolve,
    /// An operator learns that it lives longer, and extends the quarantine.
    Extend(u64),
    /// The guard crashes and restarts; the disk had completed so many requests.
    Crash(usize),
}

/// A forwarded operation at the upstream.
#[derive(Clone, Copy, Debug)]
struct Flight {
    token: Token,
    kind: Kind,
    /// The guard still waits for the reply.
    awaited: bool,
    dies_at_ms: Option<u64>,
}

#[derive(Debug, Default)]
struct World {
    lane: Lane,
    now_ms: u64,
    next: OpId,
    pending: BTreeMap<OpId, (Mark, Kind)>,
    persists: VecDeque<(u64, Option<Mark>, Option<Opening>)>,
    disk_mark: Option<Mark>,
    disk_open: Option<Opening>,
    flights: BTreeMap<OpId, Flight>,
    /// The highest token that took effect or was acknowledged.
    highest: Option<Token>,
    /// The highest mark in any reply.
    shown: Option<Token>,
    landed: usize,
    answered: usize,
}

impl World {
    fn feed(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.lane.handle(event, &mut actions);
        for action in actions {
            match action {
                Action::Persist { seq, mark, open } => self.persists.push_back((seq, mark, open)),
                Action::Go { op } => self.go(op),
                Action::Refuse { op, why } => {
                    self.pending.remove(&op);
                    if let Why::Stale { mark } | Why::Collision { mark } = why {
                        self.show(mark.token);
                    }
                }
            }
        }
        self.check_open();
    }

    /// A crash at any moment, with any part of what the disk was given, would find the lane open if
    /// a write may still take effect, under a token that is not above it, and as conditional only
    /// if every such write is.
    fn check_open(&self) {
        let possible = self.persists.iter().map(|(_, _, open)| *open);
        for open in possible.chain([self.disk_open]) {
            for flight in self.flights.values().filter(|flight| flight.kind.is_write()) {
                let fits = |open: Opening| {
                    open.token <= flight.token
                        && (flight.kind.is_conditional() || !open.is_conditional)
                };
                assert!(open.is_some_and(fits), "{flight:?} is out, open: {open:?}");
            }
        }
    }

    fn go(&mut self, op: OpId) {
        let (presented, kind) = self.pending.remove(&op).expect("an operation goes once");
        match kind {
            Kind::Seal => self.success(presented.token),
            _ => {
                let token = presented.token;
                assert!(self.highest <= Some(token), "forwarded below {:?}: {token}", self.highest);
                let durable = self.disk_mark.map(|mark| mark.token);
                assert_eq!(durable, Some(token), "forwarded what the durable mark refuses");
                let flight = Flight { token, kind, awaited: true, dies_at_ms: None };
                self.flights.insert(op, flight);
            }
        }
    }

    /// G1 and G2: no effect or reply is below an earlier one.
    fn success(&mut self, token: Token) {
        assert!(self.highest <= Some(token), "{token} after {:?}", self.highest);
        self.highest = Some(token);
        self.answered += 1;
        self.show(token);
    }

    /// G4: the mark in replies never falls.
    fn show(&mut self, mark: Token) {
        self.shown = self.shown.max(Some(mark));
        let durable = self.disk_mark.map(|mark| mark.token);
        assert!(durable >= self.shown, "shown {:?}, durable {durable:?}", self.shown);
    }

    /// Completes the oldest requests of the disk and returns the number of the last.
    fn persist(&mut self, count: usize) -> Option<u64> {
        let mut last = None;
        for (seq, mark, open) in self.persists.drain(..count.min(self.persists.len())) {
            self.disk_mark = mark.or(self.disk_mark);
            self.disk_open = open;
            last = Some(seq);
        }
        last
    }

    fn pick(&self, at: usize, want: impl Fn(&Flight) -> bool) -> Option<OpId> {
        let ops: Vec<OpId> =
            self.flights.iter().filter(|(_, flight)| want(flight)).map(|(op, _)| *op).collect();
        (!ops.is_empty()).then(|| ops[at % ops.len()])
    }

    fn step(&mut self, step: LaneStep) {
        match step {
            LaneStep::Arrive { token, lease, kind, patience_ms } => {
                let op = self.next;
                let presented = mark(token, lease);
                self.next += 1;
                self.pending.insert(op, (presented, kind));
                let patience_until_ms = self.now_ms + patience_ms;
                self.feed(Event::Arrive { op, presented, kind, patience_until_ms });
            }
            LaneStep::Persist(more) => {
                if let Some(seq) = self.persist(more + 1) {
                    self.feed(Event::Persisted { seq });
                }
            }
            LaneStep::Rest => self.feed(Event::Rest),
            LaneStep::Close => self.feed(Event::Close),
            LaneStep::Land(at) => self.land(at),
            LaneStep::Answer(at) => {
                if let Some(op) = self.pick(at, |flight| flight.awaited) {
                    let flight = self.flights.remove(&op).unwrap();
                    self.success(flight.token);
                    self.feed(Event::Ended { kind: flight.kind });
                }
            }
            LaneStep::Break(at) => self.break_off(at),
            LaneStep::Abandon(at) => {
                let op = self.pending.keys().nth(at % self.pending.len().max(1)).copied();
                op.into_iter().for_each(|op| self.feed(Event::Abandoned { op }));
            }
            LaneStep::Pass(ms) => {
                self.now_ms += ms;
                let now_ms = self.now_ms;
                self.flights.retain(|_, flight| flight.dies_at_ms.is_none_or(|at| at > now_ms));
                self.feed(Event::Tick { now_ms });
            }
            LaneStep::Resolve => {
                self.flights.retain(|_, flight| flight.awaited);
                self.feed(Event::Resolved);
            }
            LaneStep::Extend(ms) => self.extend(ms),
            LaneStep::Crash(durable) => self.crash(durable),
        }
    }

    fn land(&mut self, at: usize) {
        if let Some(op) = self.pick(at, |flight| flight.kind.is_write()) {
            let token = self.flights[&op].token;
            assert!(self.highest <= Some(token), "{token} landed after {:?}", self.highest);
            self.highest = Some(token);
            self.landed += 1;
        }
    }

    fn break_off(&mut self, at: usize) {
        let Some(op) = self.pick(at, |flight| flight.awaited) else { return };
        let kind = self.flights[&op].kind;
        if kind == Kind::Read {
            self.flights.remove(&op);
            return self.feed(Event::Ended { kind: Kind::Read });
        }
        let until_ms = self.now_ms + LIFETIME_MS;
        let flight = self.flights.get_mut(&op).unwrap();
        (flight.awaited, flight.dies_at_ms) = (false, Some(until_ms));
        self.feed(Event::Unanswered { kind, until_ms });
    }

    fn extend(&mut self, ms: u64) {
        let Some(quarantine) = self.lane.quarantine() else { return };
        let until_ms = quarantine.until_ms + ms;
        for flight in self.flights.values_mut().filter(|flight| !flight.awaited) {
            flight.dies_at_ms = Some(until_ms);
        }
        self.feed(Event::Extended { until_ms });
    }

    fn crash(&mut self, durable: usize) {
        self.persist(durable);
        self.persists.clear();
        self.pending.clear();
        let until_ms = self.now_ms + LIFETIME_MS;
        self.flights.retain(|_, flight| flight.kind.is_write());
        for flight in self.flights.values_mut() {
            flight.awaited = false;
            flight.dies_at_ms = Some(flight.dies_at_ms.map_or(until_ms, |at| at.min(until_ms)));
        }
        self.lane = match self.disk_open {
            Some(open) => Lane::restore(self.disk_mark, open, Inherited::of_restart(until_ms)),
            None => Lane::new(self.disk_mark),
        };
    }

    /// Once nothing more arrives and time passes, every operation has its reply.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.lane.is_idle() {
                break;
            }
            self.step(LaneStep::Persist(0));
            self.step(LaneStep::Answer(0));
            self.step(LaneStep::Rest);
            self.step(LaneStep::Pass(1));
        }
        assert!(self.lane.is_idle(), "{:?}", self.lane);
        assert!(self.pending.is_empty(), "without reply: {:?}", self.pending);
        assert_eq!(self.disk_open, None, "never closed");
    }
}

fn kind() -> impl Strategy<Value = Kind> {
    // A DELETE waits like any write. A PUT that does not is in the model of the conditions.
    prop_oneof![
        2 => Just(Kind::Write),
        1 => Just(Kind::ConditionalDelete),
        1 => Just(Kind::Read),
        1 => Just(Kind::Seal),
    ]
}

fn step() -> impl Strategy<Value = LaneStep> {
    let arrive =
        (1u64..6, 0u64..8, kind(), 0u64..15).prop_map(|(token, odd, kind, patience_ms)| {
            // Sometimes the issuer issues a token twice.
            let lease = if odd == 0 { 99 } else { token };
            LaneStep::Arrive { token, lease, kind, patience_ms }
        });
    prop_oneof![
        6 => arrive,
        8 => (0usize..3).prop_map(LaneStep::Persist),
        3 => Just(LaneStep::Rest),
        1 => Just(LaneStep::Close),
        5 => (0usize..4).prop_map(LaneStep::Land),
        4 => (0usize..4).prop_map(LaneStep::Answer),
        2 => (0usize..4).prop_map(LaneStep::Break),
        1 => (0usize..4).prop_map(LaneStep::Abandon),
        3 => (1u64..6).prop_map(LaneStep::Pass),
        1 => Just(LaneStep::Resolve),
        1 => (1u64..6).prop_map(LaneStep::Extend),
        1 => (0usize..3).prop_map(LaneStep::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 1024,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_lower_takes_effect_after_anything_higher(
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut world = World::default();
        for step in steps {
            world.step(step);
        }
        world.settle();
    }
}

fn run(steps: &[LaneStep]) -> World {
    let mut world = World::default();
    steps.iter().for_each(|step| world.step(*step));
    world
}

fn write(token: u64) -> LaneStep {
    LaneStep::Arrive { token, lease: token, kind: Kind::Write, patience_ms: 100 }
}

/// 33 is on the wire while 34 arrives: 34 waits for its reply.
#[test]
fn a_higher_write_waits_for_the_lower_one() {
    let mut world = run(&[write(33), LaneStep::Persist(0), write(34), LaneStep::Persist(0)]);
    assert_eq!(world.flights.len(), 1, "34 was not forwarded");
    world.step(LaneStep::Answer(0));
    world.step(LaneStep::Persist(0));
    assert_eq!(world.flights.values().map(|f| f.token.get()).collect::<Vec<_>>(), [34]);
}

#[test]
fn an_unanswered_write_holds_up_the_higher_one_until_it_can_no_longer_land() {
    let mut world = run(&[
        write(33),
        LaneStep::Persist(0),
        LaneStep::Break(0),
        write(34),
        LaneStep::Persist(0),
    ]);
    world.step(LaneStep::Pass(LIFETIME_MS - 1));
    assert!(world.persists.is_empty() && world.lane.quarantine().is_some());
    world.step(LaneStep::Pass(1));
    world.step(LaneStep::Persist(0));
    assert_eq!(world.flights.values().map(|f| f.token.get()).collect::<Vec<_>>(), [34]);
}

/// A holder with an unanswered write may read, and not write.
#[test]
fn an_equal_token_may_read_in_quarantine_and_not_write() {
    let mut world = run(&[write(33), LaneStep::Persist(0), LaneStep::Break(0)]);
    let arrive = |kind| LaneStep::Arrive { token: 33, lease: 33, kind, patience_ms: 0 };
    world.step(arrive(Kind::Read));
    assert_eq!(world.flights.values().filter(|f| f.kind == Kind::Read).count(), 1);
    world.step(arrive(Kind::Write));
    assert!(world.pending.is_empty() && world.persists.is_empty(), "refused at once");
    let forwarded = |flight: &Flight| flight.awaited && flight.kind == Kind::Write;
    assert!(
        !world.flights.values().any(forwarded),
        "a write could be overtaken by the earlier one"
    );
}

#[test]
fn writes_of_an_open_lane_cost_no_disk_and_rest_closes_it() {
    let mut world = run(&[write(33), LaneStep::Persist(0), LaneStep::Answer(0)]);
    for step in [write(33), LaneStep::Answer(0), LaneStep::Rest, write(33), LaneStep::Rest] {
        world.step(step);
        assert!(world.persists.is_empty(), "{step:?}");
    }
    world.step(LaneStep::Answer(0));
    world.step(LaneStep::Rest);
    world.step(LaneStep::Rest);
    assert_eq!(world.persists.len(), 1, "it closes after a whole interval");
    // The close is on its way to the disk: the next write opens the lane again behind it.
    world.step(write(33));
    assert!(world.flights.is_empty() && world.persists.len() == 2);
    world.step(LaneStep::Persist(0));
    assert!(world.flights.is_empty(), "forwarded while the disk says closed");
    world.step(LaneStep::Persist(0));
    assert_eq!(world.flights.len(), 1);
}

/// After the drain the lane is open under the higher token alone, so that a crash would not keep
/// its holder from reading.
#[test]
fn a_drained_token_is_forgotten() {
    let mut world = run(&[write(33), LaneStep::Persist(0), write(34), LaneStep::Persist(0)]);
    assert_eq!(world.disk_open.map(|open| open.token.get()), Some(33));
    world.step(LaneStep::Answer(0));
    // A higher mark changes nothing: 34 is out.
    world.step(write(35));
    world.step(LaneStep::Persist(0));
    world.step(LaneStep::Rest);
    world.step(LaneStep::Persist(0));
    assert_eq!(world.disk_open.map(|open| open.token.get()), Some(34));
}

#[test]
fn refused_operations_get_a_reply_and_the_queue_is_bounded() {
    let mut lane = Lane::default();
    let mut arrive = |op| {
        let mut actions = Vec::new();
        let presented = mark(1, 1);
        // The disk never completes: all operations wait.
        let event = Event::Arrive { op, presented, kind: Kind::Write, patience_until_ms: 0 };
        lane.handle(event, &mut actions);
        actions
    };
    let most = MAX_WAITING as u64;
    assert!((0..most).flat_map(&mut arrive).all(|action| matches!(action, Action::Persist { .. })));
    assert_eq!(arrive(most), [Action::Refuse { op: most, why: Why::Full }]);
}
