//! The guard's part of the state of an open MULTI. Redis has the rest.

use bytes::Bytes;

use super::super::commands::{Handling, Plan};
use super::super::confine::{CheckedKeys, Wanted};
use super::super::resp::Protocol;
use super::super::resp::request::Command;
use super::super::script_denial::ScriptName;

/// An open MULTI.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// The guard refused a command of it: as in Redis, the transaction can only be discarded.
    pub(super) is_spoilt: bool,
    /// The keys of the commands that are queued, but for those that patterns of the connection's
    /// user cover. Redis checks them once more when it runs them.
    pub(super) keys: CheckedKeys,
    /// Name of the script that is queued, or none of several; with a script, all of it has to stay
    /// confined.
    pub(super) script: Option<ScriptName>,
    /// A command is queued that the user of a script may not run.
    pub(super) exceeds_scripts: bool,
}

impl Transaction {
    /// Command that replaces the EXEC of a spoilt transaction.
    pub(super) const DISCARD: &'static [u8] = b"*1\r\n$7\r\nDISCARD\r\n";

    /// Redis' reply to the EXEC of a spoilt transaction.
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

    /// Adds a queued command, with those of its keys that no pattern covers.
    pub(super) fn add<'k>(
        &mut self,
        plan: Plan,
        command: Command<'_>,
        keys: impl Iterator<Item = Wanted<'k>>,
    ) {
        if plan.handling == Handling::Script {
            let name = ScriptName::from_command(command);
            let is_only = self.script.is_none_or(|known| known == name);
            self.script = Some(if is_only { name } else { ScriptName::NONE });
        }
        self.exceeds_scripts |= !plan.in_scripts;
        keys.for_each(|wanted| self.keys.add(wanted));
    }
}
