//! The command as a process group.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, getpgid, kill_process,
    kill_process_group, test_kill_process_group, wait, waitid,
};

use super::progress::Reports;
use super::watcher::Watcher;
use super::{helper, members, signals};
use fence_terminal::exit::{Failure, code};

/// A command that was started, as the leader of its own process group.
///
/// The leader is not reaped before [`reap`](Self::reap), so that its number, which is the group's,
/// can belong to no other process meanwhile. Descendants whose parent has ended become children of
/// this process, which reaps them: a zombie would count as a member of the group.
#[derive(Debug)]
pub(super) struct Job {
    group: Pid,
    watcher: Option<Watcher>,
    exit: Option<Exit>,
    reaped: bool,
    /// The group is empty, or was left running on purpose.
    over: bool,
}

/// End of the leader.
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
        adopt_descendants();
        let mut watcher = Watcher::start()?;
        // Through this very program, which ties the command's life to ours before it becomes it.
        let child = Command::new(super::OWN_PROGRAM)
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
        let guarded = watcher.guard(group);
        let watcher = Some(watcher);
        let job = Self { group, watcher, exit: None, reaped: false, over: false };
        guarded.map(|()| job)
    }

    pub(super) fn group(&self) -> Pid {
        self.group
    }

    /// Sends a signal to the whole group, and to the command where it has left the group. What is
    /// gone already needs none.
    pub(super) fn signal(&self, signal: Signal) {
        match kill_process_group(self.group, signal) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => tracing::warn!(%error, "the process group cannot be signalled"),
        }
        // But for KILL, two would be too many: some programs end at once at a second one.
        if signal == Signal::KILL || getpgid(Some(self.group)) != Ok(self.group) {
            self.signal_leader(signal);
        }
    }

    /// Sends a signal to the command alone, and not to what it has started.
    pub(super) fn signal_leader(&self, signal: Signal) {
        // Its number may belong to another process once it is reaped.
        if self.reaped {
            return;
        }
        match kill_process(self.group, signal) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => tracing::warn!(%error, "the command cannot be signalled"),
        }
    }

    /// End of the leader, if it has ended. It stays a zombie.
    pub(super) fn exited(&self) -> Result<Option<Exit>, Failure> {
        if self.exit.is_some() {
            return Ok(self.exit);
        }
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

    /// Reaps the leader, which has ended; only then can the group be seen to be empty.
    pub(super) fn reap(&mut self) {
        if !self.reaped {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            self.reaped = !matches!(waitid(WaitId::Pid(self.group), options), Ok(None));
        }
    }

    /// Reaps every child that has ended: those that became children of this process when their
    /// parent ended.
    pub(super) fn reap_adopted(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.group && !self.reaped {
                // It ended since the caller looked.
                let code = status.exit_status().unwrap_or(i32::from(code::INTERNAL));
                let code = Exit::Code(u8::try_from(code & 0xff).unwrap_or(u8::MAX));
                self.exit = Some(status.terminating_signal().map_or(code, Exit::Signal));
                self.reaped = true;
            }
            if self.watcher.as_mut().is_some_and(|watcher| watcher.note_reaped(pid)) {
                self.watch_again();
            }
        }
    }

    fn watch_again(&mut self) {
        let again = Watcher::start().and_then(|mut watcher| {
            watcher.guard(self.group)?;
            Ok(watcher)
        });
        self.watcher = again
            .inspect_err(|error| tracing::warn!(%error, "nothing ends the group if this is killed"))
            .ok();
    }

    /// Returns `true` if a member of the group is left after its leader was reaped; zombies count.
    pub(super) fn has_members(&self) -> bool {
        test_kill_process_group(self.group) != Err(Errno::SRCH)
    }

    /// Returns `true` if a member other than a zombie is left.
    pub(super) fn has_live_members(&self) -> bool {
        self.has_members() && members::is_any_live(self.group)
    }

    /// The group is empty, or is meant to continue; returns whether processes of the command are
    /// left, in its group or outside of it.
    pub(super) fn let_go(&mut self) -> bool {
        self.over = true;
        self.watcher = None;
        // Without the watcher, a child that is left is an adopted one.
        self.reap_adopted();
        self.has_live_members() || matches!(wait(WaitOptions::NOHANG), Ok(None))
    }
}

impl Drop for Job {
    /// However this program leaves, the command does not stay behind without a lease.
    fn drop(&mut self) {
        if !self.over {
            self.signal(Signal::KILL);
            self.reap();
        }
    }
}

/// Makes descendants whose parent has ended children of this process and not of process 1, which
/// need not reap them.
fn adopt_descendants() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        tracing::debug!(%error, "descendants of the command cannot be adopted");
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
