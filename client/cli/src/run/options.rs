//! Flags of a hold: what `run` and `elect` have in common.

use std::ffi::OsString;
use std::time::Duration;

use fence_protocol::duration;
use rustix::process::Signal;

use super::signals;

/// The shell's command, duration and conditions of the hold.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// A command line for /bin/sh, in place of CMD
    #[arg(short = 'c', long = "command", value_name = "TEXT", conflicts_with = "command")]
    shell: Option<OsString>,

    /// Time to live; renewed every third of it
    #[arg(long, default_value = "15s", value_name = "TIME", value_parser = duration::parse_positive)]
    pub(crate) ttl: Duration,

    /// Longest time for the command to end after the lease is lost
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = duration::parse)]
    pub(crate) grace: Duration,

    /// End the command unless it reports progress again within this time
    ///
    /// It writes any byte to the file descriptor whose number is in FENCE_PROGRESS_FD (in a shell:
    /// echo >&$FENCE_PROGRESS_FD), or sends USR2 to the process in FENCE_PROGRESS_PID, which is
    /// then not passed on. Time for which the machine was suspended does not count.
    #[arg(long, value_name = "TIME", value_parser = duration::parse_positive)]
    pub(crate) progress_within: Option<Duration>,

    /// End the command this long after the grant
    #[arg(long, value_name = "TIME", value_parser = duration::parse_positive)]
    pub(crate) max_hold: Option<Duration>,

    /// Warn on stderr this long before the lease will be lost
    #[arg(long, value_name = "TIME", value_parser = duration::parse_positive)]
    pub(crate) warn_before: Option<Duration>,

    /// Signal to the command with the warning: TERM, INT, HUP, QUIT, USR1 or USR2; it ends a
    /// command that does not handle it
    #[arg(long, value_name = "SIGNAL", value_parser = signals::parse, requires = "warn_before")]
    pub(crate) warn_signal: Option<Signal>,

    /// Leave background processes of the command running, without the lock
    #[arg(long)]
    pub(crate) leave_background: bool,

    /// Report acquire and release on stderr
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

/// The request with an option, if it was given.
pub(crate) fn given<R, T>(value: Option<T>, request: R, set: impl FnOnce(R, T) -> R) -> R {
    match value {
        Some(value) => set(request, value),
        None => request,
    }
}

impl Options {
    /// The command line to run: the shell's, or `command`.
    pub(crate) fn command_line(&self, command: &[OsString]) -> Vec<OsString> {
        match &self.shell {
            Some(text) => vec!["/bin/sh".into(), "-c".into(), text.clone()],
            None => command.to_vec(),
        }
    }
}
