//! Plans of commands: the keys that they touch, and their handling.
//!
//! Key positions come from Redis' COMMAND reply, read again whenever a Redis was verified;
//! [`policy`] says what is allowed and how it is sent. A command without certain key positions is
//! refused: an overlooked key would be an unfenced write.

use std::sync::Arc;

use super::resp::request::Command;
use crate::key::is_own_name;

mod action;
mod by_hand;
mod channels;
mod compile;
pub(crate) mod flush;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod meta;
pub(crate) mod names;
mod observed;
mod policy;
mod refused;
mod spec;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use by_hand::data_patterns;
pub(crate) use observed::Observing;
pub(crate) use refused::Refused;
use refused::shown;
use table::Entries;

/// A key of a command, and its access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyUse {
    /// Index of the argument; the command's name is argument 0.
    pub(crate) arg: usize,
    /// Access of the command to the key.
    pub(crate) access: KeyAccess,
}

/// Access of a command to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyAccess {
    /// Reads the key.
    Read,
    /// Changes the key, or may change it.
    Write,
}

/// Handling and scope of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Way of sending it.
    pub(crate) handling: Handling,
    /// Scope of its effect.
    pub(crate) touches: Touches,
    /// The user of a script may run it: Redis' ACL then finds each of its keys.
    pub(crate) in_scripts: bool,
    /// The policy refuses it, so it passes only in observe mode.
    pub(crate) is_denied: bool,
}

/// Scope of a command's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touches {
    /// No key.
    Nothing,
    /// The keys that [`CommandTable::plan`] has listed.
    Keys,
    /// The names of all keys, to read: KEYS, SCAN, RANDOMKEY, DBSIZE.
    Keyspace,
    /// The listed keys, and keys that are named by data, to read: SORT with BY or GET.
    NamedByData,
    /// All keys, to delete: FLUSHDB, FLUSHALL.
    Everything,
}

/// Way of sending a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handling {
    /// One reply and no connection state: any pipelined connection will do.
    Shared,
    /// Blocks, or sets or shows connection state: needs a connection of the client's own.
    Own,
    /// EVAL, EVALSHA, FCALL and their read-only forms: an own connection, confined to the keys.
    Script,
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
    /// SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE.
    Subscribe,
    /// UNSUBSCRIBE, PUNSUBSCRIBE, SUNSUBSCRIBE.
    Unsubscribe,
    /// The guard replies; nothing is sent to Redis.
    Local(Local),
}

/// A command that the guard itself replies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    Auth,
    Hello,
    Select,
    Quit,
    Reset,
    ClientSetName,
    ClientGetName,
    ClientSetInfo,
    ClientId,
    ClientInfo,
    ClientList,
    ClientUnblock,
    ConfigGet,
    AclWhoAmI,
    ModuleList,
    Fence,
}

/// Table of all commands of one Redis.
#[derive(Debug)]
pub(crate) struct CommandTable {
    entries: Entries,
    script_rules: Arc<[String]>,
    /// In observe mode, the commands that pass although the policy refuses them.
    observing: Option<Observing>,
}

impl CommandTable {
    /// Makes the table from a reply to COMMAND, in RESP2 or RESP3.
    ///
    /// # Errors
    /// A sentence on the unreadable part of the reply.
    pub(crate) fn from_reply(reply: &redis::Value) -> Result<Self, String> {
        let entries = compile::entries(&meta::commands(reply)?);
        let script_rules = entries.script_rules().into();
        Ok(Self { entries, script_rules, observing: None })
    }

    /// Returns ACL rules that allow a script's user its commands (`+get`, `+xgroup|create`), in the
    /// order of names. Everything else is forbidden, also commands that a module adds later.
    pub(crate) fn script_rules(&self) -> Arc<[String]> {
        Arc::clone(&self.script_rules)
    }

    /// Returns a command's name with its subcommand, as in documentation: CONFIG SET.
    pub(crate) fn name_of(&self, command: Command<'_>) -> String {
        self.entries.find(command).map_or_else(|_| "other".to_owned(), |entry| shown(entry.name()))
    }

    /// Plans a command. `keys` is cleared, then holds the keys that it touches; a key named twice
    /// is there twice. Memory is allocated only for growing `keys` and for a refusal.
    ///
    /// # Errors
    /// [`Refused`] for commands that are denied, unknown or malformed; `keys` is then unspecified.
    pub(crate) fn plan(
        &self,
        command: Command<'_>,
        keys: &mut Vec<KeyUse>,
    ) -> Result<Plan, Refused> {
        keys.clear();
        let entry = self.entries.find(command)?;
        entry.check_arity(command)?;
        let plan = match (entry.action(), self.observing) {
            (Ok(action), None) => action.plan(entry.name(), command, keys)?,
            (Err(denial), None) => return Err(Refused::denied(entry.name(), &denial.reason)),
            (_, Some(observing)) => observing.plan(entry, command, keys)?,
        };
        match keys.iter().map(|key| command.arg(key.arg)).find(|key| is_own_name(key)) {
            Some(key) => Err(Refused::own_key(key)),
            None => Ok(plan),
        }
    }
}
