//! Opening: the live entries are read, and what a crash left unfinished is removed.
//!
//! The files are a snapshot, which replaces all segments up to its number, and the segments behind
//! it. Only the last write can have been cut short by a crash, since each write waits for the one
//! before to be durable. So a damaged frame at the end of the log is removed, and one that any
//! whole frame follows is an error.

use std::path::Path;

use service_kit::data_file::FolderError;

use super::disk::Disk;
use super::format::Kind;
use super::keeper::{ClosedSegment, Snapshot};
use super::reader::{self, Entries, Replayed};
use super::segment::{Segment, preallocate};
use super::{LogOptions, names};

/// A log as it was found, ready for appends.
pub(super) struct Recovered {
    pub(super) entries: Entries,
    pub(super) snapshot: Snapshot,
    pub(super) closed: Vec<ClosedSegment>,
    pub(super) active: Segment,
    pub(super) next_sequence: u64,
}

/// Names of the files of the log, by their role.
#[derive(Default)]
struct Found {
    /// Number of the newest snapshot; 0 if there is none.
    snapshot: u64,
    /// Numbers of the segments behind the snapshot, rising.
    segments: Vec<u64>,
    /// Files that a crash left between two steps: unfinished ones, and those that the snapshot
    /// replaces.
    leftovers: Vec<String>,
}

/// Reads the files and makes the last one ready for appends.
///
/// # Errors
/// [`FolderError`], which names the file, the offset and what to do. Nothing was changed then.
pub(super) fn recover(disk: &dyn Disk, options: &LogOptions) -> Result<Recovered, FolderError> {
    let found = find(disk)?;
    let mut entries = Entries::new();
    let (first_sequence, bytes) = match found.snapshot {
        0 => (1, 0),
        index => reader::load_snapshot(disk, index, &mut entries)?,
    };
    let snapshot = Snapshot { index: found.snapshot, bytes, next_sequence: first_sequence };
    let mut next_sequence = first_sequence;
    let mut closed = Vec::new();
    let mut last: Option<(u64, Replayed)> = None;
    let mut unused = Vec::new();
    for index in found.segments {
        let segment = reader::replay_segment(disk, index, next_sequence, &mut entries)?;
        next_sequence = segment.next_sequence;
        if segment.last_frame.is_none() && last.is_some() {
            unused.push(names::file_name(Kind::Segment, index));
            continue;
        }
        if let Some(name) = unused.first() {
            let problem = format!("no frame is here, and segment {index} has some");
            return Err(reader::damaged(&disk.path(name), 0, &problem));
        }
        if let Some((index, Replayed { end, next_sequence, .. })) = last.replace((index, segment)) {
            closed.push(ClosedSegment { index, end, next_sequence });
        }
    }
    // Segments are made before they are needed; those that are not needed yet are made again. One
    // after the other, so that a crash leaves no gap between segments.
    for name in found.leftovers.iter().chain(unused.iter().rev()) {
        let removed = disk.remove(name).and_then(|()| disk.sync_folder());
        removed.map_err(|error| FolderError::of_io(&disk.path(name), &error))?;
    }
    let active = match last {
        Some((index, segment)) => reopen(disk, index, segment, options)?,
        None => Segment::create(disk, 1, options.segment_bytes)
            .map_err(|error| FolderError::of_io(&disk.path(""), &error))?,
    };
    disk.sync_folder().map_err(|error| FolderError::of_io(&disk.path(""), &error))?;
    Ok(Recovered { entries, snapshot, closed, active, next_sequence })
}

fn find(disk: &dyn Disk) -> Result<Found, FolderError> {
    let names = disk.list().map_err(|error| FolderError::of_io(&disk.path(""), &error))?;
    let mut found = Found::default();
    for name in &names {
        if Path::new(name).extension().is_some_and(|extension| extension == "redb") {
            return Err(FolderError::new(
                &disk.path(name),
                "version 0.1 wrote it, and this version does not read it; nothing was changed. Start \
                 0.1 until no lease is held, then stop it and move the file away; name your guards \
                 with --guard, so that tokens continue above their marks, or begin with an acquire \
                 whose min_token is the last token that 0.1 gave",
            ));
        }
        if let Some((Kind::Snapshot, index)) = names::parse(name) {
            found.snapshot = found.snapshot.max(index);
        }
    }
    for name in names {
        match names::parse(&name) {
            Some((Kind::Segment, index)) if index > found.snapshot => found.segments.push(index),
            Some((Kind::Snapshot, index)) if index == found.snapshot => {}
            Some(_) => found.leftovers.push(name),
            None if names::is_unfinished(&name) => found.leftovers.push(name),
            None => {}
        }
    }
    found.segments.sort_unstable();
    let is_new = found.snapshot == 0 && found.segments.is_empty();
    let last = found.segments.last().copied().unwrap_or(found.snapshot + 1);
    let missing = (found.snapshot + 1..=last).find(|index| !found.segments.contains(index));
    match missing.filter(|_| !is_new) {
        None => Ok(found),
        Some(index) => Err(FolderError::new(
            &disk.path(&names::file_name(Kind::Segment, index)),
            "the file is missing; nothing was changed; restore the folder from a backup",
        )),
    }
}

/// Makes the last segment ready: what follows its last frame is removed.
fn reopen(
    disk: &dyn Disk,
    index: u64,
    segment: Replayed,
    options: &LogOptions,
) -> Result<Segment, FolderError> {
    let Replayed { file, salt, last_frame, end, torn_bytes, next_sequence } = segment;
    let path = disk.path(&names::file_name(Kind::Segment, index));
    let io_error = |error| FolderError::of_io(&path, &error);
    if torn_bytes > 0 {
        tracing::warn!(
            file = %path.display(), offset = end, bytes = torn_bytes, frame = next_sequence,
            "the last write to the log is not whole, and is removed: the process or the machine \
             stopped before it was acknowledged, or the disk has damaged it since"
        );
        file.set_len(end).map_err(io_error)?;
    }
    if let Some((at, frame)) = last_frame {
        // An earlier process may have died between the write and its sync, or after a failed sync:
        // then the frame is in memory alone, and the kernel may believe that it is on the disk.
        file.write_at(&frame, at).map_err(io_error)?;
    }
    let len = file.len().map_err(io_error)?;
    if let Err(error) = preallocate(&*file, len, options.segment_bytes) {
        tracing::warn!(%error, file = %path.display(), "no space can be reserved for the log");
        file.set_len(end).map_err(io_error)?;
    }
    file.sync_data().map_err(io_error)?;
    Ok(Segment { file, index, salt, end })
}
