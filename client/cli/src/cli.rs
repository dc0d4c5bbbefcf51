//! What can be typed.

use clap::{Parser, Subcommand};

use crate::{doctor, lock, object, run, serve};

/// Locks that still protect the data after their holder has stalled.
#[derive(Debug, Parser)]
#[command(name = "fence", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// What to log on stderr: a level, or target=level pairs
    #[arg(long, env = "FENCE_LOG", default_value = "warn", global = true, value_name = "FILTER")]
    pub(crate) log: String,

    /// What to do
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  fence serve                                      both services on this machine, to try things out
  fence run --lock jobs/nightly -- ./nightly.sh    holds the lock while the script runs
  fence lock show jobs/nightly                     who holds it, who waits, how the last ones ended
  fence object put orders/42 --file order.json     writes through the guard, with FENCE_HEADER
  fence doctor                                     judges an installation

Exit codes:
   0 done                        74 whether it was done is not known
   1 there is no such thing      75 the lock was not acquired
  64 wrong usage                 76 the lease was lost
  69 a server cannot be reached  77 the guard refused: a stale token, or another version
  70 a defect";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs lock-server and fenced-store in one process, with embedded stores
    Serve(serve::Args),
    /// Holds a lock while a command runs, and ends the command before the lock can pass on
    Run(run::Args),
    /// Acquires, renews, releases, shows, lists and revokes leases
    Lock(lock::Args),
    /// Reads and writes objects through the guard
    Object(object::Args),
    /// Checks that the servers work and are safe to rely on
    Doctor(doctor::Args),
    /// Started by `run`
    #[command(hide = true)]
    JobHelper(run::helper::Args),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

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
