//! Assignment of groups to transactions, by the limits of etcd. Pure: no I/O.

use std::collections::HashSet;

use crate::engines::contract::{Change, Group, Key, Version, Write};

/// Steps per level of a transaction where it branches. Three levels of groups and their steps stay
/// below the 128 steps that etcd takes by default (`--max-txn-ops`), which it counts along each
/// path.
pub(crate) const WIDTH: usize = 30;
/// Most groups of one transaction.
const GROUPS_MAX: usize = WIDTH * WIDTH;
/// Most conditions or steps of a group that is sent with others.
pub(super) const SMALL: usize = 60;
/// Most conditions of a group that is sent alone.
pub(super) const LARGE: usize = 90;
/// Most records that the driver decides together: two conditions each.
pub(crate) const READS_MAX: usize = 40;
/// About how many bytes a transaction has. etcd takes 1.5 MiB by default (`--max-request-bytes`).
const BYTES_MAX: usize = 1_000_000;
/// About how many bytes a step has beside keys and values.
const STEP_BYTES: usize = 32;

/// Size of a group.
struct Size {
    width: usize,
    bytes: usize,
}

fn size_of(group: &Group) -> Size {
    let compares: usize = group
        .reads
        .iter()
        .map(|(_, version)| if *version == Version::ABSENT { 1 } else { 2 })
        .sum();
    let items = group.writes.iter().map(|write| write.items.len()).sum::<usize>();
    let steps = group.writes.len() * 2 + items + group.notify.len();
    let values: usize = group.writes.iter().map(bytes_of).sum();
    let keys: usize = group.reads.iter().map(|(key, _)| 4 * length_of(key)).sum();
    let width = compares.max(steps).max(group.reads.len());
    Size { width, bytes: (compares + steps) * STEP_BYTES + values + keys }
}

fn bytes_of(write: &Write) -> usize {
    let value = match &write.change {
        Change::Put { value, .. } => value.len(),
        Change::Keep | Change::Remove => 0,
    };
    let key = length_of(&write.key);
    let items = write.items.iter();
    let items = items.map(|(name, value)| key + name.len() + value.as_ref().map_or(0, Vec::len));
    value + items.sum::<usize>()
}

fn length_of(key: &Key) -> usize {
    match key {
        Key::Lock(lock) => lock.as_str().len() + STEP_BYTES,
        Key::Session(_) => 2 * STEP_BYTES,
    }
}

/// Distributes groups to transactions. No transaction has two groups with a record in common, and a
/// large group is alone.
pub(super) fn parts(groups: &[Group]) -> Vec<Vec<usize>> {
    let mut parts: Vec<Vec<usize>> = vec![Vec::new()];
    let mut keys = HashSet::<&Key>::new();
    let mut bytes = 0;
    let mut is_closed = false;
    for (at, group) in groups.iter().enumerate() {
        let size = size_of(group);
        let is_large = size.width > SMALL;
        let meets = group.reads.iter().any(|(key, _)| keys.contains(key));
        let count = parts.last().map_or(0, Vec::len);
        let is_full = count >= GROUPS_MAX || bytes + size.bytes > BYTES_MAX;
        if count > 0 && (is_closed || is_large || meets || is_full) {
            parts.push(Vec::new());
            (keys, bytes) = (HashSet::new(), 0);
        }
        is_closed = is_large;
        bytes += size.bytes;
        keys.extend(group.reads.iter().map(|(key, _)| key));
        if let Some(part) = parts.last_mut() {
            part.push(at);
        }
    }
    parts
}
