//! The part of etcd that judges conditions, for tests of transactions: as its `applyCompare` does.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::{Compare, Txn};

/// What is known of each key.
pub(in crate::store::etcd) type Keyspace = BTreeMap<String, Row>;

/// A key's revisions, the one that created it and the one that wrote it last, and its value.
#[derive(Clone, Debug, Default)]
pub(in crate::store::etcd) struct Row {
    pub(in crate::store::etcd) created: u64,
    pub(in crate::store::etcd) written: u64,
    pub(in crate::store::etcd) value: String,
}

fn text(value: &Value) -> Option<String> {
    let bytes = STANDARD.decode(value.as_str()?).unwrap();
    Some(String::from_utf8(bytes).unwrap())
}

impl Compare {
    fn holds(&self, keyspace: &Keyspace) -> bool {
        let key = text(&self.0["key"]).unwrap();
        let found: Vec<Row> = match text(&self.0["range_end"]) {
            Some(end) => keyspace.range(key..end).map(|(_, row)| row.clone()).collect(),
            None => keyspace.get(&key).cloned().into_iter().collect(),
        };
        if self.0["target"].as_str() == Some("VALUE") {
            // A key that is not there has no value, not an empty one.
            return found.iter().any(|row| Some(&row.value) == text(&self.0["value"]).as_ref());
        }
        // A range without keys is compared as one key with zero values.
        let found = if found.is_empty() { vec![Row::default()] } else { found };
        found.into_iter().all(|row| {
            let (actual, field) = match self.0["target"].as_str() {
                Some("CREATE") => (row.created, "create_revision"),
                Some("MOD") => (row.written, "mod_revision"),
                other => panic!("no model of {other:?}"),
            };
            let expected: u64 = self.0[field].as_str().unwrap().parse().unwrap();
            match self.0["result"].as_str() {
                Some("EQUAL") => actual == expected,
                Some("GREATER") => actual > expected,
                other => panic!("no model of {other:?}"),
            }
        })
    }
}

impl Txn {
    /// Whether etcd would run the first list.
    pub(in crate::store::etcd) fn succeeds(&self, keyspace: &Keyspace) -> bool {
        self.compare.iter().all(|compare| compare.holds(keyspace))
    }
}
