//! The part of etcd that judges conditions, for tests of transactions: as its `applyCompare` does.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::{Compare, Txn};

/// Each key with the revisions that created it and wrote it last.
pub(in crate::store::etcd) type Keyspace = BTreeMap<String, (u64, u64)>;

fn text(value: &Value) -> Option<String> {
    let bytes = STANDARD.decode(value.as_str()?).unwrap();
    Some(String::from_utf8(bytes).unwrap())
}

impl Compare {
    fn holds(&self, keyspace: &Keyspace) -> bool {
        let key = text(&self.0["key"]).unwrap();
        let found: Vec<(u64, u64)> = match text(&self.0["range_end"]) {
            Some(end) => keyspace.range(key..end).map(|(_, at)| *at).collect(),
            None => keyspace.get(&key).copied().into_iter().collect(),
        };
        // A range without keys is compared as one key with zero values.
        let found = if found.is_empty() { vec![(0, 0)] } else { found };
        found.into_iter().all(|(create, modified)| {
            let (actual, field) = match self.0["target"].as_str() {
                Some("CREATE") => (create, "create_revision"),
                Some("MOD") => (modified, "mod_revision"),
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
