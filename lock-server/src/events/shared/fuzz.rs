//! Entries of the shared stream, for the fuzz target of replies.

use redis::Value;

use super::entries;

/// Reads a reply as that of a read and as that of a range.
pub(crate) fn entries(value: &Value) {
    for entry in entries::of_read(value.clone()).into_iter().chain(entries::of_range(value.clone()))
    {
        assert!(entry.id.to_string().parse() == Ok(entry.id) && entry.before() <= entry.id);
    }
}
