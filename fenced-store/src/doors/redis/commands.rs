//! Which keys a command touches, and what the port does with it.
//!
//! Where keys stand comes from Redis' own COMMAND reply, read anew whenever a Redis was verified;
//! what is allowed, and how it has to travel, is in [`policy`]. Whatever neither of them knows well
//! enough is refused: a key that the guard overlooks is a write that nobody fences.

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
#[cfg(test)]
mod page;
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

/// A key of a command, and what the command does to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyUse {
    /// Which argument of the command is the key; the command's name is argument 0.
    pub(crate) arg: usize,
    /// What the command does to it.
    pub(crate) access: KeyAccess,
}

/// What a command does to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyAccess {
    /// It looks.
    Read,
    /// It changes the key, or may.
    Write,
}

/// What the port does with a command, and how far the command reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// How it travels.
    pub(crate) handling: Handling,
    /// How far it reaches.
    pub(crate) touches: Touches,
    /// Whether the user of a script may run it: Redis' ACL then finds each of its keys.
    pub(crate) in_scripts: bool,
    /// Whether the policy refuses it, so that it passes in observe mode alone.
    pub(crate) is_denied: bool,
}

/// How far a command reaches.
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

/// How a command travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handling {
    /// One reply and no state of the connection: any pipelined connection does.
    Shared,
    /// It blocks, or it sets or shows a connection's state: a connection of the client's own.
    Own,
    /// EVAL, EVALSHA, FCALL and their read-only forms: an own connection, confined to the keys.
    Script,
    /// MULTI.
    Multi,
    /// EXEC.
    Exec,
    /// DISCARD.
    Discard,
    /// WATCH.
    Watch,
    /// UNWATCH.
    Unwatch,
    /// SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE.
    Subscribe,
    /// UNSUBSCRIBE, PUNSUBSCRIBE, SUNSUBSCRIBE.
    Unsubscribe,
    /// The guard answers; Redis sees nothing of it.
    Local(Local),
}

/// A command that the guard itself answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// AUTH.
    Auth,
    /// HELLO.
    Hello,
    /// SELECT.
    Select,
    /// QUIT.
    Quit,
    /// RESET.
    Reset,
    /// CLIENT SETNAME.
    ClientSetName,
    /// CLIENT GETNAME.
    ClientGetName,
    /// CLIENT SETINFO.
    ClientSetInfo,
    /// CLIENT ID.
    ClientId,
    /// CLIENT INFO.
    ClientInfo,
    /// CLIENT LIST.
    ClientList,
    /// CLIENT UNBLOCK.
    ClientUnblock,
    /// CONFIG GET.
    ConfigGet,
    /// ACL WHOAMI.
    AclWhoAmI,
    /// MODULE LIST.
    ModuleList,
    /// FENCE.
    Fence,
}

/// What is known of every command of one Redis.
#[derive(Debug)]
pub(crate) struct CommandTable {
    entries: Entries,
    script_rules: Arc<[String]>,
    /// In observe mode, what passes beyond what the policy allows.
    observing: Option<Observing>,
}

impl CommandTable {
    /// The table of the Redis that answered COMMAND with `reply`, in RESP2 or RESP3.
    ///
    /// # Errors
    /// A sentence that says what in the reply cannot be read.
    pub(crate) fn from_reply(reply: &redis::Value) -> Result<Self, String> {
        let entries = compile::entries(&meta::commands(reply)?);
        let script_rules = entries.script_rules().into();
        Ok(Self { entries, script_rules, observing: None })
    }

    /// ACL rules that allow a script's user what it may run (`+get`, `+xgroup|create`), in order of
    /// their names. All else stays forbidden, also what a module adds later.
    pub(crate) fn script_rules(&self) -> Arc<[String]> {
        Arc::clone(&self.script_rules)
    }

    /// A command's name with its subcommand, as people write it: CONFIG SET.
    pub(crate) fn name_of(&self, command: Command<'_>) -> String {
        self.entries.find(command).map_or_else(|_| "other".to_owned(), |entry| shown(entry.name()))
    }

    /// What to do with a command. `keys` is emptied, and then holds the keys that it touches; a key
    /// that is named twice is there twice. Nothing is allocated but by `keys` when it grows, and
    /// for a refusal.
    ///
    /// # Errors
    /// [`Refused`] for commands that are denied, unknown or malformed; `keys` means nothing then.
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
