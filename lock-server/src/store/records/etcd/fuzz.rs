//! Fuzz target: what etcd's gateway replies, and the values of ours in it.

use super::keys::Keys;
use super::lineage::Meta;
use super::value::Header;
use super::wire::{LeaseReply, Line, RangeReply, Status, TxnReply, WatchReply};

/// A reply as the gateway sends it, and the same text as a value and as a key.
pub(crate) fn replies(text: &str) {
    super::gateway::fuzz::verdicts(text.as_bytes());
    let _ = serde_json::from_str::<Line<WatchReply>>(text);
    let _ = serde_json::from_str::<LeaseReply>(text);
    let _ = serde_json::from_str::<Status>(text);
    let _ = serde_json::from_str::<RangeReply>(text);
    let _ = serde_json::from_str::<Meta>(text);
    if let Ok(reply) = serde_json::from_str::<TxnReply>(text) {
        let within: Vec<TxnReply> = reply.clone().txns().collect();
        assert!(within.len() + reply.clone().ranges().count() <= 2 * reply.responses.len());
    }
    if let Some((header, value)) = Header::read(text.as_bytes()) {
        assert_eq!(header.with(value), text.as_bytes());
    }
    let Ok(namespace) = "default".parse() else { return };
    let keys = Keys::new(&namespace);
    for key in [text.to_owned(), format!("fencepost/default/{text}")] {
        if let Some(record) = keys.subject(&key) {
            assert!(key.starts_with(&keys.record(&record)), "{key}");
        }
        let _ = (keys.server_of(&key), keys.subject_of_message(&key));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn replies_of_every_kind_are_read() {
        for text in ["{}", "[]", "null", "l/a", "l/a!", "s/", "v/zzzzzzzz", "n/00000001/l/a"] {
            super::replies(text);
        }
    }
}
