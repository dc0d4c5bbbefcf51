//! What the guard keeps of a transaction that a client has begun. Redis keeps the rest.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::super::commands::{Handling, KeyAccess, Plan};
use super::super::confine::{KEY_BYTES_MAX, KEYS_MAX, Wanted};
use super::super::resp::Protocol;

/// An open MULTI.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// A command of it was refused by the guard: as in Redis, it can only be discarded.
    pub(super) is_spoilt: bool,
    /// The keys of the commands that are queued, but for those that patterns of the connection's
    /// user cover. Redis checks them once more when it runs them.
    keys: BTreeMap<Vec<u8>, KeyAccess>,
    /// A script is queued.
    has_script: bool,
    /// A command is queued that the user of a script may not run.
    exceeds_scripts: bool,
    /// What the names of the keys take, in bytes.
    key_bytes: usize,
    /// There are more keys than are remembered, so no script can be confined to them.
    is_beyond: bool,
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

    /// Notes a command that is queued, with its keys that no pattern covers.
    pub(super) fn add<'k>(&mut self, plan: Plan, keys: impl Iterator<Item = Wanted<'k>>) {
        self.has_script |= plan.handling == Handling::Script;
        self.exceeds_scripts |= !plan.in_scripts;
        self.add_keys(keys);
    }

    fn add_keys<'k>(&mut self, keys: impl Iterator<Item = Wanted<'k>>) {
        for (key, access) in keys {
            let has_room =
                self.keys.len() < KEYS_MAX && self.key_bytes + key.len() <= KEY_BYTES_MAX;
            match self.keys.get_mut(key) {
                Some(known) if access == KeyAccess::Write => *known = access,
                Some(_) => {}
                None if has_room => {
                    self.key_bytes += key.len();
                    self.keys.insert(key.to_vec(), access);
                }
                None => self.is_beyond = true,
            }
        }
    }

    /// Whether a script is queued, so that all of it has to stay confined.
    pub(super) fn has_script(&self) -> bool {
        self.has_script
    }

    /// Whether a command is queued that the user of a script may not run.
    pub(super) fn exceeds_scripts(&self) -> bool {
        self.exceeds_scripts
    }

    /// Whether scripts can be confined to its keys.
    pub(super) fn remembers_all(&self) -> bool {
        !self.is_beyond
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Wanted<'_>> + Clone {
        self.keys.iter().map(|(key, access)| (key.as_slice(), *access))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_without_end_is_remembered_in_part() {
        let mut many = Transaction::default();
        for number in 0..100_000_u32 {
            many.add_keys([(&number.to_be_bytes()[..], KeyAccess::Write)].into_iter());
        }
        assert!(many.keys.len() == KEYS_MAX && !many.remembers_all());
        let mut long = Transaction::default();
        let key = vec![b'x'; KEY_BYTES_MAX];
        long.add_keys([(&key[..], KeyAccess::Read), (&key[..], KeyAccess::Write)].into_iter());
        assert!(long.remembers_all());
        long.add_keys([(&b"y"[..], KeyAccess::Read)].into_iter());
        assert!(long.keys.len() == 1 && !long.remembers_all());
    }
}
