//! One process under test: its output in files, its end certain.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

use crate::wait::{patience, until, until_within};

/// A running (or ended) process. Killed, with its process group, when dropped; shows the end of
/// its output when dropped by a failing test.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
    logs: TempDir,
}

/// Exit code and output of a process that ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// The exit code; 128 + n where signal n ended it.
    pub code: i32,
    /// All of standard output.
    pub stdout: String,
    /// All of standard error.
    pub stderr: String,
}

/// The program at `program`, without the settings of Fencepost that this environment may have, and
/// with PostgreSQL's own programs: what Debian has on the `PATH` is a Perl script before each.
pub fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    if let Some(programs) = crate::postgres_server::programs() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(programs.to_path_buf()).chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(folders).expect("a PATH without colons in names"));
    }
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["FENCE_", "LOCK_SERVER_", "FENCED_STORE_"].iter().any(|own| text.starts_with(own)) {
            command.env_remove(&name);
        }
    }
    command
}

/// SIGSTOP to one process, of which nothing runs any more afterwards.
///
/// # Errors
/// Where there is no such process.
///
/// # Panics
/// If it continues to run.
pub fn pause(process: Pid) -> rustix::io::Result<()> {
    kill_process(process, Signal::STOP)?;
    await_pause(process);
    Ok(())
}

/// Waits until every thread of a process that was sent SIGSTOP has stopped, or the process has
/// ended. On a busy machine the others run on until one of them had a turn and took the signal.
///
/// # Panics
/// If one continues to run.
pub(crate) fn await_pause(process: Pid) {
    let began = Instant::now();
    while states_of(process).chars().any(|state| !"TZX".contains(state)) {
        assert!(began.elapsed() < patience(), "process {process:?} runs on after SIGSTOP");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The state of each thread as the kernel names it, a letter each; none of a process that is gone.
fn states_of(process: Pid) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    let stats = tasks.into_iter().flatten().flatten();
    let stats = stats.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    stats.filter_map(|stat| stat.rsplit(") ").next()?.chars().next()).collect()
}

impl Process {
    /// Starts it, in a process group of its own, with both outputs in files of their own.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn(name: &str, mut command: Command) -> Self {
        let logs = crate::folder::new();
        let file = |kind: &str| File::create(logs.path().join(kind)).expect("a log file");
        command.stdout(file("stdout")).stderr(file("stderr")).stdin(Stdio::null());
        command.process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Self { name: name.to_owned(), child, ended: None, logs }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line on standard output that begins with `prefix`, and returns what follows.
    ///
    /// # Panics
    /// If the process ends first, or the line never comes.
    pub async fn line_after(&mut self, prefix: &str) -> String {
        let what = format!("{} to print {prefix:?}", self.name);
        let path = self.logs.path().join("stdout");
        until(&what, || {
            let text = read(&path);
            let complete = &text[..text.rfind('\n').map_or(0, |at| at + 1)];
            let line = complete.lines().find_map(|line| line.strip_prefix(prefix));
            let found = line.map(|rest| rest.trim().to_owned());
            if found.is_none()
                && let Some(status) = self.try_wait()
            {
                panic!("{} ended ({status}) before {prefix:?}\n{}", self.name, self.tail());
            }
            std::future::ready(found)
        })
        .await
    }

    /// Sends a signal to the process alone.
    ///
    /// # Panics
    /// If there is no such process.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.id(), signal).unwrap_or_else(|e| panic!("{signal:?} {}: {e}", self.name));
    }

    /// SIGSTOP: it stops between two instructions and knows nothing of it.
    ///
    /// # Panics
    /// If it has ended, or continues to run.
    pub fn pause(&self) {
        pause(self.id()).unwrap_or_else(|error| panic!("SIGSTOP {}: {error}", self.name));
        assert!(self.is_stopped(), "{} was to be paused, and has ended", self.name);
    }

    /// Resumes it (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits until it is paused by a SIGSTOP, which any process may have sent.
    ///
    /// # Panics
    /// If it continues to run.
    pub async fn stopped(&self) {
        let what = format!("{} to stand still", self.name);
        crate::wait::until_true(&what, || async { self.is_stopped() }).await;
    }

    /// Returns `true` while it is paused.
    pub fn is_stopped(&self) -> bool {
        let states = states_of(self.id());
        !states.is_empty() && states.chars().all(|state| state == 'T')
    }

    /// The memory that it occupies now, in bytes.
    ///
    /// # Panics
    /// If it is gone.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("the process is there");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.expect("VmRSS in kB") * 1024
    }

    /// SIGTERM: it is asked to end.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGKILL, and waits until it is gone.
    ///
    /// # Panics
    /// If it cannot be waited for.
    pub fn kill(&mut self) {
        if self.try_wait().is_none() {
            self.child.kill().expect("SIGKILL");
            self.ended = Some(self.child.wait().expect("wait"));
        }
    }

    /// Waits until it has ended, and returns its output.
    ///
    /// # Panics
    /// If it does not end.
    pub async fn ended(&mut self) -> Output {
        let what = format!("{} to end", self.name);
        let status = until(&what, || std::future::ready(self.try_wait())).await;
        self.output(status)
    }

    /// Waits as [`Self::ended`] does, for what has much to do.
    ///
    /// # Panics
    /// If it does not end within `limit`, which is scaled as every limit.
    pub async fn ended_within(&mut self, limit: Duration) -> Output {
        let what = format!("{} to end", self.name);
        let look = || std::future::ready(self.try_wait());
        let status = until_within(limit, &what, look).await;
        self.output(status)
    }

    fn output(&self, status: ExitStatus) -> Output {
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        Output { code, stdout: self.stdout(), stderr: self.stderr() }
    }

    /// `true` if it still runs.
    pub fn is_running(&mut self) -> bool {
        self.try_wait().is_none()
    }

    /// Its standard output so far.
    pub fn stdout(&self) -> String {
        read(&self.logs.path().join("stdout"))
    }

    /// Its standard error so far.
    pub fn stderr(&self) -> String {
        read(&self.logs.path().join("stderr"))
    }

    /// Copies both outputs to a folder that outlives the test, and returns it.
    fn keep_logs(&self) -> std::io::Result<PathBuf> {
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("unnamed").replace("::", ".");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-logs").join(test);
        std::fs::create_dir_all(&folder)?;
        for kind in ["stdout", "stderr"] {
            let kept = folder.join(format!("{}-{}.{kind}", self.name, self.pid()));
            std::fs::copy(self.logs.path().join(kind), kept)?;
        }
        folder.canonicalize()
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("wait");
        }
        self.ended
    }

    pub(crate) fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The end of both outputs, for a message.
    pub fn tail(&self) -> String {
        let end = |text: String| {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(30)..].join("\n")
        };
        format!(
            "--- {} stdout\n{}\n--- {} stderr\n{}",
            self.name,
            end(self.stdout()),
            self.name,
            end(self.stderr())
        )
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.try_wait().is_none() {
            // The leader is alive, so the group's id cannot have been given to anyone else.
            let _ = kill_process_group(self.id(), Signal::KILL);
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("{}", self.tail());
            match self.keep_logs() {
                Ok(folder) => eprintln!("--- all of it: {}", folder.display()),
                Err(error) => eprintln!("--- the logs of {} are not kept: {error}", self.name),
            }
        }
    }
}

fn read(path: &PathBuf) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// Runs a program of this workspace to its end.
///
/// # Panics
/// If it does not end.
pub async fn run(name: &str, args: &[&str]) -> Output {
    let mut command = command(crate::binaries::path(name));
    command.args(args);
    Process::spawn(name, command).ended().await
}
