//! Fuzz target: the bytes of a segment.

use std::io;
use std::path::PathBuf;

use super::disk::{Disk, DiskFile};
use super::format::{self, FRAME_BYTES, Header, Kind};
use super::reader::Entries;
use super::{LogOptions, names, recovery};

const SALT: u64 = 0x5eed;
const OPTIONS: LogOptions =
    LogOptions { segment_bytes: 0, snapshot_bytes_min: 1, waiting_bytes_max: 1 };

/// The input as a segment, then a segment with a frame for each of its lines, whole and with a
/// changed byte. What is read is what the payloads say, or a part of it from the beginning.
pub(crate) fn segment(input: &[u8]) {
    let _ = open(input.to_vec());
    let mut file = Header { kind: Kind::Segment, index: 1, salt: SALT }.encode().to_vec();
    let mut states = vec![Some(Entries::new())];
    for (sequence, payload) in (1..).zip(input.split(|byte| *byte == b'\n')) {
        let mut frame = vec![0; FRAME_BYTES];
        frame.extend_from_slice(payload);
        format::seal_frame(&mut frame, SALT, sequence);
        file.extend_from_slice(&frame);
        let next = states.last().cloned().flatten().and_then(|state| applied(state, payload));
        states.push(next);
    }
    let opened = open(file.clone());
    assert_eq!(opened.as_ref(), states.last().and_then(Option::as_ref));
    let at = usize::try_from(crc32fast::hash(input)).unwrap_or_default() % file.len();
    file[at] ^= 1 << (input.len() % 8);
    if let Some(opened) = open(file) {
        assert!(states.contains(&Some(opened)), "byte {at} made another state");
    }
}

/// Applies a payload, which has one meaning: it is what its changes are encoded to.
fn applied(mut state: Entries, payload: &[u8]) -> Option<Entries> {
    let changes = format::parse_changes(payload)?;
    let mut again = Vec::new();
    for (key, value) in changes {
        format::encode_change(&mut again, key, value);
        match value {
            Some(value) => drop(state.insert(key.to_vec().into(), value.to_vec().into())),
            None => drop(state.remove(key)),
        }
    }
    assert_eq!(again, payload);
    Some(state)
}

fn open(file: Vec<u8>) -> Option<Entries> {
    recovery::recover(&OneFile(file), &OPTIONS).ok().map(|found| found.entries)
}

/// A folder with one segment. Writes have no effect.
#[derive(Clone, Debug)]
struct OneFile(Vec<u8>);

impl Disk for OneFile {
    fn path(&self, name: &str) -> PathBuf {
        name.into()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(vec![names::file_name(Kind::Segment, 1)])
    }

    fn open(&self, _name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(self.clone()))
    }

    fn create(&self, _name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(self.clone()))
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for OneFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let bytes = self.0.get(at..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, _bytes: &[u8], _at: u64) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}
