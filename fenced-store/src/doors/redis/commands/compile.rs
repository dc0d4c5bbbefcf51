//! Compilation of Redis' COMMAND reply and the policy into the table.

use super::action::{Action, Denial, Keys};
use super::meta::Meta;
use super::policy::{self, LOCALS, Observed, Verdict, verdict};
use super::spec::{Find, Number, Spec};
use super::table::{Entries, Entry};
use super::{Handling, KeyAccess};

/// Reason for refusing every command of a module.
const OF_A_MODULE: &str = "it belongs to a module, and only the module knows which keys it reaches; \
                           the guard does not";

/// Reason for refusing a command of a later server: its own word on its keys was never compared
/// with its effects, as it was for every command that the policy lists.
const UNKNOWN: &str = "this version of the guard does not know it, and could overlook a key that it \
                       writes; a newer guard may know it";

/// Makes the table of Redis' commands.
pub(super) fn entries(commands: &[Meta]) -> Entries {
    let mut entries = Entries::default();
    for meta in commands {
        let mut subcommands = Entries::default();
        meta.subcommands.iter().for_each(|sub| subcommands.insert(entry(sub)));
        entries.insert(entry(meta).with_subcommands(subcommands));
    }
    for (name, arity, local) in LOCALS {
        let action = Action::new(name, 0, Handling::Local(local), Keys::None);
        let entry = Entry::new(name, arity, Ok(action));
        match name.split_once('|') {
            Some((container, _)) => entries.subcommands(container).insert(entry),
            None => entries.insert(entry),
        }
    }
    entries
}

fn entry(meta: &Meta) -> Entry {
    let action = action(meta).map_err(|reason| denial(meta, reason));
    Entry::new(&meta.name, meta.arity, action)
}

/// Returns the action for a command, or the reason of its refusal.
fn action(meta: &Meta) -> Result<Action, String> {
    let verdict = match verdict(&meta.name) {
        Some(Verdict::Denied(reason)) => return Err(reason.to_owned()),
        Some(Verdict::VectorSet) => return vector_set(meta),
        Some(_) if meta.has("module") => return Err(OF_A_MODULE.to_owned()),
        Some(verdict) => verdict,
        None => return Err(unlisted(meta).to_owned()),
    };
    let new = |handling, keys| Action::new(&meta.name, meta.words_min(), handling, keys);
    // Redis' flag overrides the list.
    if meta.has("admin") {
        return Err("it administers the server, by its flags in Redis".to_owned());
    }
    match verdict {
        Verdict::Keys(handling) => {
            let keys = Keys::Specs { specs: specs(meta)?, number: number(meta, handling) };
            Ok(new(handling, keys))
        }
        Verdict::ByHand(by_hand) => Ok(new(by_hand.handling(), Keys::ByHand(by_hand))),
        Verdict::Keyless(_) | Verdict::Channels(..) | Verdict::Keyspace if meta.has("write") => {
            Err("it writes, and Redis does not say which keys".to_owned())
        }
        Verdict::Keyless(handling) => Ok(new(handling, Keys::None)),
        Verdict::Channels(handling, which) => Ok(new(handling, Keys::Channels(which))),
        Verdict::Keyspace => Ok(new(Handling::Shared, Keys::Keyspace)),
        Verdict::Container | Verdict::Denied(_) | Verdict::VectorSet => {
            Err("it needs a subcommand".to_owned())
        }
    }
}

/// Returns the action for a command on a vector set. Redis' key spec calls each of them a write.
fn vector_set(meta: &Meta) -> Result<Action, String> {
    let find = Find::Range { last: 0, step: 1, limit: 0 };
    let is_one_key = |spec: &Option<Spec>| spec.is_some_and(|s| (s.index, s.find) == (1, find));
    if meta.specs.len() != 1 || !meta.specs.iter().all(is_one_key) {
        return Err("Redis says of it that its keys are not those of a vector set".to_owned());
    }
    let is_read = meta.has("readonly") && !meta.has("write");
    let access = if is_read { KeyAccess::Read } else { KeyAccess::Write };
    let specs = [Spec { access, index: 1, find }].into();
    let keys = Keys::Specs { specs, number: Number::Positive };
    Ok(Action::new(&meta.name, meta.words_min(), Handling::Shared, keys))
}

/// Returns the reason for refusing a command that the policy does not list.
fn unlisted(meta: &Meta) -> &'static str {
    match (meta.subcommands.is_empty(), meta.has("module")) {
        (false, _) => "it needs a subcommand",
        (true, true) => OF_A_MODULE,
        (true, false) => UNKNOWN,
    }
}

/// Returns the key specs, if they give every key.
fn specs(meta: &Meta) -> Result<Box<[Spec]>, String> {
    let known: Option<Vec<Spec>> = meta.specs.iter().copied().collect();
    let mut specs = known
        .filter(|specs| !specs.is_empty())
        .ok_or("Redis does not say for certain which keys it touches")?;
    // A write command that only reads its keys does not state what it writes.
    let writes = specs.iter().any(|spec| spec.access == KeyAccess::Write);
    if meta.has("write") && !writes {
        specs.iter_mut().for_each(|spec| spec.access = KeyAccess::Write);
    }
    Ok(specs.into())
}

/// Returns the check of a command's number of keys.
fn number(meta: &Meta, handling: Handling) -> Number {
    match handling {
        Handling::Script => Number::OfScript,
        _ if ["zdiff", "zinter", "zunion"].iter().any(|begin| meta.name.starts_with(begin)) => {
            Number::OfSortedSets
        }
        _ => Number::Positive,
    }
}

/// Makes the refusal of a command that Redis describes by `meta`.
fn denial(meta: &Meta, reason: String) -> Denial {
    let is_unknown = meta.has("module") || verdict(&meta.name).is_none();
    let observed = match is_unknown && !meta.has("admin") && meta.subcommands.is_empty() {
        true => Some(Observed::Own),
        false => policy::observed(&meta.name),
    };
    Denial { reason: reason.into(), observed }
}
