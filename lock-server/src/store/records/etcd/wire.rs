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
}

/// A key and what is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    #[serde(deserialize_with = "text")]
    pub(super) key: String,
    #[serde(deserialize_with = "bytes")]
    pub(super) value: Vec<u8>,
    #[serde(deserialize_with = "number")]
    pub(super) mod_revision: u64,
}

/// The answer to a range.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RangeReply {
    pub(super) header: Header,
    pub(super) kvs: Vec<KeyValue>,
    /// Whether there are more keys than were asked for.
    pub(super) more: bool,
    /// How many keys there are in all.
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
    pub(super) responses: Vec<StepReply>,
}

/// The answer to a step of a transaction, as far as it is needed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StepReply {
    response_range: Option<RangeReply>,
    response_txn: Option<TxnReply>,
}

impl TxnReply {
    /// The answers to the ranges of the branch that ran, in their order.
    pub(super) fn ranges(self) -> impl Iterator<Item = RangeReply> {
        self.responses.into_iter().filter_map(|reply| reply.response_range)
    }

    /// The answers to the transactions of the branch that ran, in their order.
    pub(super) fn txns(self) -> impl Iterator<Item = TxnReply> {
        self.responses.into_iter().filter_map(|reply| reply.response_txn)
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

/// A refusal.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    pub(super) message: String,
    pub(super) error: String,
    pub(super) code: u32,
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

/// A key of ours is text; one that is not belongs to another program.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    bytes(deserializer).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let encoded = String::deserialize(deserializer)?;
    STANDARD.decode(encoded).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_fields_are_zero_and_numbers_are_strings() {
        let reply: RangeReply = serde_json::from_str(
            r#"{"header":{"cluster_id":"324952591200643719","revision":"2"},"more":true,
                "kvs":[{"key":"YQ==","create_revision":"2","mod_revision":"7","value":"dg=="}]}"#,
        )
        .unwrap();
        let first = &reply.kvs[0];
        assert_eq!((first.key.as_str(), &first.value[..], first.mod_revision), ("a", &b"v"[..], 7));
        assert!(reply.more && reply.header.revision == 2);
        assert!(serde_json::from_str::<RangeReply>("{}").unwrap().kvs.is_empty());
    }

    #[test]
    fn a_transaction_tells_its_ranges() {
        let reply: TxnReply = serde_json::from_str(
            r#"{"succeeded":true,"responses":[{"response_put":{"header":{"revision":"3"}}},
                {"response_range":{"more":true}},{"response_txn":{"responses":[
                {"response_range":{}}]}},{"response_range":{}}]}"#,
        )
        .unwrap();
        assert!(reply.succeeded);
        let within: Vec<TxnReply> = reply.clone().txns().collect();
        assert!(!within[0].succeeded && within[0].clone().ranges().count() == 1);
        assert_eq!(reply.ranges().map(|range| range.more).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn a_lease_that_is_gone_has_no_time() {
        let gone: LeaseReply = serde_json::from_str(r#"{"ID":"99","TTL":"-1"}"#).unwrap();
        assert_eq!(gone.ttl_s, -1);
        assert_eq!(serde_json::from_str::<LeaseReply>(r#"{"ID":"99"}"#).unwrap().ttl_s, 0);
    }
}
