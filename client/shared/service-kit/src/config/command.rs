//! Flags of a clap command, and a parse of its command line that is looser than clap's own.

use std::ffi::OsString;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::error::ConfigError;

/// Form of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Once: `--ttl 15s`.
    Value,
    /// Repeated: `--rule a --rule b`.
    Many,
    /// Without a value, on when it is there.
    Switch,
}

/// A flag that the layers may set.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) id: String,
    pub(super) long: String,
    /// Former names: they set the flag, its variable and its key as well.
    pub(super) aliases: Vec<String>,
    pub(super) kind: Kind,
    pub(super) is_required: bool,
}

impl Spec {
    pub(super) fn variable(&self, prefix: &str) -> String {
        variable(prefix, &self.long)
    }

    /// Variables of the flag and of its former names, the flag's own first.
    pub(super) fn variables(&self, prefix: &str) -> Vec<String> {
        self.names().map(|name| variable(prefix, name)).collect()
    }

    /// The flag's name, then its former names.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.long).chain(&self.aliases)
    }
}

fn variable(prefix: &str, name: &str) -> String {
    format!("{prefix}_{}", name.replace('-', "_").to_ascii_uppercase())
}

/// The arguments of the command at `path` (those of the top where there is no such subcommand),
/// then the global ones of the commands above it.
pub(super) fn arguments<'a>(command: &'a Command, path: &[&str]) -> Vec<&'a Arg> {
    let mut at = command;
    let mut global = Vec::new();
    for name in path {
        let Some(below) = at.find_subcommand(name) else {
            return command.get_arguments().collect();
        };
        global.extend(at.get_arguments().filter(|arg| arg.is_global_set()));
        at = below;
    }
    at.get_arguments().chain(global).collect()
}

/// The flags among [`arguments`].
pub(super) fn specs(command: &Command, path: &[&str]) -> Vec<Spec> {
    let args = arguments(command, path).into_iter();
    args.filter_map(|arg| {
        let kind = match arg.get_action() {
            ArgAction::Set => Kind::Value,
            ArgAction::Append => Kind::Many,
            ArgAction::SetTrue => Kind::Switch,
            _ => return None,
        };
        Some(Spec {
            id: arg.get_id().to_string(),
            long: arg.get_long()?.to_owned(),
            aliases: arg
                .get_all_aliases()
                .unwrap_or_default()
                .into_iter()
                .map(Into::into)
                .collect(),
            kind,
            is_required: arg.is_required_set(),
        })
    })
    .collect()
}

/// The flags of the command and of all commands below it.
pub(super) fn all_specs(command: &Command) -> Vec<Spec> {
    let below = command.get_subcommands().flat_map(all_specs);
    specs(command, &[]).into_iter().chain(below).collect()
}

/// The flag that a misspelt name may be meant for.
pub(super) fn nearest<'a>(name: &str, specs: &'a [Spec]) -> Option<&'a Spec> {
    let distance = |spec: &&Spec| distance(name, &spec.long);
    let near = specs.iter().min_by_key(|spec| (distance(spec), &spec.long));
    near.filter(|spec| distance(spec) <= 1 + name.len() / 4)
}

/// Letters that must be changed, added or removed to get from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().take(64).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.iter().enumerate() {
            let change = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

/// The matches of the subcommand at `path`, when the command line leads there.
pub(super) fn descend<'a>(matches: &'a ArgMatches, path: &[&str]) -> Option<&'a ArgMatches> {
    path.iter().try_fold(matches, |matches, name| matches.subcommand_matches(name))
}

/// The command without demands on which flags must be there, and without variables that clap reads
/// by itself; without `typed`, values may be anything, so that all of them can be checked before
/// one is refused.
pub(super) fn loosened(command: Command, path: &[&str], typed: bool) -> Command {
    let groups: Vec<_> = command.get_groups().map(|group| group.get_id().clone()).collect();
    let command = groups
        .into_iter()
        .fold(command, |command, id| command.mut_group(id, |group| group.required(false)))
        .subcommand_required(false)
        .arg_required_else_help(false)
        .mut_args(|arg| {
            let arg = arg.required(false).env(None::<&'static str>);
            let takes_values = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
            if typed || !takes_values { arg } else { arg.value_parser(ValueParser::os_string()) }
        });
    match path {
        [first, below @ ..] if command.find_subcommand(first).is_some() => {
            command.mut_subcommand(*first, |subcommand| loosened(subcommand, below, typed))
        }
        _ => command,
    }
}

/// The command whose global flags have their variables from the layers alone: clap would refuse a
/// wrong variable even where a flag on the command line replaces it.
pub(super) fn without_global_variables(command: Command) -> Command {
    command.mut_args(|arg| match arg.is_global_set() {
        true => arg.env(None::<&'static str>),
        false => arg,
    })
}

/// Returns the flags of the command line, with values that are still raw.
///
/// # Errors
/// Clap's error for a command line that cannot be taken apart, and its reply to `--help` and
/// `--version`.
pub(super) fn parse_loosely(
    strict: &Command,
    path: &[&str],
    args: &[OsString],
) -> Result<ArgMatches, ConfigError> {
    let loose = loosened(strict.clone(), path, false);
    let error = match loose.clone().try_get_matches_from(args) {
        Ok(matches) => return Ok(matches),
        Err(error) => error,
    };
    if matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict) {
        // What is missing may come from a lower layer; the last pass has the last word.
        if let Ok(matches) = loose.ignore_errors(true).try_get_matches_from(args) {
            return Ok(matches);
        }
    }
    // The strict command words its help and usage as they are.
    Err(strict.clone().try_get_matches_from(args).err().unwrap_or(error).into())
}

/// Position for more flags of the command at `path`: behind the last word that leads there.
pub(super) fn insert_position(strict: &Command, path: &[&str], args: &[OsString]) -> usize {
    let loose = loosened(strict.clone(), path, false).ignore_errors(true);
    let mut at = 1;
    for depth in 1..=path.len() {
        let leads = |end: &usize| {
            let matches = loose.clone().try_get_matches_from(&args[..*end]);
            matches.is_ok_and(|matches| descend(&matches, &path[..depth]).is_some())
        };
        at = (at + 1..=args.len()).find(leads).unwrap_or(at);
    }
    at
}

/// A command line: the program, the way to the subcommand, the flags.
pub(super) fn words(
    command: &Command,
    path: &[&str],
    flags: impl IntoIterator<Item = OsString>,
) -> Vec<OsString> {
    let start = std::iter::once(command.get_name()).chain(path.iter().copied());
    start.map(OsString::from).chain(flags).collect()
}
