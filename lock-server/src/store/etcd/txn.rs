//! Transactions in the gateway's words. Everything here is without I/O.

use serde_json::{Value, json};

use super::wire::encoded;

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Compare(Value);

impl Compare {
    /// The key was last written by that revision; 0 where it must not exist.
    pub(super) fn unchanged(key: &str, mod_revision: u64) -> Self {
        Self(json!({
            "key": encoded(key), "target": "MOD", "result": "EQUAL",
            "mod_revision": mod_revision.to_string(),
        }))
    }

    /// The key is the one that came into being by that revision; 0 where it must not exist.
    pub(super) fn created_by(key: &str, create_revision: u64) -> Self {
        Self(json!({
            "key": encoded(key), "target": "CREATE", "result": "EQUAL",
            "create_revision": create_revision.to_string(),
        }))
    }

    /// The key hangs on this etcd lease. The ids of those are random, and so this is the very key that
    /// was read, also where an older backup was put back and revisions are given a second time.
    pub(super) fn hangs_on(key: &str, lease: u64) -> Self {
        Self(json!({
            "key": encoded(key), "target": "LEASE", "result": "EQUAL", "lease": lease.to_string(),
        }))
    }

    /// The key has this value.
    pub(super) fn says(key: &str, value: &str) -> Self {
        Self(json!({
            "key": encoded(key), "target": "VALUE", "result": "EQUAL", "value": encoded(value),
        }))
    }

    /// There is no such key.
    pub(super) fn absent(key: &str) -> Self {
        Self::created_by(key, 0)
    }

    /// There is a key of that name.
    pub(super) fn exists(key: &str) -> Self {
        Self(json!({
            "key": encoded(key), "target": "CREATE", "result": "GREATER", "create_revision": "0",
        }))
    }

    /// There is no key in the range.
    pub(super) fn nothing_in(range: &Range) -> Self {
        // An empty range is compared as one key with zero values; a full one fails at its first.
        Self(json!({
            "key": encoded(&range.begin), "range_end": encoded(&range.end),
            "target": "CREATE", "result": "EQUAL", "create_revision": "0",
        }))
    }

    /// No key of the range came into being before that revision. The range must not be empty.
    pub(super) fn none_earlier_in(range: &Range, create_revision: u64) -> Self {
        Self(json!({
            "key": encoded(&range.begin), "range_end": encoded(&range.end),
            "target": "CREATE", "result": "GREATER",
            "create_revision": create_revision.saturating_sub(1).to_string(),
        }))
    }
}

/// From one key to another, that one excluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) begin: String,
    pub(super) end: String,
}

/// A step of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Op(Value);

/// Which of an existing key's leases a put leaves it with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    /// It stays until it is deleted.
    Nothing,
    /// It hangs on this etcd lease.
    Lease(u64),
    /// It hangs on what it hung on before. The key must exist.
    TheSame,
}

impl Op {
    /// Writes a key.
    pub(super) fn put(key: &str, value: &str, on: On) -> Self {
        let mut put = json!({ "key": encoded(key), "value": encoded(value) });
        match on {
            On::Nothing => {}
            On::Lease(id) => put["lease"] = json!(id.to_string()),
            On::TheSame => put["ignore_lease"] = json!(true),
        }
        Self(json!({ "requestPut": put }))
    }

    /// Deletes a key.
    pub(super) fn delete(key: &str) -> Self {
        Self(json!({ "requestDeleteRange": { "key": encoded(key) } }))
    }

    /// Reads a key.
    pub(super) fn get(key: &str) -> Self {
        Self(json!({ "requestRange": { "key": encoded(key) } }))
    }

    /// Reads the keys of a range that came into being first.
    pub(super) fn oldest(range: &Range, limit: u64) -> Self {
        Self(json!({ "requestRange": {
            "key": encoded(&range.begin), "range_end": encoded(&range.end),
            "limit": limit.to_string(), "sort_order": "ASCEND", "sort_target": "CREATE",
        }}))
    }

    /// Counts the keys of a range.
    pub(super) fn count(range: &Range) -> Self {
        Self(json!({ "requestRange": {
            "key": encoded(&range.begin), "range_end": encoded(&range.end), "count_only": true,
        }}))
    }
}

/// A transaction: where every condition holds the one list runs, else the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Txn {
    pub(super) compare: Vec<Compare>,
    pub(super) success: Vec<Op>,
    pub(super) failure: Vec<Op>,
}

impl Txn {
    /// Reads, all at one moment.
    pub(super) fn reading(ops: Vec<Op>) -> Self {
        Self { success: ops, ..Self::default() }
    }

    /// The body of the request.
    pub(super) fn body(&self) -> Value {
        let compare: Vec<&Value> = self.compare.iter().map(|compare| &compare.0).collect();
        let success: Vec<&Value> = self.success.iter().map(|op| &op.0).collect();
        let failure: Vec<&Value> = self.failure.iter().map(|op| &op.0).collect();
        json!({ "compare": compare, "success": success, "failure": failure })
    }
}

/// The body of a range request: the first `limit` keys of the range in the order of their names.
pub(super) fn page(range: &Range, limit: usize) -> Value {
    json!({
        "key": encoded(&range.begin), "range_end": encoded(&range.end), "limit": limit.to_string(),
    })
}

#[cfg(test)]
pub(super) mod model;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_strings_and_bytes_are_encoded() {
        let txn = Txn {
            compare: vec![
                Compare::unchanged("a", 7),
                Compare::hangs_on("a", 9),
                Compare::says("a", "v"),
            ],
            success: vec![Op::put("a", "v", On::Lease(u64::MAX >> 1))],
            failure: vec![Op::get("a")],
        };
        assert_eq!(
            txn.body(),
            json!({
                "compare": [
                    {"key": "YQ==", "target": "MOD", "result": "EQUAL", "mod_revision": "7"},
                    {"key": "YQ==", "target": "LEASE", "result": "EQUAL", "lease": "9"},
                    {"key": "YQ==", "target": "VALUE", "result": "EQUAL", "value": "dg=="},
                ],
                "success": [{"requestPut":
                    {"key": "YQ==", "value": "dg==", "lease": "9223372036854775807"}}],
                "failure": [{"requestRange": {"key": "YQ=="}}],
            })
        );
    }
}
