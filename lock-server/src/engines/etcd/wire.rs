//! Messages of etcd's gRPC API, as far as they are needed. Fields that are absent have zero values,
//! and fields that are not listed are passed over.
//!
//! The numbers are those of `rpc.proto` and `kv.proto` of etcd, which never change.

use std::borrow::Cow;

use prost::{Message, Oneof};

/// Of every reply: which cluster replied, and how far it is.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Header {
    #[prost(uint64, tag = "1")]
    pub(super) cluster_id: u64,
    #[prost(uint64, tag = "3")]
    pub(super) revision: u64,
}

/// A key and what is known of it.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(uint64, tag = "3")]
    pub(super) mod_revision: u64,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
}

impl KeyValue {
    /// The key's name. A lock server's key is text; one that is not belongs to another program.
    pub(super) fn name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.key)
    }
}

/// A condition of a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Compare {
    #[prost(int32, tag = "1")]
    pub(super) comparison: i32,
    #[prost(int32, tag = "2")]
    pub(super) target: i32,
    #[prost(string, tag = "3")]
    pub(super) key: String,
    #[prost(oneof = "Operand", tags = "5, 6, 7")]
    pub(super) operand: Option<Operand>,
    /// Empty for one key.
    #[prost(string, tag = "64")]
    pub(super) range_end: String,
}

/// The key's property equals the operand; the value of [`Compare::comparison`].
pub(super) const EQUAL: i32 = 0;
/// It is above the operand.
pub(super) const GREATER: i32 = 1;
/// It is below the operand.
pub(super) const LESS: i32 = 2;

/// The revision that made the key is compared; the value of [`Compare::target`].
pub(super) const CREATE_REVISION: i32 = 1;
/// The revision that wrote the key last is compared.
pub(super) const MOD_REVISION: i32 = 2;
/// The key's value is compared.
pub(super) const VALUE: i32 = 3;

/// Right side of a comparison.
#[derive(Clone, PartialEq, Eq, Oneof)]
pub(super) enum Operand {
    #[prost(uint64, tag = "5")]
    CreateRevision(u64),
    #[prost(uint64, tag = "6")]
    ModRevision(u64),
    #[prost(bytes, tag = "7")]
    Value(Vec<u8>),
}

/// Conditions and steps of a transaction: where every condition holds the one list runs, else the
/// other.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Txn {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<TxnStep>,
    #[prost(message, repeated, tag = "3")]
    pub(super) failure: Vec<TxnStep>,
}

/// A step of a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct TxnStep {
    #[prost(oneof = "Operation", tags = "1, 2, 3, 4")]
    pub(super) operation: Option<Operation>,
}

/// Kind of a step.
#[derive(Clone, PartialEq, Eq, Oneof)]
pub(super) enum Operation {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
    #[prost(message, tag = "4")]
    Txn(Txn),
}

/// Reads keys in the order of their names.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RangeRequest {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    /// Empty for one key.
    #[prost(string, tag = "2")]
    pub(super) range_end: String,
    /// 0 for no limit.
    #[prost(uint64, tag = "3")]
    pub(super) limit: u64,
    /// The state that is read; 0 for the newest.
    #[prost(uint64, tag = "4")]
    pub(super) revision: u64,
    #[prost(bool, tag = "8")]
    pub(super) keys_only: bool,
    #[prost(bool, tag = "9")]
    pub(super) count_only: bool,
}

/// Writes a key.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct PutRequest {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    /// The etcd lease that the key hangs on; 0 for none.
    #[prost(uint64, tag = "3")]
    pub(super) lease: u64,
}

/// Deletes keys.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct DeleteRequest {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    /// Empty for one key.
    #[prost(string, tag = "2")]
    pub(super) range_end: String,
}

/// The reply to a range.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RangeReply {
    #[prost(message, required, tag = "1")]
    pub(super) header: Header,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    /// True if there are more keys than the limit of the request.
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
    /// Number of keys in all.
    #[prost(uint64, tag = "4")]
    pub(super) count: u64,
}

/// The reply to a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct TxnReply {
    #[prost(message, required, tag = "1")]
    pub(super) header: Header,
    /// True if every comparison held.
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) responses: Vec<StepReply>,
}

/// The reply to a step of a transaction, as far as it is needed.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct StepReply {
    #[prost(oneof = "OperationReply", tags = "1, 4")]
    pub(super) reply: Option<OperationReply>,
}

/// Result of a step.
#[derive(Clone, PartialEq, Eq, Oneof)]
pub(super) enum OperationReply {
    #[prost(message, tag = "1")]
    Range(RangeReply),
    #[prost(message, tag = "4")]
    Txn(TxnReply),
}

impl TxnReply {
    /// The replies to the ranges of the branch that ran, in their order.
    pub(super) fn ranges(self) -> impl Iterator<Item = RangeReply> {
        self.responses.into_iter().filter_map(|step| match step.reply {
            Some(OperationReply::Range(reply)) => Some(reply),
            _ => None,
        })
    }

