//! The thread beside the writer: it prepares the next segment and replaces old ones by a snapshot.
//!
//! It reads what it replaces from the files, so the log keeps no copy of the entries in memory and
//! appends continue meanwhile. Each step leaves a folder that [`super::recovery`] reads as the same
//! entries: a file gets its name once it is whole and durable, and a file is removed once the name
//! of its replacement is durable.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use service_kit::data_file::FolderError;

use super::disk::Disk;
use super::format::{self, END, FRAME_BYTES, HEADER_BYTES, Header, Kind, SnapshotEnd};
use super::reader::{self, Entries, as_u64};
use super::segment::{Segment, random_salt};
use super::{LogOptions, names};

/// Pause after a failure before the next attempt.
const RETRY: Duration = Duration::from_secs(1);
/// Payload of one frame of a snapshot, roughly.
const FRAME_PAYLOAD: usize = 256 << 10;
/// Bytes of a snapshot between two syncs: a large sync would delay those of the writer.
const SYNC_BYTES: u64 = 2 << 20;

/// The newest snapshot; number 0 stands for none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Snapshot {
    /// Number of the last segment that it replaces.
    pub(super) index: u64,
    pub(super) bytes: u64,
    /// Sequence number of the first frame behind it.
    pub(super) next_sequence: u64,
}

/// A segment that is not appended to any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClosedSegment {
    pub(super) index: u64,
    /// Offset behind its last frame.
    pub(super) end: u64,
    /// Sequence number of the first frame behind it.
    pub(super) next_sequence: u64,
}

/// State that writer and keeper share.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    desk: Mutex<Desk>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Desk {
    spare: Option<Segment>,
    /// At most as many as spares were taken since the keeper last read it.
    closed: Vec<ClosedSegment>,
    is_stopped: bool,
}

impl Exchange {
    /// Takes the prepared segment, if there is one, in exchange for the one that is full.
    pub(super) fn swap(&self, full: ClosedSegment) -> Option<Segment> {
        let mut desk = self.desk();
        let spare = desk.spare.take()?;
        desk.closed.push(full);
        self.changed.notify_all();
        Some(spare)
    }

    pub(super) fn stop(&self) {
        self.desk().is_stopped = true;
        self.changed.notify_all();
    }

