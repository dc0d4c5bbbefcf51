//! A session as etcd shows it, for the fuzz target of etcd.

use super::super::wire::TxnReply;
use super::record::Seen;

/// Reads a session and what its record means.
pub(in crate::store::etcd) fn session(reply: TxnReply) -> bool {
    let Ok(Some(seen)) = Seen::read(reply) else { return false };
    let _ = (seen.lives(), seen.last_beat(), seen.heartbeats(), seen.is_half_ended());
    let text = seen.stored.text();
    assert!(serde_json::from_str(&text).is_ok_and(|again| seen.stored == again), "{text}");
    true
}
