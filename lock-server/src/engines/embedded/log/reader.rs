//! Reading a file of the log, a frame at a time.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use service_kit::data_file::FolderError;

use super::disk::{Disk, DiskFile};
use super::format::{self, END, FRAME_BYTES, HEADER_BYTES, Header, HeaderFault, Kind, SnapshotEnd};
use super::names;

/// Live keys with their values.
pub(crate) type Entries = HashMap<Bytes, Bytes>;

/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;

const RESTORE: &str = "nothing was changed; restore the folder from a backup. Name an empty folder \
    only when no lease that this one has seen can be alive: it knows neither their tokens nor \
    their marks";

struct FrameReader {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    salt: u64,
    len: u64,
    /// Bytes of the file from `buffer_at`; those before `used` are read.
    buffer: Vec<u8>,
    buffer_at: u64,
    used: usize,
}

/// A whole frame.
struct Frame<'r> {
    sequence: u64,
    payload: &'r [u8],
}

impl FrameReader {
    /// Opens the file and reads its header.
    fn open(disk: &dyn Disk, kind: Kind, index: u64) -> Result<Self, FolderError> {
        let name = names::file_name(kind, index);
        let path = disk.path(&name);
        let file = disk.open(&name).map_err(|error| FolderError::of_io(&path, &error))?;
        let len = file.len().map_err(|error| FolderError::of_io(&path, &error))?;
        let buffer = Vec::new();
        let buffer_at = 0;
        let used = 0;
        let mut reader = Self { path, file, salt: 0, len, buffer, buffer_at, used };
        reader.fill(HEADER_BYTES)?;
        let header = Header::parse(&reader.buffer).map_err(|fault| match fault {
            HeaderFault::Format(format) => FolderError::new(
                &reader.path,
                format!(
                    "its format is {format}, this program reads {}; start the version that wrote it",
                    format::FORMAT
                ),
            ),
            HeaderFault::Damaged => reader.damaged("the header is damaged or not ours"),
        })?;
        if (header.kind, header.index) != (kind, index) {
            return Err(reader.damaged("the header is that of another file"));
        }
        reader.salt = header.salt;
        reader.used = HEADER_BYTES;
        Ok(reader)
    }

    /// Next frame; `None` where no whole frame begins. The offset stays there.
    fn next_frame(&mut self) -> Result<Option<Frame<'_>>, FolderError> {
        self.fill(FRAME_BYTES)?;
        let Some(len) = format::frame_len(&self.buffer[self.used..], self.salt) else {
            return Ok(None);
        };
        self.fill(len)?;
        let Some(sequence) = format::check_frame(&self.buffer[self.used..], self.salt) else {
            return Ok(None);
        };
        let start = self.used + FRAME_BYTES;
        self.used += len;
        Ok(Some(Frame { sequence, payload: &self.buffer[start..self.used] }))
    }

    /// Offset of the first byte that was not read as a frame.
    fn offset(&self) -> u64 {
        self.buffer_at + as_u64(self.used)
    }

    /// Reads what follows the offset, without the zeros at the end.
    fn rest(&self) -> Result<Vec<u8>, FolderError> {
        let at = self.offset();
        let mut bytes = self.read(at, self.len.saturating_sub(at))?;
        bytes.truncate(format::used_len(&bytes));
        Ok(bytes)
    }

    fn read(&self, at: u64, len: u64) -> Result<Vec<u8>, FolderError> {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        let read = self.file.read_at(&mut bytes, at);
        read.map_err(|error| FolderError::of_io(&self.path, &error))?;
        Ok(bytes)
    }

    fn damaged(&self, problem: &str) -> FolderError {
        damaged(&self.path, self.offset(), problem)
    }

    /// Reads on until the buffer has `bytes` that are not used, or the file ends.
    fn fill(&mut self, bytes: usize) -> Result<(), FolderError> {
        if self.buffer.len() - self.used >= bytes {
            return Ok(());
        }
        self.buffer.drain(..self.used);
        self.buffer_at += as_u64(self.used);
        self.used = 0;
        let at = self.buffer_at + as_u64(self.buffer.len());
        let wanted = as_u64(bytes.max(READ_BYTES) - self.buffer.len());
        let more = self.read(at, wanted.min(self.len.saturating_sub(at)))?;
        self.buffer.extend_from_slice(&more);
        Ok(())
    }
}