    /// The replies to the transactions of the branch that ran, in their order.
    pub(super) fn txns(self) -> impl Iterator<Item = TxnReply> {
        self.responses.into_iter().filter_map(|step| match step.reply {
            Some(OperationReply::Txn(reply)) => Some(reply),
            _ => None,
        })
    }
}

/// Makes an etcd lease.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct LeaseGrant {
    #[prost(uint64, tag = "1")]
    pub(super) ttl_s: u64,
    #[prost(uint64, tag = "2")]
    pub(super) id: u64,
}

/// Gives an etcd lease its time again.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct LeaseKeepAlive {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
}

/// The reply to granting an etcd lease, and to its keepalive.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct LeaseReply {
    #[prost(message, required, tag = "1")]
    pub(super) header: Header,
    /// Remaining time, in seconds; 0 or less where there is no such lease.
    #[prost(int64, tag = "3")]
    pub(super) ttl_s: i64,
}

/// Opens a watch.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) create: Option<WatchCreate>,
}

/// Range of keys to watch.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct WatchCreate {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) range_end: String,
    #[prost(int32, repeated, tag = "5")]
    pub(super) filters: Vec<i32>,
}

/// A watch that does not show deletions; a value of [`WatchCreate::filters`].
pub(super) const NO_DELETE: i32 = 1;

/// A message of a watch.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct WatchReply {
    #[prost(message, required, tag = "1")]
    pub(super) header: Header,
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    #[prost(uint64, tag = "5")]
    pub(super) compact_revision: u64,
    #[prost(string, tag = "6")]
    pub(super) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<WatchEvent>,
}

/// A change of a key.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct WatchEvent {
    #[prost(message, required, tag = "2")]
    pub(super) kv: KeyValue,
}

/// Asks a member for its state.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct StatusRequest {}

/// The state of one member.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Status {
    #[prost(message, required, tag = "1")]
    pub(super) header: Header,
    #[prost(string, tag = "2")]
    pub(super) version: String,
    #[prost(uint64, tag = "4")]
    pub(super) leader: u64,
    #[prost(uint64, tag = "5")]
    pub(super) raft_index: u64,
    /// Alarms, a sentence each.
    #[prost(string, repeated, tag = "8")]
    pub(super) errors: Vec<String>,
}

/// A user and a password.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub(super) struct Authenticate {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

impl std::fmt::Debug for Authenticate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authenticate").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The token of a login.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Authenticated {
    #[prost(string, tag = "2")]
    pub(super) token: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes as etcd sends them: fields that are not listed here stand between those that are.
    #[test]
    fn fields_have_etcds_numbers() {
        let bytes = b"\x0a\x08\x08\x07\x10\x09\x18\x02\x20\x03\
                      \x12\x10\x0a\x01a\x10\x02\x18\x07\x20\x01\x2a\x01v\x30\x05\x3a\x00\
                      \x18\x01\x20\x03";
        let reply = RangeReply::decode(&bytes[..]).unwrap();
        assert_eq!(reply.header, Header { cluster_id: 7, revision: 2 });
        let first = &reply.kvs[0];
        assert_eq!((&*first.name(), &first.value[..], first.mod_revision), ("a", &b"v"[..], 7));
        assert!(reply.more && reply.count == 3);
        assert!(RangeReply::decode(&b""[..]).unwrap().kvs.is_empty());
    }

    #[test]
    fn a_transaction_separates_ranges_and_transactions() {
        let range = |more| OperationReply::Range(RangeReply { more, ..RangeReply::default() });
        let step = |reply| StepReply { reply };
        let within = TxnReply { responses: vec![step(Some(range(false)))], ..TxnReply::default() };
        let reply = TxnReply {
            succeeded: true,
            responses: vec![
                step(None),
                step(Some(range(true))),
                step(Some(OperationReply::Txn(within.clone()))),
                step(Some(range(false))),
            ],
            ..TxnReply::default()
        };
        let reply = TxnReply::decode(&reply.encode_to_vec()[..]).unwrap();
        assert!(reply.succeeded);
        assert_eq!(reply.clone().txns().collect::<Vec<_>>(), [within]);
        assert_eq!(reply.ranges().map(|range| range.more).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn a_lease_that_is_gone_has_no_time() {
        let mut gone = b"\x10\x63\x18".to_vec();
        gone.extend_from_slice(&[0xff; 9]);
        gone.push(1);
        assert_eq!(LeaseReply::decode(&gone[..]).unwrap().ttl_s, -1);
        assert_eq!(LeaseReply::decode(&b"\x10\x63"[..]).unwrap().ttl_s, 0);
    }

    #[test]
    fn a_password_is_not_shown() {
        let login = Authenticate { name: "locks".to_owned(), password: "hunter2".to_owned() };
        assert!(!format!("{login:?}").contains("hunter2"));
    }
}
