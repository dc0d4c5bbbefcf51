//! Fuzz target: what etcd replies, and the values of ours in it.

use prost::Message;

use super::client::fuzz::{messages, verdicts};
use super::codec::Header;
use super::keys::Keys;
use super::offset::Meta;
use super::wire::{Authenticated, LeaseReply, RangeReply, Status, Txn, TxnReply, WatchReply};

/// Bytes as a reply of each kind, as a status, as a value and as a key.
pub(crate) fn replies(bytes: &[u8]) {
    messages(bytes);
    verdicts(bytes);
    read::<WatchReply>(bytes);
    read::<LeaseReply>(bytes);
    read::<Status>(bytes);
    read::<RangeReply>(bytes);
    read::<Authenticated>(bytes);
    read::<Txn>(bytes);
    if let Some(reply) = read::<TxnReply>(bytes) {
        let within: Vec<TxnReply> = reply.clone().txns().collect();
        assert!(within.len() + reply.clone().ranges().count() <= reply.responses.len());
    }
    let _ = serde_json::from_slice::<Meta>(bytes);
    if let Some((header, value)) = Header::read(bytes) {
        assert_eq!(header.with(value), bytes);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        names(text);
    }
}

/// A message that is read is written so that it is read again as the same.
fn read<T: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<T> {
    let message = T::decode(bytes).ok()?;
    assert_eq!(T::decode(&message.encode_to_vec()[..]).as_ref(), Ok(&message));
    Some(message)
}

fn names(text: &str) {
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
        for text in ["", "{}", "\0\0\0\0\0", "l/a", "l/a!", "s/", "v/zzzzzzzz", "n/00000001/l/a"] {
            super::replies(text.as_bytes());
        }
    }
}
