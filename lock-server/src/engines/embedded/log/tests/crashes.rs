//! Loss of power at any operation: every acknowledged batch is there, and no part of a batch.

use std::collections::BTreeSet;

use super::super::format::Kind;
use super::super::keeper::{ClosedSegment, Exchange, Keeper, Snapshot};
use super::super::names;
use super::super::segment::Segment;
use super::sim_disk::{Op, SimDisk};
use super::*;

/// States of the log by the number of batches that it contains.
struct Model {
    states: Vec<Live>,
    /// Number of batches that were acknowledged.
    acknowledged: usize,
}

impl Model {
    /// Checks what was restored, which decides what became of the batches without acknowledgement.
    fn restore(&mut self, restored: &Live) {
        let found = (self.acknowledged..self.states.len()).find(|n| self.states[*n] == *restored);
        let Some(found) = found else {
            panic!("{restored:?} is no state behind {} batches", self.acknowledged)
        };
        self.states.truncate(found + 1);
        self.acknowledged = found;
    }

    /// Appends until the disk fails; returns whether it did.
    fn append(&mut self, log: &Log, numbers: &mut Numbers, batches: u32) -> bool {
        let mut waiting = Vec::new();
        for _ in 0..batches {
            let batch = numbers.batch(self.states.len() as u64);
            let Ok(ticket) = log.append(&batch) else { break };
            let mut next = self.states.last().unwrap().clone();
            apply(&mut next, &batch);
            self.states.push(next);
            waiting.push(ticket);
            if numbers.below(3) == 0 && !self.resolve(&mut waiting) {
                return true;
            }
        }
        !self.resolve(&mut waiting)
    }

    fn resolve(&mut self, waiting: &mut Vec<Ticket>) -> bool {
        for ticket in waiting.drain(..) {
            if wait(Ok(ticket)).is_err() {
                return false;
            }
            self.acknowledged += 1;
        }
        true
    }
}

/// Lives of a log, each ended by a loss of power. Returns where that happened.
fn lives(seed: u64, crash_max: u64) -> BTreeSet<(Op, String)> {
    let mut numbers = Numbers(seed);
    let mut model = Model { states: vec![Live::new()], acknowledged: 0 };
    let mut disk = SimDisk::default();
    let mut crashed = BTreeSet::new();
    for _ in 0..4 {
        disk.crash_at(numbers.below(crash_max));
        match Log::open_on(Arc::new(disk.clone()), SMALL) {
            Ok((log, restored)) => {
                model.restore(&live(&restored));
                model.append(&log, &mut numbers, 60);
            }
            Err(error) => assert!(disk.crashed_in().is_some(), "seed {seed}: {error}"),
        }
        crashed.extend(disk.crashed_in());
        disk = disk.after_crash(&mut numbers);
    }
    let (_log, restored) = Log::open_on(Arc::new(disk), SMALL).unwrap();
    model.restore(&live(&restored));
    crashed
}

#[test]
fn a_loss_of_power_at_any_time_loses_nothing_acknowledged() {
    let mut steps = BTreeSet::new();
    for seed in 0..400 {
        let crashed = lives(seed, 30 + seed % 300);
        let kind = |name: &str| name.split('-').next().unwrap_or_default().to_owned();
        steps.extend(crashed.into_iter().map(|(op, name)| (op, kind(&name))));
    }
    for step in [(Op::Write, "segment"), (Op::Sync, "segment"), (Op::Write, "snapshot")] {
        assert!(steps.contains(&(step.0, step.1.to_owned())), "no crash in {step:?}: {steps:?}");
    }
}

/// A folder with a snapshot and two closed segments, its keeper, and the entries.
fn before_a_snapshot() -> (SimDisk, Keeper, Live) {
    let disk = SimDisk::default();
    let mut numbers = Numbers(7);
    let mut model = Live::new();
    let mut next_sequence = 1;
    let mut closed = Vec::new();
    for index in 1..=4 {
        let mut segment = Segment::create(&disk, index, SMALL.segment_bytes).unwrap();
        for _ in 0..3 {
            let batch = numbers.batch(next_sequence);
            apply(&mut model, &batch);
            let mut frame = vec![0; super::super::format::FRAME_BYTES];
            for (key, value) in &batch {
                super::super::format::encode_change(&mut frame, key, value.as_deref());
            }
            segment.append(&mut frame, next_sequence).unwrap();
            next_sequence += 1;
        }
        closed.push(ClosedSegment { index, end: segment.end, next_sequence });
    }
    closed.pop();
    let last_two = closed.split_off(1);
    let none = Snapshot { index: 0, bytes: 0, next_sequence: 1 };
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut keeper = Keeper::new(shared, SMALL, Arc::new(Exchange::default()), none, closed, 4);
    assert!(keeper.compact());
    keeper.add_closed(last_two);
    (disk, keeper, model)
}

/// Each step of a snapshot in turn is the last one.
#[test]
fn a_snapshot_may_end_after_any_step() {
    let mut steps = BTreeSet::new();
    for operation in 0.. {
        let (disk, mut keeper, model) = before_a_snapshot();
        disk.crash_at(operation);
        let is_done = keeper.compact();
        for seed in 0..8 {
            let left = disk.after_crash(&mut Numbers(seed));
            let (_log, restored) = Log::open_on(Arc::new(left), SMALL).unwrap();
            assert_eq!(live(&restored), model, "stopped at operation {operation}");
        }
        steps.extend(disk.crashed_in());
        if is_done && disk.crashed_in().is_none() {
            disk.heal();
            let in_use = names::file_name(Kind::Segment, 4);
            let spare = names::file_name(Kind::Segment, 5);
            let snapshot = names::file_name(Kind::Snapshot, 3);
            assert_eq!(disk.list().unwrap(), [in_use, spare, snapshot]);
            break;
        }
    }
    let snapshot = |index| names::file_name(Kind::Snapshot, index);
    for step in [
        (Op::Write, names::unfinished(Kind::Snapshot, 3)),
        (Op::Sync, names::unfinished(Kind::Snapshot, 3)),
        (Op::Rename, snapshot(3)),
        (Op::SyncFolder, String::new()),
        (Op::Remove, snapshot(1)),
        (Op::Remove, names::file_name(Kind::Segment, 3)),
    ] {
        assert!(steps.contains(&step), "no crash in {step:?}: {steps:?}");
    }
}
