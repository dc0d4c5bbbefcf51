//! What the guard keeps of a transaction that a client has begun. Redis keeps the rest.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::super::commands::KeyAccess;
use super::super::confine::Wanted;
use super::super::resp::Protocol;

/// An open MULTI.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// A command of it was refused by the guard: as in Redis, it can only be discarded.
    pub(super) is_spoilt: bool,
    /// The keys of the commands that are queued. Redis checks them once more when it runs them.
    keys: BTreeMap<Vec<u8>, KeyAccess>,
}

impl Transaction {
    /// What is sent in place of the EXEC of a spoilt transaction.
    pub(super) const DISCARD: &'static [u8] = b"*1\r\n$7\r\nDISCARD\r\n";

    /// What is answered in place of the reply to it.
    pub(super) fn aborted() -> Bytes {
        Bytes::from_static(b"-EXECABORT Transaction discarded because of previous errors.\r\n")
    }

    /// Redis' reply to an EXEC that ran nothing, because a watched key may have changed.
    pub(super) fn not_run(protocol: Protocol) -> Bytes {
        Bytes::from_static(match protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        })
    }

    pub(super) fn add_keys<'k>(&mut self, keys: impl Iterator<Item = Wanted<'k>>) {
        for (key, access) in keys {
            match self.keys.get_mut(key) {
                Some(known) if access == KeyAccess::Write => *known = access,
                Some(_) => {}
                None => {
                    self.keys.insert(key.to_vec(), access);
                }
            }
        }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Wanted<'_>> + Clone {
        self.keys.iter().map(|(key, access)| (key.as_slice(), *access))
    }
}