    #[cfg(test)]
    pub(super) fn has_spare(&self) -> bool {
        self.desk().spare.is_some()
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Keeper {
    disk: Arc<dyn Disk>,
    options: LogOptions,
    exchange: Arc<Exchange>,
    snapshot: Snapshot,
    closed: Vec<ClosedSegment>,
    /// Number of the segment to prepare next.
    next_index: u64,
}

impl Keeper {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        options: LogOptions,
        exchange: Arc<Exchange>,
        snapshot: Snapshot,
        closed: Vec<ClosedSegment>,
        active: u64,
    ) -> Self {
        Self { disk, options, exchange, snapshot, closed, next_index: active + 1 }
    }

    /// Works until [`Exchange::stop`].
    pub(super) fn run(mut self) {
        let mut failed = false;
        while self.wait(failed) {
            failed = !self.prepare();
            if self.is_snapshot_due() {
                failed |= !self.compact();
            }
        }
    }

    /// Waits for work; returns `false` once the keeper is to stop.
    fn wait(&mut self, failed: bool) -> bool {
        let exchange = self.exchange.clone();
        let mut desk = exchange.desk();
        if failed && !desk.is_stopped {
            let pause = exchange.changed.wait_timeout(desk, RETRY);
            desk = pause.unwrap_or_else(PoisonError::into_inner).0;
        }
        loop {
            if desk.is_stopped {
                return false;
            }
            self.closed.append(&mut desk.closed);
            if desk.spare.is_none() || self.is_snapshot_due() {
                return true;
            }
            desk = exchange.changed.wait(desk).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes the next segment if the last one that was made is in use. Returns whether there is
    /// one.
    fn prepare(&mut self) -> bool {
        if self.exchange.desk().spare.is_some() {
            return true;
        }
        match Segment::create(&*self.disk, self.next_index, self.options.segment_bytes) {
            Ok(spare) => {
                self.next_index += 1;
                self.exchange.desk().spare = Some(spare);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the next file of the log cannot be made; trying again");
                false
            }
        }
    }

    fn is_snapshot_due(&self) -> bool {
        let closed: u64 = self.closed.iter().map(|segment| segment.end).sum();
        let live = self.snapshot.bytes;
        !self.closed.is_empty()
            && closed >= self.options.snapshot_bytes_min.max(live.saturating_mul(4))
    }

    #[cfg(test)]
    pub(super) fn add_closed(&mut self, closed: Vec<ClosedSegment>) {
        self.closed.extend(closed);
    }

    /// Makes a snapshot, and returns whether that went well.
    pub(super) fn compact(&mut self) -> bool {
        match self.replace() {
            Ok(snapshot) => {
                self.snapshot = snapshot;
                self.closed.clear();
                true
            }
            Err(error) => {
                tracing::error!(%error, "no snapshot of the log can be made; the log grows");
                false
            }
        }
    }

    /// Replaces the snapshot and the closed segments by a new snapshot.
    ///
    /// The writer may fill several segments meanwhile, so the next one is made whenever it is
    /// needed.
    fn replace(&mut self) -> Result<Snapshot, FolderError> {
        let disk = &*self.disk.clone();
        let mut entries = Entries::new();
        if self.snapshot.index > 0 {
            reader::load_snapshot(disk, self.snapshot.index, &mut entries)?;
        }
        let mut last = self.snapshot;
        let mut prepared = true;
        for segment in self.closed.clone() {
            prepared = prepared && self.prepare();
            let read =
                reader::replay_segment(disk, segment.index, last.next_sequence, &mut entries)?;
            if (read.end, read.next_sequence) != (segment.end, segment.next_sequence) {
                let path = disk.path(&names::file_name(Kind::Segment, segment.index));
                return Err(reader::damaged(&path, read.end, "the end of the segment is damaged"));
            }
            last =
                Snapshot { index: segment.index, bytes: 0, next_sequence: segment.next_sequence };
        }
        let io_error = |error| FolderError::of_io(&disk.path(""), &error);
        let header = Header { kind: Kind::Snapshot, index: last.index, salt: random_salt() };
        let bytes = write_snapshot(disk, &header, last.next_sequence - 1, &entries, || {
            prepared = prepared && self.prepare();
        });
        last.bytes = bytes.map_err(io_error)?;
        for name in self.replaced() {
            // What cannot be removed now is removed when the folder is opened.
            if let Err(error) = disk.remove(&name) {
                tracing::warn!(%error, file = %disk.path(&name).display(), "cannot be removed");
            }
        }
        Ok(last)
    }

    /// Names of the files that the next snapshot replaces, oldest first.
    fn replaced(&self) -> Vec<String> {
        let snapshot = (self.snapshot.index > 0).then_some((Kind::Snapshot, self.snapshot.index));
        let segments = self.closed.iter().map(|segment| (Kind::Segment, segment.index));
        snapshot
            .into_iter()
            .chain(segments)
            .map(|(kind, index)| names::file_name(kind, index))
            .collect()
    }
}

/// Writes a snapshot and gives it its name once it is durable. Returns its length. `between` runs
/// after each frame.
fn write_snapshot(
    disk: &dyn Disk,
    header: &Header,
    sequence: u64,
    entries: &Entries,
    mut between: impl FnMut(),
) -> std::io::Result<u64> {
    let unfinished = names::unfinished(Kind::Snapshot, header.index);
    let file = disk.create(&unfinished)?;
    file.write_at(&header.encode(), 0)?;
    let mut end = as_u64(HEADER_BYTES);
    let mut synced = 0;
    let mut write = |frame: &mut Vec<u8>, sequence: u64| -> std::io::Result<()> {
        format::seal_frame(frame, header.salt, sequence);
        file.write_at(frame, end)?;
        end += as_u64(frame.len());
        frame.truncate(FRAME_BYTES);
        if end - synced >= SYNC_BYTES {
            synced = end;
            file.sync_data()?;
        }
        between();
        Ok(())
    };
    let mut frame = vec![0; FRAME_BYTES];
    let mut frames = 0;
    for (key, value) in entries {
        format::encode_change(&mut frame, key, Some(value));
        if frame.len() >= FRAME_PAYLOAD {
            write(&mut frame, frames)?;
            frames += 1;
        }
    }
    write(&mut frame, frames)?;
    let last = SnapshotEnd { sequence, entries: as_u64(entries.len()) };
    frame.extend_from_slice(&last.encode());
    write(&mut frame, END)?;
    file.sync_data()?;
    disk.rename(&unfinished, &names::file_name(Kind::Snapshot, header.index))?;
    disk.sync_folder()?;
    Ok(end)
}
