//! Appends that the disk refuses.

use std::io::ErrorKind;

use super::sim_disk::{Fault, Op, SimDisk};
use super::*;

fn open(disk: &SimDisk) -> (Log, Live) {
    let (log, restored) = Log::open_on(Arc::new(disk.clone()), LARGE).unwrap();
    (log, live(&restored))
}

/// Segments that do not fill up, so that only the writer writes once the keeper has prepared one.
const LARGE: LogOptions = LogOptions { segment_bytes: 8_192, ..SMALL };

/// A log with one entry and a keeper at rest.
fn quiet(disk: &SimDisk) -> Log {
    let (log, _) = open(disk);
    commit(&log, &[put("a", "1")]);
    while !log.exchange.has_spare() {
        thread::yield_now();
    }
    log
}

fn fault(op: Op, error: ErrorKind) -> Fault {
    Fault { op, skip: 0, error }
}

#[test]
fn a_full_disk_refuses_a_batch_and_the_log_continues() {
    let disk = SimDisk::default();
    let log = quiet(&disk);
    disk.inject(fault(Op::Write, ErrorKind::StorageFull));
    let refused = wait(log.append(&[put("a", vec![9; 2_000])])).unwrap_err();
    assert!(matches!(refused, AppendError::NotWritten(_)), "{refused}");
    commit(&log, &[put("b", "2")]);
    drop(log);
    let restored = open(&disk.after_crash(&mut Numbers(1))).1;
    assert_eq!(restored, Live::from([(b"a".into(), b"1".into()), (b"b".into(), b"2".into())]));
}

#[test]
fn a_file_that_cannot_be_cut_back_poisons_the_log() {
    for op in [Op::SetLen, Op::Sync] {
        let disk = SimDisk::default();
        let log = quiet(&disk);
        disk.inject(fault(Op::Write, ErrorKind::StorageFull));
        disk.inject(fault(op, ErrorKind::Other));
        let unknown = wait(log.append(&[put("a", "2")])).unwrap_err();
        assert!(matches!(unknown, AppendError::Unknown(_)), "{unknown}");
        let refused = wait(log.append(&[put("a", "3")])).unwrap_err();
        assert!(matches!(refused, AppendError::Poisoned(_)), "{refused}");
    }
}

#[test]
fn a_failed_sync_poisons_the_log() {
    let disk = SimDisk::default();
    let log = quiet(&disk);
    disk.inject(fault(Op::Sync, ErrorKind::Other));
    let unknown = wait(log.append(&[put("a", "2")])).unwrap_err();
    assert!(matches!(unknown, AppendError::Unknown(_)), "{unknown}");
    for _ in 0..2 {
        let refused = wait(log.append(&[put("a", "3")])).unwrap_err();
        assert!(matches!(refused, AppendError::Poisoned(_)), "{refused}");
    }
}

/// After a failed sync the bytes are in the memory of the kernel, which takes them for written. The
/// next process reads them; a loss of power after it must not remove them again.
#[test]
fn what_a_failed_sync_left_is_durable_once_it_was_read() {
    let disk = SimDisk::default();
    let log = quiet(&disk);
    disk.inject(fault(Op::Sync, ErrorKind::Other));
    // More than a sector, so that the next frame does not write all of it again.
    let value = vec![2; 2_000];
    wait(log.append(&[put("a", &value)])).unwrap_err();
    drop(log);
    let (log, restored) = open(&disk);
    assert_eq!(restored[&b"a"[..]], value);
    commit(&log, &[put("b", "3")]);
    drop(log);
    for seed in 0..20 {
        let restored = open(&disk.after_crash(&mut Numbers(seed))).1;
        assert_eq!(restored.len(), 2, "{restored:?}");
        assert_eq!(restored[&b"a"[..]], value);
    }
}

#[test]
fn a_keeper_that_fails_holds_up_no_append() {
    let disk = SimDisk::default();
    for _ in 0..1_000 {
        disk.inject(Fault { op: Op::Rename, skip: 1, error: ErrorKind::StorageFull });
    }
    let (log, _) = Log::open_on(Arc::new(disk.clone()), SMALL).unwrap();
    let mut model = Live::new();
    for number in 0..100_u32 {
        let batch = [put("a", vec![7; 200]), put("number", number.to_le_bytes())];
        commit(&log, &batch);
        apply(&mut model, &batch);
    }
    drop(log);
    disk.heal();
    assert_eq!(open(&disk).1, model);
}

/// A batch behind one that failed is not written either: it may build on it.
#[test]
fn a_failure_takes_what_waits_with_it() {
    let disk = SimDisk::default();
    let log = quiet(&disk);
    disk.inject(fault(Op::Write, ErrorKind::StorageFull));
    let pause = disk.pause();
    let mut tickets = vec![log.append(&[put("a", "2")])];
    while log.queue.waiting() > 0 {
        thread::yield_now();
    }
    tickets.extend((0..3_u8).map(|n| log.append(&[put("a", [n])])));
    drop(pause);
    for ticket in tickets {
        let refused = wait(ticket).unwrap_err();
        assert!(matches!(refused, AppendError::NotWritten(_)), "{refused}");
    }
    commit(&log, &[put("b", "2")]);
    drop(log);
    assert_eq!(open(&disk).1[&b"a"[..]], b"1");
}

/// A segment that was begun and has no frame is not left behind.
#[test]
fn a_batch_above_a_segment_may_fail_and_be_appended_again() {
    let disk = SimDisk::default();
    let log = quiet(&disk);
    let large = [put("a", vec![7; 9_000])];
    loop {
        disk.inject(fault(Op::Write, ErrorKind::StorageFull));
        let appended = wait(log.append(&large));
        // Where it was appended, the keeper got the fault: it begins the next segment at the same
        // time.
        disk.heal();
        while !log.exchange.has_spare() {
            thread::yield_now();
        }
        if appended.is_err() {
            break;
        }
    }
    commit(&log, &large);
    drop(log);
    assert_eq!(open(&disk).1[&b"a"[..]].len(), 9_000);
}
