//! What the guard keeps of a transaction that a client has begun. Redis keeps the rest.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::super::commands::{Handling, KeyAccess, Plan};
use super::super::confine::Wanted;

/// An open MULTI.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// A command of it was refused by the guard: as in Redis, it can only be discarded.
    pub(super) is_spoilt: bool,
    /// The keys of the commands that are queued. Redis checks them once more when it runs them.
    keys: BTreeMap<Vec<u8>, KeyAccess>,
    /// A script is queued.
    has_script: bool,
    /// A command is queued that the user of a script may not run.
    exceeds_scripts: bool,
}

impl Transaction {
    /// What is sent in place of the EXEC of a spoilt transaction.
    pub(super) const DISCARD: &'static [u8] = b"*1\r\n$7\r\nDISCARD\r\n";

    /// What is answered in place of the reply to it.
    pub(super) fn aborted() -> Bytes {
        Bytes::from_static(b"-EXECABORT Transaction discarded because of previous errors.\r\n")
    }

    /// Notes a command that is queued.
    pub(super) fn add<'k>(&mut self, plan: Plan, keys: impl Iterator<Item = Wanted<'k>>) {
        self.has_script |= plan.handling == Handling::Script;
        self.exceeds_scripts |= !plan.in_scripts;
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

    /// Whether a script is queued, so that all of it has to stay confined.
    pub(super) fn has_script(&self) -> bool {
        self.has_script
    }

    /// Whether a command is queued that the user of a script may not run.
    pub(super) fn exceeds_scripts(&self) -> bool {
        self.exceeds_scripts
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Wanted<'_>> + Clone {
        self.keys.iter().map(|(key, access)| (key.as_slice(), *access))
    }
}
