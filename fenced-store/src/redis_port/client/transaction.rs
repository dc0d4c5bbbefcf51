//! What the guard keeps of a transaction that a client has begun. Redis keeps the rest.

use std::collections::BTreeSet;

use bytes::Bytes;

/// An open MULTI.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// A command of it was refused by the guard: as in Redis, it can only be discarded.
    pub(super) is_spoilt: bool,
    /// The keys of the commands that are queued. Redis checks them once more when it runs them.
    keys: BTreeSet<Vec<u8>>,
}

impl Transaction {
    /// What is sent in place of the EXEC of a spoilt transaction.
    pub(super) const DISCARD: &'static [u8] = b"*1\r\n$7\r\nDISCARD\r\n";

    /// What is answered in place of the reply to it.
    pub(super) fn aborted() -> Bytes {
        Bytes::from_static(b"-EXECABORT Transaction discarded because of previous errors.\r\n")
    }

    pub(super) fn add_keys<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>) {
        for key in keys {
            if !self.keys.contains(key) {
                self.keys.insert(key.to_vec());
            }
        }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().map(Vec::as_slice)
    }
}
