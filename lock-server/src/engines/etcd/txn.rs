//! Transactions as etcd takes them. Everything here is without I/O.

use super::wire::{
    CREATE_REVISION, Compare, DeleteRequest, EQUAL, GREATER, LESS, MOD_REVISION, Operand,
    Operation, PutRequest, RangeRequest, Txn, TxnStep, VALUE,
};
use crate::engines::contract::Version;

/// From one key to another, that one excluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) begin: String,
    pub(super) end: String,
}

impl Range {
    /// The keys that begin with a text.
    pub(super) fn prefixed(begin: String) -> Self {
        let mut end = begin.clone();
        // No text of ours ends with the highest character.
        let last =
            end.pop().map_or('\u{1}', |last| char::from_u32(u32::from(last) + 1).unwrap_or(last));
        end.push(last);
        Self { begin, end }
    }

    /// A request for its keys.
    fn request(&self) -> RangeRequest {
        let key = self.begin.clone();
        let range_end = self.end.clone();
        RangeRequest { key, range_end, ..RangeRequest::default() }
    }
}

impl Txn {
    /// This transaction as a step of another one.
    pub(super) fn step(self) -> TxnStep {
        step(Operation::Txn(self))
    }

    /// Steps that etcd counts on this level.
    pub(super) fn width(&self) -> usize {
        self.compare.len().max(self.success.len()).max(self.failure.len())
    }
}

fn step(operation: Operation) -> TxnStep {
    TxnStep { operation: Some(operation) }
}

/// Steps in branches of at most `width`, where there are more than that.
pub(super) fn branched(mut steps: Vec<TxnStep>, width: usize) -> Vec<TxnStep> {
    let mut branches = Vec::new();
    while steps.len() > width {
        let rest = steps.split_off(width);
        branches.push(Txn { success: steps, ..Txn::default() }.step());
        steps = rest;
    }
    if branches.is_empty() {
        return steps;
    }
    branches.push(Txn { success: steps, ..Txn::default() }.step());
    branches
}

/// The key has this value.
pub(super) fn says(key: &str, value: &[u8]) -> Compare {
    compare_value(key, EQUAL, value)
}

fn compare_value(key: &str, comparison: i32, value: &[u8]) -> Compare {
    let operand = Some(Operand::Value(value.to_vec()));
    Compare { comparison, target: VALUE, key: key.to_owned(), operand, ..Compare::default() }
}

/// There is no such key.
pub(super) fn absent(key: &str) -> Compare {
    written_by(key, 0)
}

/// The key was last written by this revision; 0 where it must not exist.
pub(super) fn written_by(key: &str, revision: u64) -> Compare {
    let operand = Some(Operand::ModRevision(revision));
    Compare { target: MOD_REVISION, key: key.to_owned(), operand, ..Compare::default() }
}

/// There is no key in the range.
pub(super) fn nothing_in(range: &Range) -> Compare {
    let key = range.begin.clone();
    let range_end = range.end.clone();
    let operand = Some(Operand::CreateRevision(0));
    Compare { comparison: EQUAL, target: CREATE_REVISION, key, operand, range_end }
}

/// The record under a key has this version, which its value begins with: the value lies between
/// that and the next version.
pub(super) fn has_version(key: &str, version: Version) -> Vec<Compare> {
    if version == Version::ABSENT {
        return vec![absent(key)];
    }
    let mut compare = vec![compare_value(key, GREATER, &version.0.to_be_bytes())];
    if let Some(next) = version.0.checked_add(1) {
        compare.push(compare_value(key, LESS, &next.to_be_bytes()));
    }
    compare
}

/// Writes a key.
pub(super) fn put(key: &str, value: &[u8]) -> TxnStep {
    put_on(key, value, 0)
}

/// Writes a key that hangs on an etcd lease; 0 for none.
pub(super) fn put_on(key: &str, value: &[u8], lease: u64) -> TxnStep {
    step(Operation::Put(PutRequest { key: key.to_owned(), value: value.to_vec(), lease }))
}

/// Deletes a key.
pub(super) fn delete(key: &str) -> TxnStep {
    step(Operation::Delete(DeleteRequest { key: key.to_owned(), range_end: String::new() }))
}

/// Deletes the keys of a range.
pub(super) fn delete_all(range: &Range) -> TxnStep {
    let key = range.begin.clone();
    let range_end = range.end.clone();
    step(Operation::Delete(DeleteRequest { key, range_end }))
}

/// Reads a key.
pub(super) fn get(key: &str) -> TxnStep {
    step(Operation::Range(RangeRequest { key: key.to_owned(), ..RangeRequest::default() }))
}

/// Reads the keys of a range.
pub(super) fn get_all(range: &Range) -> TxnStep {
    step(Operation::Range(range.request()))
}

/// The same of the state after a revision; 0 for the newest. A step that does not read stays as it
/// is.
pub(super) fn as_of(mut step: TxnStep, revision: u64) -> TxnStep {
    if let Some(Operation::Range(range)) = &mut step.operation {
        range.revision = revision;
    }
    step
}

/// Counts the keys of a range.
pub(super) fn count(range: &Range) -> TxnStep {
    step(Operation::Range(RangeRequest { count_only: true, ..range.request() }))
}

/// Reads the first `limit` keys of a range in the order of their names.
pub(super) fn get_page(range: &Range, limit: usize, keys_only: bool) -> TxnStep {
    step(Operation::Range(page(range, limit, keys_only)))
}

/// A range request: the first `limit` keys of the range in the order of their names.
pub(super) fn page(range: &Range, limit: usize, keys_only: bool) -> RangeRequest {
    RangeRequest { limit: limit as u64, keys_only, ..range.request() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_a_range_of_values() {
        let sides = |version| {
            let compare = has_version("a", Version(version));
            compare.into_iter().map(|side| (side.comparison, side.operand)).collect::<Vec<_>>()
        };
        let value = |version: u64| Some(Operand::Value(version.to_be_bytes().to_vec()));
        assert_eq!(sides(7), [(GREATER, value(7)), (LESS, value(8))]);
        assert_eq!(sides(u64::MAX), [(GREATER, value(u64::MAX))]);
        assert_eq!(sides(0), [(EQUAL, Some(Operand::ModRevision(0)))]);
    }

    #[test]
    fn branches_have_a_width() {
        let steps: Vec<TxnStep> = (0..70).map(|at| get(&at.to_string())).collect();
        assert_eq!(branched(steps.clone(), 70), steps);
        let branches = branched(steps.clone(), 30);
        assert_eq!(branches.len(), 3);
        let within = branches.into_iter().flat_map(|branch| match branch.operation {
            Some(Operation::Txn(txn)) => txn.success,
            other => panic!("{other:?}"),
        });
        assert_eq!(within.collect::<Vec<_>>(), steps);
    }
}
