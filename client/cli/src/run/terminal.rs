//! The terminal: while the command runs it belongs to the command's process group, so that reading
//! from it, Ctrl-C and Ctrl-Z work as if the command had been started by itself.

use std::io::stdin;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Pid, getpgrp};

use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

use super::helper;

/// The terminal on stdin, where there is one and this process is in its foreground.
#[derive(Debug)]
pub(super) struct Terminal {
    own_group: Pid,
    job: Pid,
}

impl Terminal {
    /// Gives the terminal to the job. `None` in a pipeline, in the background, in cron: then the
    /// job has nothing to do with a terminal.
    pub(super) fn give_to(job: Pid) -> Option<Self> {
        let own_group = getpgrp();
        let is_ours = isatty(stdin()) && tcgetpgrp(stdin()) == Ok(own_group);
        if !is_ours || tcsetpgrp(stdin(), job).is_err() {
            return None;
        }
        Some(Self { own_group, job })
    }

    /// `true` while the job owns it.
    pub(super) fn is_with_job(&self) -> bool {
        tcgetpgrp(stdin()) == Ok(self.job)
    }

    /// Gives it to the job again, after the shell gave it to us. In the background it is not ours
    /// to give.
    pub(super) fn give_again(&self) {
        if tcgetpgrp(stdin()) == Ok(self.own_group) {
            let _ = tcsetpgrp(stdin(), self.job);
        }
    }

    /// Takes it back. Only the foreground group may change the foreground group without being
    /// stopped, and that is the job's: so a helper joins it, which is possible as long as the
    /// job's leader has not been reaped.
    pub(super) fn take_back(&self) {
        let helper = Command::new(super::OWN_PROGRAM)
            .arg0("fence")
            .args(helper::terminal_arguments(self.own_group))
            .process_group(self.job.as_raw_pid())
            .status();
        if let Err(error) = helper {
            tracing::warn!(%error, "the terminal cannot be returned to the shell's group");
        }
    }
}
