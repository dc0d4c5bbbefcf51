//! The terminal that controls this process: while the command runs it belongs to the command's
//! process group, so that reading from it, Ctrl-C and Ctrl-Z work as if the command had been
//! started by itself.
//!
//! Where stdin is something else (a pipeline), the other programs of the pipeline may be reading
//! from the terminal, and it stays with them until the command asks for it.

use std::fs::File;
use std::io::{IsTerminal as _, stdin};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Pid, getpgid, getpgrp, getppid, getsid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::helper;

/// The controlling terminal, whatever stdin is.
#[derive(Debug)]
pub(super) struct Terminal {
    device: File,
    own_group: Pid,
    job: Pid,
}

impl Terminal {
    /// `None` where no terminal controls this process: in cron, under a service manager.
    pub(super) fn for_job(job: Pid) -> Option<Self> {
        Some(Self { device: helper::open_terminal().ok()?, own_group: getpgrp(), job })
    }

    /// Gives it to the job where the job's input is the terminal.
    pub(super) fn give_input(&self) {
        if stdin().is_terminal() {
            self.give();
        }
    }

    /// Gives it to the job, unless this process is in the background: then it is not ours to give.
    /// Returns `true` if the job has it now.
    pub(super) fn give(&self) -> bool {
        let is_ours = tcgetpgrp(&self.device) == Ok(self.own_group);
        self.is_with_job() || is_ours && tcsetpgrp(&self.device, self.job).is_ok()
    }

    /// `true` while the job owns it.
    fn is_with_job(&self) -> bool {
        tcgetpgrp(&self.device) == Ok(self.job)
    }

    /// Takes it back from the job. Only the foreground group may change the foreground group
    /// without being stopped, and that is the job's: so a helper joins it, which is possible as
    /// long as the job's leader has not been reaped.
    pub(super) fn take_back(&self) {
        if !self.is_with_job() {
            return;
        }
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

/// Returns `true` if a shell can resume this process group after it was stopped: a parent outside
/// of the group, in the same session. Without one (`ssh -t`, a container) nothing would.
pub(super) fn has_shell() -> bool {
    let own_group = getpgrp();
    let session = getsid(None).ok();
    let mut parent = getppid();
    while let Some(pid) = parent {
        if getsid(Some(pid)).ok() != session {
            return false;
        }
        if getpgid(Some(pid)) != Ok(own_group) {
            return true;
        }
        parent = parent_of(pid);
    }
    false
}

/// The parent of another process, where the system shows it.
fn parent_of(pid: Pid) -> Option<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Pid::from_raw(line.trim().parse().ok()?)
}
