//! Files that were cut short or changed.

use tempfile::{TempDir, tempdir};

use super::super::format::{self, HEADER_BYTES, Kind};
use super::super::names;
use super::sim_disk::SimDisk;
use super::*;

/// Nothing is replaced by a snapshot.
const ONE_FILE: LogOptions =
    LogOptions { segment_bytes: 1_024, snapshot_bytes_min: 1 << 30, waiting_bytes_max: 1 << 20 };

/// A closed log in one segment, and its content after each frame.
struct Sample {
    file: Vec<u8>,
    states: Vec<Live>,
    /// Offsets behind each frame, and of the first one.
    ends: Vec<usize>,
}

fn sample() -> Sample {
    let folder = tempdir().unwrap();
    let (log, _) = Log::open(folder.path(), ONE_FILE).unwrap();
    let mut model = Live::new();
    let mut states = vec![model.clone()];
    for batch in [
        vec![put("a", "one"), put("b", "two")],
        vec![put("a", "three")],
        vec![removal("b"), put("c", "a longer value than the others")],
        vec![put("a", "five"), put("d", "")],
    ] {
        commit(&log, &batch);
        apply(&mut model, &batch);
        states.push(model.clone());
    }
    drop(log);
    let file = fs::read(segment(&folder, 1)).unwrap();
    let salt = format::Header::parse(&file).unwrap().salt;
    let mut ends = vec![HEADER_BYTES];
    while let Some(len) = format::frame_len(&file[*ends.last().unwrap()..], salt) {
        ends.push(ends.last().unwrap() + len);
    }
    assert_eq!(ends.len(), states.len());
    Sample { file, states, ends }
}

fn segment(folder: &TempDir, index: u64) -> std::path::PathBuf {
    folder.path().join(names::file_name(Kind::Segment, index))
}

/// Opens a log with this file alone.
fn open(file: &[u8]) -> Result<Live, String> {
    let disk = SimDisk::default();
    disk.create(&names::file_name(Kind::Segment, 1)).unwrap().write_at(file, 0).unwrap();
    let opened = Log::open_on(Arc::new(disk.clone()), ONE_FILE).map_err(|error| error.to_string());
    let (log, restored) = opened?;
    // What was cut off does not come back, and appends go on.
    commit(&log, &[put("z", "after")]);
    drop(log);
    let (_log, again) = Log::open_on(Arc::new(disk), ONE_FILE).unwrap();
    let mut expected = live(&restored);
    expected.insert(b"z".to_vec(), b"after".to_vec());
    assert_eq!(live(&again), expected);
    Ok(live(&restored))
}

/// The last write of a crash, in every length, followed by the end of the file, by zeros, or by
/// garbage.
#[test]
fn a_torn_tail_is_removed_at_every_length() {
    let Sample { file, states, ends } = sample();
    for cut in ends[2]..=ends[4] {
        let whole = ends.iter().rposition(|end| *end <= cut).unwrap();
        let mut zeros = file.clone();
        zeros[cut..].fill(0);
        let mut garbage = zeros.clone();
        garbage[cut..ends[4] + 40].fill(0xa5);
        for torn in [&file[..cut], &zeros, &garbage] {
            assert_eq!(open(torn).unwrap(), states[whole], "cut at {cut}");
        }
    }
}

/// Every bit: the file is refused, or only the last batch is gone.
#[test]
fn a_flipped_bit_never_changes_a_value() {
    let Sample { file, states, ends } = sample();
    for at in 0..ends[4] + 2 {
        for bit in 0..8 {
            let mut flipped = file.clone();
            flipped[at] ^= 1 << bit;
            match open(&flipped) {
                Ok(restored) if at >= ends[4] => assert_eq!(restored, states[4]),
                Ok(restored) => {
                    assert!(at >= ends[3], "byte {at}: damage before a whole batch was not seen");
                    assert_eq!(restored, states[3], "byte {at}");
                }
                Err(error) => {
                    assert!(at < ends[3], "byte {at}: {error}");
                    assert!(error.contains("segment-00000000000000000001.log"), "{error}");
                    assert!(error.contains("at byte") && error.contains("backup"), "{error}");
                }
            }
        }
    }
}

#[test]
fn damage_names_its_offset() {
    let Sample { mut file, ends, .. } = sample();
    file[ends[1] + format::FRAME_BYTES] ^= 1;
    let error = open(&file).unwrap_err();
    let expected = format!(
        "at byte {}: frame 2 is damaged, and a whole frame follows at byte {}",
        ends[1], ends[2]
    );
    assert!(error.contains(&expected), "{error}");
}

/// Frames that a client wrote into a value are not taken for frames of the log.
#[test]
fn a_value_that_looks_like_frames_is_a_value() {
    let Sample { file, ends, .. } = sample();
    let folder = tempdir().unwrap();
    let (log, _) = Log::open(folder.path(), ONE_FILE).unwrap();
    commit(&log, &[put("a", "1")]);
    commit(&log, &[put("file", &file[..ends[4]])]);
    drop(log);
    let path = segment(&folder, 1);
    let mut bytes = fs::read(&path).unwrap();
    let last = format::used_len(&bytes) - 1;
    bytes[last] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let (_log, restored) = Log::open(folder.path(), ONE_FILE).unwrap();
    assert_eq!(live(&restored), Live::from([(b"a".into(), b"1".into())]));
}

/// A folder with a snapshot, closed segments and the one in use: every byte of what is durable
/// counts.
#[test]
fn damage_in_any_file_is_seen() {
    let folder = tempdir().unwrap();
    let options = LogOptions { snapshot_bytes_min: 3_000, ..ONE_FILE };
    let mut model = Live::new();
    let mut numbers = Numbers(3);
    let count = |start: &str| {
        let names = Folder::new(folder.path()).list().unwrap();
        names.iter().filter(|name| name.starts_with(start) && name.ends_with(".log")).count()
    };
    // Of four segments one is in use and one is spare.
    while count("snapshot") < 1 || count("segment") < 4 {
        let (log, _) = Log::open(folder.path(), options).unwrap();
        for _ in 0..5 {
            let batch = numbers.batch(numbers.0);
            commit(&log, &batch);
            apply(&mut model, &batch);
        }
    }
    let names = Folder::new(folder.path()).list().unwrap();
    let mut refused = 0;
    let files = names.iter().filter(|name| name.ends_with(".log"));
    let files = files.map(|name| (name, fs::read(folder.path().join(name)).unwrap()));
    let files: Vec<_> = files.collect();
    for (name, whole) in &files {
        for at in (0..format::used_len(whole)).step_by(17) {
            let copy = SimDisk::default();
            for (other, bytes) in &files {
                let mut bytes = bytes.clone();
                if other == name {
                    bytes[at] ^= 4;
                }
                copy.create(other).unwrap().write_at(&bytes, 0).unwrap();
            }
            match Log::open_on(Arc::new(copy), options) {
                Err(error) => {
                    assert!(error.to_string().contains("at byte"), "{error}");
                    refused += 1;
                }
                Ok((_log, restored)) => {
                    let restored = live(&restored);
                    assert_ne!(restored, model, "{name} at {at}: the flipped byte was not read");
                    let lost = model[&b"number"[..]].clone();
                    assert_ne!(restored.get(&b"number"[..]), Some(&lost), "{name} at {at}");
                }
            }
        }
    }
    assert!(refused > 50, "{refused} refusals");
}