/// Applies the changes of a payload; `None` where it is malformed.
fn apply(entries: &mut Entries, payload: &[u8]) -> Option<()> {
    for (key, value) in format::parse_changes(payload)? {
        match value {
            Some(value) => {
                entries.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            }
            None => {
                entries.remove(key);
            }
        }
    }
    Some(())
}

/// A segment that was read to the end of its frames.
#[derive(Debug)]
pub(super) struct Replayed {
    pub(super) file: Box<dyn DiskFile>,
    pub(super) salt: u64,
    /// The last frame and its offset, if there is one.
    pub(super) last_frame: Option<(u64, Vec<u8>)>,
    /// Offset behind the last frame.
    pub(super) end: u64,
    /// Bytes behind the last frame that are no frame, zeros at the end apart.
    pub(super) torn_bytes: usize,
    pub(super) next_sequence: u64,
}

/// Applies the frames of a segment, the first of which must have the number `next_sequence`.
///
/// # Errors
/// Where a whole frame follows a damaged one: this is no write that a crash cut short.
pub(super) fn replay_segment(
    disk: &dyn Disk,
    index: u64,
    mut next_sequence: u64,
    entries: &mut Entries,
) -> Result<Replayed, FolderError> {
    let mut reader = FrameReader::open(disk, Kind::Segment, index)?;
    let mut last_frame = None;
    loop {
        let at = reader.offset();
        let Some(Frame { sequence, payload }) = reader.next_frame()? else { break };
        let problem = if sequence != next_sequence {
            let lost = if last_frame.is_none() {
                "the end of the file before this"
            } else {
                "what stood between"
            };
            format!(
                "frame {sequence} is here in place of {next_sequence}: {lost} is damaged or gone"
            )
        } else if apply(entries, payload).is_none() {
            format!("frame {sequence} is malformed")
        } else {
            String::new()
        };
        if !problem.is_empty() {
            return Err(damaged(&reader.path, at, &problem));
        }
        last_frame = Some((at, reader.offset() - at));
        next_sequence += 1;
    }
    let end = reader.offset();
    let rest = reader.rest()?;
    if let Some(later) = format::find_frame(&rest, reader.salt) {
        let later = end + as_u64(later);
        return Err(reader.damaged(&format!(
            "frame {next_sequence} is damaged, and a whole frame follows at byte {later}"
        )));
    }
    let last_frame = match last_frame {
        Some((at, len)) => Some((at, reader.read(at, len)?)),
        None => None,
    };
    let file = reader.file;
    let salt = reader.salt;
    let torn_bytes = rest.len();
    Ok(Replayed { file, salt, last_frame, end, torn_bytes, next_sequence })
}

/// Reads a snapshot, and returns the sequence number of the first frame behind it and its length.
///
/// # Errors
/// Where any part of it is missing or damaged: a snapshot has its name only once it is whole.
pub(super) fn load_snapshot(
    disk: &dyn Disk,
    index: u64,
    entries: &mut Entries,
) -> Result<(u64, u64), FolderError> {
    let mut reader = FrameReader::open(disk, Kind::Snapshot, index)?;
    for expected in 0.. {
        let Some(Frame { sequence, payload }) = reader.next_frame()? else { break };
        if sequence == END {
            let end = SnapshotEnd::parse(payload);
            let is_whole = reader.offset() == reader.len;
            let end = end.filter(|end| is_whole && end.entries == as_u64(entries.len()));
            let Some(end) = end else { break };
            return Ok((end.sequence + 1, reader.len));
        }
        if sequence != expected || apply(entries, payload).is_none() {
            break;
        }
    }
    Err(reader.damaged("the snapshot is damaged"))
}

pub(super) fn damaged(path: &Path, offset: u64, problem: &str) -> FolderError {
    FolderError::new(path, format!("at byte {offset}: {problem}; {RESTORE}"))
}

pub(super) fn as_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
