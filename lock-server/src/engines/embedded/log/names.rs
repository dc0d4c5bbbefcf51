//! Names of the log's files.

use super::format::Kind;

/// End of the name of a file that is not complete yet.
const UNFINISHED: &str = ".tmp";

/// Name of a file; numbers have as many digits as any, so that names sort as they do.
pub(super) fn file_name(kind: Kind, index: u64) -> String {
    match kind {
        Kind::Segment => format!("segment-{index:020}.log"),
        Kind::Snapshot => format!("snapshot-{index:020}.log"),
    }
}

/// Name of the file until it is complete.
pub(super) fn unfinished(kind: Kind, index: u64) -> String {
    file_name(kind, index) + UNFINISHED
}

/// Kind and number of a complete file; `None` for other names.
pub(super) fn parse(name: &str) -> Option<(Kind, u64)> {
    let (kind, rest) = if let Some(rest) = name.strip_prefix("segment-") {
        (Kind::Segment, rest)
    } else {
        (Kind::Snapshot, name.strip_prefix("snapshot-")?)
    };
    let index = rest.strip_suffix(".log")?.parse().ok()?;
    (file_name(kind, index) == name).then_some((kind, index))
}

/// True if a crash left this file before it was complete.
pub(super) fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(UNFINISHED).is_some_and(|name| parse(name).is_some())
}
