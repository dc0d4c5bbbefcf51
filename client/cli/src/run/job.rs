//! The command as a process group.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, kill_process_group,
    test_kill_process_group, waitid,
};

use super::progress::Reports;
use super::{helper, signals};
use crate::exit::{Failure, code};

/// A command that was started, as the leader of its own process group.
///
/// The leader is not reaped before [`reap`](Self::reap), so that its number, which is the group's,
/// can belong to nobody else meanwhile.
#[derive(Debug)]
pub(super) struct Job {
    group: Pid,
    reaped: bool,
}

/// How the leader ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    Code(u8),
    Signal(i32),
}

impl Job {
    /// Starts the command with these additions to its environment.
    pub(super) fn start(
        command: &[OsString],
        environment: &[(&'static str, String)],
        reports: Option<&Reports>,
    ) -> Result<Self, Failure> {
        // Through this very program, which ties the command's life to ours before it becomes it.
        let child = Command::new(helper::OWN_PROGRAM)
            .arg0("fence")
            .args(helper::arguments(command, reports))
            // One of a run around this one does not hold these locks.
            .env_remove("FENCE_SESSION_ID")
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .spawn()
            .map_err(|error| Failure::internal(format!("no process can be started: {error}")))?;
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let group = id.ok_or_else(|| Failure::internal("the process id is out of range"))?;
        Ok(Self { group, reaped: false })
    }

    pub(super) fn group(&self) -> Pid {
        self.group
    }

    /// Sends a signal to the whole group. One that is gone already needs none.
    pub(super) fn signal(&self, signal: Signal) {
        match kill_process_group(self.group, signal) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => tracing::warn!(%error, "the process group cannot be signalled"),
        }
    }

    /// Sends a signal to the command alone, and not to what it has started.
    pub(super) fn signal_leader(&self, signal: Signal) {
        match kill_process(self.group, signal) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => tracing::warn!(%error, "the command cannot be signalled"),
        }
    }

    /// How the leader ended, where it has. It stays a zombie.
    pub(super) fn exited(&self) -> Result<Option<Exit>, Failure> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.group), options)
            .map_err(|error| Failure::internal(format!("the command is lost: {error}")))?;
        Ok(status.as_ref().map(exit_of))
    }

    /// The signal that has stopped the leader since the last call.
    pub(super) fn stopped_by(&self) -> Option<Signal> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::Pid(self.group), options).ok()??;
        Signal::from_named_raw(status.stopping_signal()?)
    }

    /// Takes note of the leader's end; only then can the group be seen to be empty.
    pub(super) fn reap(&mut self) {
        if !self.reaped {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            self.reaped = !matches!(waitid(WaitId::Pid(self.group), options), Ok(None));
        }
    }

    /// Whether somebody of the group is left after its leader was reaped.
    pub(super) fn has_members(&self) -> bool {
        test_kill_process_group(self.group) != Err(Errno::SRCH)
    }
}

impl Drop for Job {
    /// However this program leaves, the command does not stay behind without a lease.
    fn drop(&mut self) {
        if !self.reaped {
            self.signal(Signal::KILL);
            self.reap();
        }
    }
}

fn exit_of(status: &WaitIdStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (_, Some(signal)) => Exit::Signal(signal),
        (Some(code), None) => Exit::Code(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
        (None, None) => Exit::Code(code::INTERNAL),
    }
}

impl Exit {
    /// As a shell would report it.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => {
                code::SIGNAL_BASE.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX))
            }
        }
    }

    /// In words.
    pub(super) fn words(self) -> String {
        match self {
            Self::Code(code) => format!("the command ended with {code}"),
            Self::Signal(raw) => {
                let name = Signal::from_named_raw(raw).map(signals::name);
                let name = name.unwrap_or_else(|| format!("signal {raw}"));
                format!("the command was ended by {name}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(Exit::Code(0).code(), 0);
        assert_eq!(Exit::Code(255).code(), 255);
        assert_eq!(Exit::Signal(15).code(), 143);
        assert_eq!(Exit::Signal(9).words(), "the command was ended by SIGKILL");
        assert_eq!(Exit::Signal(64).code(), 192);
    }
}
