//! The process that ends a command's group where this one was killed outright. The kernel then
//! kills the command itself, but not what the command has started.

use std::io::{self, BufRead as _, PipeWriter, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use super::OWN_PROGRAM;
use fence_terminal::exit::{Failure, code};

/// Between two signals to a group that is not empty yet.
const KILL_AGAIN: Duration = Duration::from_millis(20);
/// Signals to the group, at most: a killed process may stay in it as a zombie.
const KILLS_MAX: u32 = 500;

/// The watcher of one command, from this side. Dropping it ends the watcher and nothing else.
#[derive(Debug)]
pub(super) struct Watcher {
    pid: Pid,
    /// Its other end is the watcher's stdin, which ends with this process, however that ends.
    life: PipeWriter,
    is_reaped: bool,
}

impl Watcher {
    /// Starts it, in a process group of its own, which neither terminal nor supervisor signals.
    pub(super) fn start() -> Result<Self, Failure> {
        let failed =
            |error: io::Error| Failure::internal(format!("no watcher can be started: {error}"));
        let (stdin, life) = io::pipe().map_err(failed)?;
        let child = Command::new(OWN_PROGRAM)
            .arg0("fence")
            .args(["job-helper", "--watch"])
            .stdin(stdin)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        Ok(Self { pid: Pid::from_child(&child), life, is_reaped: false })
    }

    /// The group that it ends together with this process.
    pub(super) fn guard(&mut self, group: Pid) -> Result<(), Failure> {
        writeln!(self.life, "{}", group.as_raw_pid())
            .map_err(|error| Failure::internal(format!("the watcher has ended: {error}")))
    }

    /// A child with this process id has ended and was reaped; whether it was the watcher.
    pub(super) fn note_reaped(&mut self, pid: Pid) -> bool {
        self.is_reaped |= pid == self.pid;
        pid == self.pid
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if !self.is_reaped {
            // Before the pipe is closed, which would make it end the group.
            let _ = kill_process(self.pid, Signal::KILL);
            let _ = waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED);
        }
    }
}

/// In the watcher's place: waits until stdin ends, then kills the group that was named there.
pub(super) fn watch() -> Result<u8, Failure> {
    let mut stdin = io::stdin().lock();
    let mut line = String::new();
    let named = stdin.read_line(&mut line);
    // Reading fails only where there is nothing more to come.
    let _ = stdin.read_to_end(&mut Vec::new());
    let group = named.ok().and_then(|_| Pid::from_raw(line.trim().parse().ok()?));
    for _ in 0..if group.is_some() { KILLS_MAX } else { 0 } {
        if group.is_none_or(|group| kill_process_group(group, Signal::KILL) == Err(Errno::SRCH)) {
            break;
        }
        std::thread::sleep(KILL_AGAIN);
    }
    Ok(code::OK)
}
