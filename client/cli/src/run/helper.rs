//! The helper that starts the command: the steps between fork and exec that need no
//! unsafe code when they are a program of their own.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::FdFlags;
use rustix::process::{Pid, Signal};

use super::progress::Reports;
use super::watcher;
use fence_terminal::exit::{Failure, code};

/// Variables with which a service manager names the process that its watchdog
/// (`sd_watchdog_enabled`) and its sockets (`sd_listen_fds`) are for.
const NAMES_OF_PROCESSES: [&str; 2] = ["WATCHDOG_PID", "LISTEN_PID"];

/// Started by `run`, never by people.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The process that must be alive
    #[arg(long)]
    parent: Option<i32>,

    /// Give the terminal to this process group and end
    #[arg(long)]
    terminal_to: Option<i32>,

    /// Kill the process group that is named on stdin once stdin ends
    #[arg(long)]
    watch: bool,

    /// File descriptor for the command's reports
    #[arg(long)]
    progress_to: Option<PathBuf>,

    /// The command to become
    #[arg(last = true)]
    command: Vec<OsString>,
}

/// The arguments that make this program become `command`.
pub(super) fn arguments(command: &[OsString], reports: Option<&Reports>) -> Vec<OsString> {
    let parent = std::process::id().to_string();
    let mut options = vec!["job-helper".into(), "--parent".into(), parent.into()];
    if let Some(reports) = reports {
        options.extend(["--progress-to".into(), reports.path().into_os_string()]);
    }
    options.push("--".into());
    options.extend_from_slice(command);
    options
}

/// The arguments that make this program give the terminal away.
pub(super) fn terminal_arguments(group: Pid) -> [OsString; 3] {
    let group = group.as_raw_pid().to_string();
    ["job-helper".into(), "--terminal-to".into(), group.into()]
}

/// Opens the controlling terminal.
pub(super) fn open_terminal() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/tty")
}

/// Does it. Comes back only where it fails, after giving the terminal away, or as a watcher.
pub(crate) fn start(args: Args) -> Result<u8, Failure> {
    if args.watch {
        return watcher::watch();
    }
    if let Some(group) = args.terminal_to.and_then(Pid::from_raw) {
        let given = open_terminal().and_then(|device| {
            rustix::termios::tcsetpgrp(device, group)?;
            Ok(code::OK)
        });
        return given.map_err(|error| Failure::internal(error.to_string()));
    }
    tie_to(args.parent)?;
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(Failure::usage("this is for `fence run`"));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    // It stays open until the command has taken this process over, and then it is the command's.
    let end = args.progress_to.as_deref().map(reports_end).transpose()?;
    if let (Some(end), Some(parent)) = (&end, args.parent) {
        command.env("FENCE_PROGRESS_FD", end.as_raw_fd().to_string());
        command.env("FENCE_PROGRESS_PID", parent.to_string());
    }
    // It takes this process over, so that the number stays.
    for name in NAMES_OF_PROCESSES {
        if meant_for(name, args.parent) {
            command.env(name, std::process::id().to_string());
        }
    }
    let error = command.exec();
    Err(not_executed(program, &error))
}

/// Returns `true` if the service manager meant the process that this one was started by.
fn meant_for(name: &str, parent: Option<i32>) -> bool {
    let named = fence_client::config::variable(name).and_then(|number| number.parse().ok());
    parent.is_some() && named == parent
}

/// The command's end of the pipe. Opened here, and not handed down, because it then has the lowest
/// number that is free: 3, as a rule, and some shells know only the first ten.
fn reports_end(path: &Path) -> Result<File, Failure> {
    let opened = OpenOptions::new().write(true).open(path);
    let end = opened.and_then(|end| {
        rustix::io::fcntl_setfd(&end, FdFlags::empty())?;
        Ok(end)
    });
    end.map_err(|error| Failure::internal(format!("no pipe for reports at {path:?}: {error}")))
}

/// A holder that was killed outright can end nothing any more, so the kernel does it: the command
/// is killed together with the process that watches its lease.
fn tie_to(parent: Option<i32>) -> Result<(), Failure> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::internal(format!("the kernel refuses to watch: {error}")))?;
    // It may have ended before the kernel was set to signal it.
    let is_orphan =
        parent.is_some() && rustix::process::getppid() != parent.and_then(Pid::from_raw);
    if is_orphan { Err(Failure::silent(code::LOST)) } else { Ok(()) }
}

fn not_executed(program: &OsStr, error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => code::NOT_FOUND,
        _ => code::NOT_EXECUTABLE,
    };
    Failure::new(code, format!("{program:?} cannot be started: {error}"))
}
