//! Entries of the shared stream, for the fuzz target of replies.

use redis::Value;

use super::entries;

/// Reads a reply as that of an append and as that of a range.
pub(crate) fn entries(value: &Value) {
    let appended = entries::of_exchange(value.clone()).map(|reply| reply.batches);
    for entry in appended.into_iter().flatten().chain(entries::of_range(value.clone())) {
        assert!(entry.id.to_string().parse() == Ok(entry.id) && entry.before() <= entry.id);
    }
}
