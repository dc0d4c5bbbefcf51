//! Table of all commands: by name, then by subcommand if there are any.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::action::{Action, Denial};
use super::refused::Refused;
use crate::doors::redis::resp::request::Command;

/// Longer than the name of any forwarded command.
const NAME_BYTES_MAX: usize = 40;

/// Commands by name, or subcommands by theirs, in lower case.
#[derive(Debug, Default)]
pub(super) struct Entries(HashMap<Box<[u8]>, Entry, BuildHasherDefault<Fnv>>);

/// A command or subcommand.
#[derive(Debug)]
pub(super) struct Entry {
    name: Box<str>,
    arity: i64,
    action: Result<Action, Denial>,
    subcommands: Entries,
}

impl Entries {
    /// Returns the entry of a command, or of its subcommand.
    pub(super) fn find(&self, command: Command<'_>) -> Result<&Entry, Refused> {
        let unknown = || Refused::unknown(command.arg(0), command.iter().skip(1));
        let entry = self.get(command.arg(0)).ok_or_else(unknown)?;
        if entry.subcommands.0.is_empty() || command.len() == 1 {
            return Ok(entry);
        }
        let unknown = || Refused::unknown_subcommand(&entry.name, command.arg(1));
        entry.subcommands.get(command.arg(1)).ok_or_else(unknown)
    }

    fn get(&self, name: &[u8]) -> Option<&Entry> {
        let mut lower = [0; NAME_BYTES_MAX];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        self.0.get(&*lower)
    }

    /// Adds an entry under its name, or the part behind the `|`.
    pub(super) fn insert(&mut self, entry: Entry) {
        let name = entry.name.rsplit('|').next().unwrap_or_default();
        self.0.insert(name.to_ascii_lowercase().into_bytes().into(), entry);
    }

    /// Returns the subcommands of a command, which is added if missing.
    pub(super) fn subcommands(&mut self, name: &str) -> &mut Entries {
        let missing = || Entry::new(name, -2, Err(Denial::in_every_mode("it needs a subcommand")));
        &mut self.0.entry(name.as_bytes().into()).or_insert_with(missing).subcommands
    }

    /// Makes the rules of [`super::CommandTable::script_rules`].
    pub(super) fn script_rules(&self) -> Vec<String> {
        let is_allowed = |entry: &&Entry| {
            entry.subcommands.0.is_empty()
                && entry.action.as_ref().is_ok_and(|action| action.in_scripts)
        };
        let mut rules: Vec<String> =
            self.all().into_iter().filter(is_allowed).map(|e| format!("+{}", e.name)).collect();
        rules.sort();
        rules
    }

    /// Returns every entry, and the entries of the subcommands.
    pub(super) fn all(&self) -> Vec<&Entry> {
        self.0.values().flat_map(|e| std::iter::once(e).chain(e.subcommands.all())).collect()
    }
}

impl Entry {
    /// Makes an entry; `action` is the command's action, or its denial.
    pub(super) fn new(name: &str, arity: i64, action: Result<Action, Denial>) -> Self {
        Self { name: name.into(), arity, action, subcommands: Entries::default() }
    }

    pub(super) fn with_subcommands(self, subcommands: Entries) -> Self {
        Self { subcommands, ..self }
    }

    /// Returns the name in lower case, as Redis writes it: `config|get`.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn action(&self) -> Result<&Action, &Denial> {
        self.action.as_ref()
    }

    #[cfg(test)]
    pub(super) fn is_container(&self) -> bool {
        !self.subcommands.0.is_empty()
    }

    /// Least number of words of the command.
    #[cfg(test)]
    pub(super) fn words_min(&self) -> usize {
        usize::try_from(self.arity.unsigned_abs()).unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn outcome(&self) -> Result<&Action, &str> {
        self.action.as_ref().map_err(|denial| &*denial.reason)
    }

    /// Checks Redis' arity: a positive one is exact, a negative one is the minimum.
    pub(super) fn check_arity(&self, command: Command<'_>) -> Result<(), Refused> {
        let len = i64::try_from(command.len()).unwrap_or(i64::MAX);
        let fits = if self.arity >= 0 { len == self.arity } else { len >= -self.arity };
        if fits { Ok(()) } else { Err(Refused::arity(&self.name)) }
    }
}

/// FNV-1a: fast for short names. Its keys come from Redis, so clients cannot make them collide:
/// their words are only looked up.
#[derive(Debug)]
pub(super) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Hashes the length, which precedes the bytes.
    fn write_usize(&mut self, length: usize) {
        self.0 ^= length as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
