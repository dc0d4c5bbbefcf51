//! Contract of the log with its callers, on a real folder.

use proptest::prelude::*;
use tempfile::tempdir;

use super::super::format::{Header, Kind};
use super::super::names;
use super::*;

fn open(folder: &Path) -> (Log, Live) {
    // A process that another test starts has a copy of the lock's file until it runs its program.
    let opened = (0..1_000).find_map(|_| match Log::open(folder, SMALL) {
        Err(error) if error.to_string().contains("another process is using it") => {
            std::thread::sleep(std::time::Duration::from_millis(1));
            None
        }
        opened => Some(opened),
    });
    let (log, restored) = opened.expect("no other process holds the lock for long").unwrap();
    (log, live(&restored))
}

fn refusal(folder: &Path) -> String {
    Log::open(folder, SMALL).unwrap_err().to_string()
}

fn batches() -> impl Strategy<Value = Vec<Vec<Change>>> {
    let key = (0_u8..6).prop_map(|key| Bytes::from(vec![b'k', key]));
    let value = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..300));
    let change = (key, value.prop_map(|value| value.map(Bytes::from)));
    proptest::collection::vec(proptest::collection::vec(change, 0..5), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever is appended, in however many lives, is there at the next opening.
    #[test]
    fn a_reopened_log_equals_the_model(lives in proptest::collection::vec(batches(), 1..4)) {
        let folder = tempdir().unwrap();
        let mut model = Live::new();
        for batches in lives {
            let (log, restored) = open(folder.path());
            prop_assert_eq!(&restored, &model);
            let tickets: Vec<_> = batches.iter().map(|batch| log.append(batch)).collect();
            for (batch, ticket) in batches.iter().zip(tickets) {
                wait(ticket).unwrap();
                apply(&mut model, batch);
            }
        }
        prop_assert_eq!(open(folder.path()).1, model);
    }
}

#[test]
fn a_dropped_ticket_withdraws_nothing() {
    let folder = tempdir().unwrap();
    let (log, _) = open(folder.path());
    drop(log.append(&[put("a", "1")]).unwrap());
    drop(log);
    assert_eq!(open(folder.path()).1.len(), 1);
}

#[test]
fn old_files_are_replaced_by_a_snapshot() {
    let folder = tempdir().unwrap();
    let (log, _) = open(folder.path());
    let bytes = || -> u64 {
        // A file may go between two steps.
        let files = fs::read_dir(folder.path()).unwrap().flatten();
        files.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
    };
    let mut number = 0_u32;
    // The keeper has a thread of its own, which may be behind.
    while number < 400 || bytes() >= 30_000 {
        assert!(number < 100_000, "{} bytes for two entries", bytes());
        number += 1;
        commit(&log, &[put("a", vec![7; 100]), put("number", number.to_le_bytes())]);
    }
    drop(log);
    let restored = open(folder.path()).1;
    assert_eq!(restored[&b"number"[..]], number.to_le_bytes());
}

#[test]
fn a_second_opener_is_refused() {
    let folder = tempdir().unwrap();
    let (log, _) = open(folder.path());
    let error = refusal(folder.path());
    assert!(error.contains(&folder.path().display().to_string()), "{error}");
    assert!(error.contains("another process is using it"), "{error}");
    drop(log);
    open(folder.path());
}

#[test]
fn files_of_other_versions_are_refused() {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("locks.redb"), "redb").unwrap();
    let error = refusal(folder.path());
    assert!(error.contains("locks.redb") && error.contains("version 0.1"), "{error}");

    let folder = tempdir().unwrap();
    drop(open(folder.path()));
    let file = folder.path().join(names::file_name(Kind::Segment, 1));
    let mut bytes = fs::read(&file).unwrap();
    bytes[8] = 2;
    let crc = crc32fast::hash(&bytes[..32]);
    bytes[32..36].copy_from_slice(&crc.to_le_bytes());
    fs::write(&file, &bytes).unwrap();
    let error = refusal(folder.path());
    assert!(error.contains("its format is 2, this program reads 1"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), bytes, "nothing was changed");
}

#[test]
fn a_file_under_the_name_of_another_is_refused() {
    let folder = tempdir().unwrap();
    drop(open(folder.path()));
    let file = folder.path().join(names::file_name(Kind::Segment, 1));
    let header = Header { kind: Kind::Segment, index: 2, salt: 7 };
    fs::write(&file, header.encode()).unwrap();
    assert!(refusal(folder.path()).contains("that of another file"));
}

#[test]
fn a_missing_file_is_refused() {
    let folder = tempdir().unwrap();
    let (log, _) = open(folder.path());
    let snapshot = || {
        let names = Folder::new(folder.path()).list().unwrap();
        names.into_iter().find(|name| name.starts_with("snapshot") && name.ends_with(".log"))
    };
    // The keeper has a thread of its own, which may be behind.
    for commits in 0.. {
        assert!(commits < 100_000, "no snapshot was made");
        if snapshot().is_some() {
            break;
        }
        commit(&log, &[put("a", vec![7; 900])]);
    }
    drop(log);
    fs::remove_file(folder.path().join(snapshot().unwrap())).unwrap();
    assert!(refusal(folder.path()).contains("the file is missing"));
}

#[test]
fn too_much_is_refused() {
    let folder = tempdir().unwrap();
    let options = LogOptions { waiting_bytes_max: 1_000, ..SMALL };
    let (log, _) = Log::open(folder.path(), options).unwrap();
    let error = log.append(&[put("a", vec![0; 1_000])]).unwrap_err();
    assert_eq!(error, AppendError::TooLarge { bytes: 1_009, bytes_max: 1_000 });
    commit(&log, &[put("b", "later")]);

    let no_writer = Queue::new(1_000);
    let _waiting = no_writer.push(&[put("a", vec![0; 900])]).unwrap();
    assert_eq!(no_writer.push(&[put("a", vec![0; 100])]).unwrap_err(), AppendError::Busy);
}
