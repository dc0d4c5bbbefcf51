//! What the gateway answers, as far as it is needed. Absent fields are zero values, and a 64-bit
//! number is a string.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Of every reply: which cluster answered, and how far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    #[serde(deserialize_with = "number")]
    pub(super) cluster_id: u64,
    #[serde(deserialize_with = "number")]
    pub(super) revision: u64,
    /// How many elections the member has heard of that answered.
    #[serde(deserialize_with = "number")]
    pub(super) raft_term: u64,
}

/// A key and what is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    #[serde(deserialize_with = "text")]
    pub(super) key: String,
    #[serde(deserialize_with = "text")]
    pub(super) value: String,
    #[serde(deserialize_with = "number")]
    pub(super) create_revision: u64,
    #[serde(deserialize_with = "number")]
    pub(super) mod_revision: u64,
    /// How often it was written since it came into being.
    #[serde(deserialize_with = "number")]
    pub(super) version: u64,
    /// The etcd lease that it hangs on; 0 for none.
    #[serde(deserialize_with = "number")]
    pub(super) lease: u64,
}

/// The answer to a range.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RangeReply {
    pub(super) header: Header,
    pub(super) kvs: Vec<KeyValue>,
    /// How many keys there are in all, whatever the limit.
    #[serde(deserialize_with = "number")]
    pub(super) count: u64,
}

/// The answer to a transaction.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TxnReply {
    pub(super) header: Header,
    /// Whether every comparison held.
    pub(super) succeeded: bool,
    responses: Vec<OpReply>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct OpReply {
    response_range: Option<RangeReply>,
}

impl TxnReply {
    /// The answers to the ranges of the branch that ran, in their order.
    pub(super) fn ranges(self) -> impl Iterator<Item = RangeReply> {
        self.responses.into_iter().filter_map(|reply| reply.response_range)
    }
}

/// The answer to granting an etcd lease, to its keepalive and to the question what remains.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeaseReply {
    pub(super) header: Header,
    /// What it has, in seconds; 0 or less where there is no such lease.
    #[serde(rename = "TTL", deserialize_with = "signed")]
    pub(super) ttl_s: i64,
}

/// Answers that come one a line.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub(super) struct Line<T> {
    pub(super) result: Option<T>,
    pub(super) error: Option<LineError>,
}

/// A stream that ends with an error says so in a line.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LineError {
    pub(super) message: String,
    pub(super) grpc_code: u32,
}

/// What a watch tells.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchReply {
    pub(super) header: Header,
    pub(super) canceled: bool,
    pub(super) cancel_reason: String,
    #[serde(deserialize_with = "number")]
    pub(super) compact_revision: u64,
    pub(super) events: Vec<WatchEvent>,
}

/// A change of a key.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchEvent {
    /// `DELETE`; empty for a put.
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) kv: KeyValue,
}

/// The state of one member.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) header: Header,
    pub(super) version: String,
    #[serde(rename = "leader", deserialize_with = "number")]
    pub(super) leader: u64,
    #[serde(rename = "raftIndex", deserialize_with = "number")]
    pub(super) raft_index: u64,
    /// Alarms, a sentence each.
    pub(super) errors: Vec<String>,
}

/// Who belongs to the cluster, as far as it is needed: how many.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Members {
    pub(super) members: Vec<serde::de::IgnoredAny>,
}

/// A refusal.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    pub(super) message: String,
    pub(super) error: String,
    pub(super) code: u32,
}

/// Bytes as the gateway wants them.
pub(super) fn encoded(text: &str) -> String {
    STANDARD.encode(text)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Text(String),
    Unsigned(u64),
    Signed(i64),
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match Number::deserialize(deserializer)? {
        // An id is sometimes told as the signed number with the same bits.
        Number::Text(text) => match text.parse() {
            Ok(value) => Ok(value),
            Err(_) => text.parse().map(i64::cast_unsigned).map_err(D::Error::custom),
        },
        Number::Unsigned(value) => Ok(value),
        Number::Signed(value) => Ok(value.cast_unsigned()),
    }
}

fn signed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    match Number::deserialize(deserializer)? {
        Number::Text(text) => text.parse().map_err(D::Error::custom),
        Number::Unsigned(value) => i64::try_from(value).map_err(D::Error::custom),
        Number::Signed(value) => Ok(value),
    }
}

/// Keys and values of ours are text; what is not is somebody else's, and is no key of ours.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let encoded = String::deserialize(deserializer)?;
    let bytes = STANDARD.decode(encoded).map_err(D::Error::custom)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_fields_are_zero_and_numbers_are_strings() {
        let reply: RangeReply = serde_json::from_str(
            r#"{"header":{"cluster_id":"324952591200643719","revision":"2"},"count":"1",
                "kvs":[{"key":"YQ==","create_revision":"2","mod_revision":"7","value":"dg=="}]}"#,
        )
        .unwrap();
        let first = &reply.kvs[0];
        assert_eq!((first.key.as_str(), first.value.as_str(), first.lease), ("a", "v", 0));
        assert_eq!((first.create_revision, first.mod_revision, reply.count), (2, 7, 1));
        assert_eq!(serde_json::from_str::<RangeReply>("{}").unwrap().count, 0);
    }

    #[test]
    fn a_transaction_tells_its_ranges() {
        let reply: TxnReply = serde_json::from_str(
            r#"{"succeeded":true,"responses":[{"response_put":{"header":{"revision":"3"}}},
                {"response_range":{"count":"4"}},{"response_range":{}}]}"#,
        )
        .unwrap();
        assert!(reply.succeeded);
        assert_eq!(reply.ranges().map(|range| range.count).collect::<Vec<_>>(), [4, 0]);
    }

    #[test]
    fn a_lease_that_is_gone_has_no_time() {
        let gone: LeaseReply = serde_json::from_str(r#"{"ID":"99","TTL":"-1"}"#).unwrap();
        assert_eq!(gone.ttl_s, -1);
        assert_eq!(serde_json::from_str::<LeaseReply>(r#"{"ID":"99"}"#).unwrap().ttl_s, 0);
    }
}
