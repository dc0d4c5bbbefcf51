//! A file that batches are appended to.

use std::io;

use super::disk::{Disk, DiskFile};
use super::format::{self, HEADER_BYTES, Header, Kind};
use super::names;
use super::reader::as_u64;

/// Zeros of one write.
const ZEROS: usize = 1 << 20;

/// A segment whose name is durable and whose header is written.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) file: Box<dyn DiskFile>,
    pub(super) index: u64,
    pub(super) salt: u64,
    /// Offset behind the last frame.
    pub(super) end: u64,
}

/// An append that was not acknowledged by the disk.
#[derive(Debug)]
pub(super) enum AppendFault {
    /// The frame is not in the file, now or after a crash.
    NotWritten(io::Error),
    /// The frame may be in the file after a crash.
    Unknown(io::Error),
}

impl Segment {
    /// Makes an empty segment of this length, ready for use.
    pub(super) fn create(disk: &dyn Disk, index: u64, len: u64) -> io::Result<Self> {
        let unfinished = names::unfinished(Kind::Segment, index);
        let file = disk.create(&unfinished)?;
        let salt = random_salt();
        let header = Header { kind: Kind::Segment, index, salt };
        file.write_at(&header.encode(), 0)?;
        let end = as_u64(HEADER_BYTES);
        preallocate(&*file, end, len)?;
        file.sync_data()?;
        disk.rename(&unfinished, &names::file_name(Kind::Segment, index))?;
        disk.sync_folder()?;
        Ok(Self { file, index, salt, end })
    }

    /// Numbers the frame, writes it, and makes it durable.
    pub(super) fn append(&mut self, frame: &mut [u8], sequence: u64) -> Result<(), AppendFault> {
        format::seal_frame(frame, self.salt, sequence);
        if let Err(error) = self.file.write_at(frame, self.end) {
            return Err(self.cut(error));
        }
        // After a failed sync the kernel may have dropped what it could not write, and a second
        // sync would report success for bytes that are lost.
        self.file.sync_data().map_err(AppendFault::Unknown)?;
        self.end += as_u64(frame.len());
        Ok(())
    }

    /// Removes what a failed write left behind the last frame.
    fn cut(&self, error: io::Error) -> AppendFault {
        let cut = self.file.set_len(self.end).and_then(|()| self.file.sync_data());
        match cut {
            Ok(()) => AppendFault::NotWritten(error),
            Err(second) => AppendFault::Unknown(io::Error::other(format!(
                "{error}; the file could not be cut back either: {second}"
            ))),
        }
    }
}

/// Fills the file with zeros up to `len`: a later sync then has no metadata to write. Space that is
/// only reserved (`fallocate`) would save less, because its first use changes metadata.
pub(super) fn preallocate(file: &dyn DiskFile, from: u64, len: u64) -> io::Result<()> {
    let missing = |at: u64| usize::try_from(len.saturating_sub(at)).unwrap_or(ZEROS).min(ZEROS);
    let zeros = vec![0; missing(from)];
    let mut at = from;
    while at < len {
        let bytes = missing(at);
        file.write_at(&zeros[..bytes], at)?;
        at += as_u64(bytes);
    }
    Ok(())
}

pub(super) fn random_salt() -> u64 {
    // Sixteen hexadecimal digits are always a number.
    u64::from_str_radix(&service_kit::ids::random_hex(8), 16).unwrap_or_default()
}
