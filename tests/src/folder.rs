//! Folders for what a test and its servers keep.

use std::path::Path;

use rustix::fs::statvfs;
use tempfile::TempDir;

/// A file system in memory, as every Linux has it; a container's may be small.
const MEMORY: &str = "/dev/shm";

/// Free bytes that it must have.
const ROOM: u64 = 4 << 30;

/// Returns a new folder, which is removed when dropped: in memory if that has room, or where
/// `TMPDIR` says. What a killed process wrote is there in both; and a disk takes longer for the
/// thousand files of a PostgreSQL than the test for all else.
///
/// # Panics
/// If it cannot be made.
pub fn new() -> TempDir {
    let is_chosen = std::env::var_os("TMPDIR").is_some();
    let in_memory = if is_chosen || free(Path::new(MEMORY)) < ROOM {
        None
    } else {
        TempDir::new_in(MEMORY).ok()
    };
    in_memory.unwrap_or_else(|| TempDir::new().expect("a folder"))
}

/// Free bytes of a file system; 0 if it cannot be read.
fn free(path: &Path) -> u64 {
    statvfs(path).map_or(0, |found| found.f_bavail * found.f_frsize)
}
