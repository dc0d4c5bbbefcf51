//! The command line.

use std::ffi::OsString;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

#[cfg(feature = "servers")]
use fence_demos::{bench, demo, internal};
use fence_terminal::color;
use fence_terminal::output::Format;

#[cfg(feature = "servers")]
use crate::serve;
#[cfg(not(feature = "servers"))]
use crate::services as serve;
use crate::{auth, completions, config, doctor, elect, keys, lock, object, run, session};

/// Locks that still protect the data after their holder has stalled.
///
/// Every flag of a command is also a variable (--ttl is FENCE_TTL) and a key of the TOML file that
/// --config names. A flag beats a variable, which beats the file.
#[derive(Debug, Parser)]
#[command(name = "fence", version, max_term_width = 100, after_help = examples())]
pub(crate) struct Cli {
    /// Log on stderr: a level, or target=level pairs
    #[arg(long, env = "FENCE_LOG", default_value = "warn", global = true, value_name = "FILTER")]
    pub(crate) log: String,

    /// Colours: auto has them on a terminal, unless NO_COLOR is set
    #[arg(long, env = "FENCE_COLOR", default_value = "auto", global = true, value_name = "WHEN")]
    pub(crate) color: color::Choice,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// A command line, with the format that its command was given.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) cli: Cli,
    pub(crate) format: Format,
}

impl Parser for Parsed {}

impl CommandFactory for Parsed {
    fn command() -> clap::Command {
        Cli::command()
    }

    fn command_for_update() -> clap::Command {
        Cli::command_for_update()
    }
}

impl FromArgMatches for Parsed {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut own = matches;
        while let Some((_, below)) = own.subcommand() {
            own = below;
        }
        let format = own.try_get_one::<Format>("format").ok().flatten();
        let format = format.copied().unwrap_or_default();
        Ok(Self { cli: Cli::from_arg_matches(matches)?, format })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Help below the commands.
fn examples() -> String {
    let first = if cfg!(feature = "servers") { TRIALS } else { "Examples:\n" };
    format!("{first}{EXAMPLES}")
}

const TRIALS: &str = "\
Examples:
  fence demo gc-stall                              why: a stalled holder, without and with the guard
  fence serve                                      both services on this machine, to try things out
";

const EXAMPLES: &str =
    "  fence run --lock jobs/nightly -- ./nightly.sh    holds the lock while the script runs
  fence elect --name web/leader -- ./lead.sh       runs the script while this machine is the leader
  fence lock show jobs/nightly                     its holder, its waiters, its last leases
  fence lock explain jobs/nightly                  the same in sentences, and refusals by guards
  fence lock watch jobs/                           events of these locks as they happen
  fence session block 4c0e… --reason 'runs away'   it cannot renew, and ends at its expiry
  fence object put orders/42 --file order.json     writes through the guard, with FENCE_HEADER
  fence auth new ci --secret-file ci.secret        a bearer token, for servers with access control
  fence keys new keys.txt                          the keys that both servers sign tokens with
  fence doctor                                     checks an installation

Exit codes:
   0 done                        74 whether it was done is not known
   1 there is no such thing      75 the lock was not acquired
  64 wrong usage                 76 the lease was lost
  69 a server cannot be reached  77 refused: a stale token, another version of the object,
  70 a defect                     or the caller has no right";

/// The commands; each one's help is at its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(serve::Args),
    Run(run::Args),
    Elect(elect::Args),
    Lock(lock::Args),
    Session(session::Args),
    Object(object::Args),
    Auth(auth::Args),
    Keys(keys::Args),
    Doctor(Box<doctor::Args>),
    #[cfg(feature = "servers")]
    Bench(bench::Args),
    #[cfg(feature = "servers")]
    Demo(demo::Args),
    Config(config::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    Man(completions::Man),
    /// Started by `demo` and `bench`
    #[cfg(feature = "servers")]
    #[command(hide = true)]
    Internal(internal::Args),
    /// Started by `run`
    #[command(hide = true)]
    JobHelper(run::helper::Args),
}

/// `true` for a command line with which this program starts itself.
pub(crate) fn is_internal(args: &[OsString]) -> bool {
    let command = Cli::command();
    let name = args.get(1).and_then(|name| name.to_str());
    name.and_then(|name| command.find_subcommand(name)).is_some_and(clap::Command::is_hide_set)
}

/// The names of the subcommands that a command line leads to: the place of the settings that
/// variables and the configuration file may give. Empty where it does not lead to a command yet.
pub(crate) fn path(args: &[OsString]) -> Vec<String> {
    let mut command = Cli::command();
    let mut path = Vec::new();
    for arg in args.iter().skip(1).map_while(|arg| arg.to_str()).take_while(|arg| *arg != "--") {
        if let Some(next) = command.find_subcommand(arg) {
            // Variables and the configuration file are not settings of these themselves.
            if next.is_hide_set() || ["demo", "config"].contains(&next.get_name()) {
                return Vec::new();
            }
            path.push(next.get_name().to_owned());
            command = next.clone();
        }
    }
    if command.has_subcommands() { Vec::new() } else { path }
}

/// The output format of a command line that was not checked: for errors in the line itself.
pub(crate) fn format(args: &[OsString], variable: Option<String>) -> Format {
    let words = args.iter().skip(1).filter_map(|arg| arg.to_str());
    let words: Vec<&str> = words.take_while(|word| *word != "--").collect();
    let given = words.iter().enumerate().rev().find_map(|(at, word)| match *word {
        "--output" | "-o" => words.get(at + 1).copied(),
        _ => {
            let short = word.strip_prefix("-o").map(|value| value.trim_start_matches('='));
            word.strip_prefix("--output=").or(short)
        }
    });
    let is_json = match given {
        Some(given) => given == "json",
        None => variable.is_some_and(|variable| variable == "json"),
    };
    if is_json { Format::Json } else { Format::Table }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_ends_where_arguments_begin() {
        let path = |line: &str| path(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(path("fence"), Vec::<String>::new());
        assert_eq!(path("fence --log debug run --lock lock -- run"), ["run"]);
        assert_eq!(path("fence lock show lock"), ["lock", "show"]);
        assert_eq!(path("fence lock"), Vec::<String>::new());
        assert_eq!(path("fence job-helper -- run"), Vec::<String>::new());
        assert_eq!(path("fence internal lock-server lock show"), Vec::<String>::new());
        assert_eq!(path("fence demo gc-stall"), Vec::<String>::new());
        assert_eq!(path("fence config show run"), Vec::<String>::new());
    }

    #[test]
    fn the_format_is_known_before_the_line_is_checked() {
        let format = |line: &str, variable: Option<&str>| {
            let args: Vec<_> = line.split(' ').map(OsString::from).collect();
            super::format(&args, variable.map(str::to_owned)) == Format::Json
        };
        for line in
            ["fence --output json", "fence x --output=json", "fence -o json", "fence -ojson"]
        {
            assert!(format(line, None), "{line}");
        }
        assert!(format("fence x", Some("json")) && !format("fence x -o table", Some("json")));
        assert!(!format("fence run -- tar -o json", None) && !format("fence --output", None));
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Every command that does something shows how, in its help.
    #[test]
    fn every_help_has_examples() {
        fn visit(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{path} has no examples");
            for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
                visit(sub, &path);
            }
        }
        visit(&Cli::command(), "");
    }
}
