//! The processes of a demo, from the director's side: started, talked to, stopped, ended.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use fence_terminal::exit::{Failure, code};

/// Time-out of every step of a demo; far longer than any step takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Interval between two polls.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A process that the demo started. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl Process {
    /// This very program in another role; what it says on stderr goes to a file in `dir`.
    pub(crate) fn start(name: &str, role: &[impl AsRef<str>], dir: &Path) -> Result<Self, Failure> {
        Self::start_with(name, role, dir, None)
    }

    /// Starts it with a variable in its environment, for values that a command line must not show.
    pub(crate) fn start_with(
        name: &str,
        role: &[impl AsRef<str>],
        dir: &Path,
        variable: Option<(&str, &str)>,
    ) -> Result<Self, Failure> {
        let director = std::process::id().to_string();
        let mut args = vec!["internal".to_owned(), format!("--director={director}")];
        args.extend(role.iter().map(|arg| arg.as_ref().to_owned()));
        Self::spawn(name, args.into_iter().map(OsString::from).collect(), dir, variable)
    }

    /// Another program, which the kernel ends with the director.
    pub(crate) fn start_other(
        name: &str,
        program: &Path,
        args: &[String],
        dir: &Path,
    ) -> Result<Self, Failure> {
        let director = std::process::id().to_string();
        let mut all: Vec<OsString> =
            ["job-helper", "--parent", &director, "--"].iter().map(OsString::from).collect();
        all.push(program.into());
        all.extend(args.iter().map(OsString::from));
        Self::spawn(name, all, dir, None)
    }

    fn spawn(
        name: &str,
        args: Vec<OsString>,
        dir: &Path,
        variable: Option<(&str, &str)>,
    ) -> Result<Self, Failure> {
        let failed = |what: &str| Failure::internal(format!("{name} cannot be started: {what}"));
        let program = std::env::current_exe().map_err(|error| failed(&error.to_string()))?;
        let log = dir.join(format!("{}.log", name.replace(' ', "-")));
        let stderr = File::create(&log).map_err(|error| failed(&error.to_string()))?;
        // Without the environment: a server must not take settings from outside the demo. In a
        // group of its own: Ctrl-C reaches the director alone, which ends the others.
        let mut child = Command::new(program)
            .args(args)
            .env_clear()
            .envs(variable)
            .process_group(0)
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(|error| failed(&error.to_string()))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("it has no pipes"));
        };
        let lines = BufReader::new(stdout).lines();
        Ok(Self { name: name.to_owned(), child, stdin, lines, log })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }

    /// The next line that it says.
    pub(crate) async fn line(&mut self) -> Result<String, Failure> {
        match tokio::time::timeout(PATIENCE, self.lines.next_line()).await {
            Ok(Ok(Some(line))) => Ok(line),
            Ok(Ok(None)) => Err(self.failed("it ended")),
            Ok(Err(error)) => Err(self.failed(&format!("its stdout cannot be read: {error}"))),
            Err(_) => Err(self.failed(&format!("it said nothing for {} s", PATIENCE.as_secs()))),
        }
    }

    /// The next thing that it reports.
    pub(crate) async fn receive_report<T: DeserializeOwned>(&mut self) -> Result<T, Failure> {
        let line = self.line().await?;
        serde_json::from_str(&line)
            .map_err(|error| self.failed(&format!("it said {line:?}, which is no report: {error}")))
    }

    /// Gives an order.
    pub(crate) async fn send_order(&mut self, order: &impl Serialize) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(order)
            .map_err(|error| Failure::internal(format!("no JSON: {error}")))?;
        line.push(b'\n');
        let sent = match self.stdin.write_all(&line).await {
            Ok(()) => self.stdin.flush().await,
            Err(error) => Err(error),
        };
        sent.map_err(|error| self.failed(&format!("it takes no orders: {error}")))
    }

    /// Stops it (SIGSTOP) and waits until the kernel says that it is stopped.
    pub(crate) async fn stop(&self) -> Result<(), Failure> {
        self.signal(Signal::STOP, WaitIdOptions::STOPPED).await
    }

    fn send(&self, signal: Signal) -> Result<Pid, Failure> {
        let failed = |error: rustix::io::Errno| self.failed(&format!("{signal:?}: {error}"));
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.ok_or_else(|| self.failed("it has ended"))?;
        rustix::process::kill_process(pid, signal).map_err(failed)?;
        Ok(pid)
    }

    /// Resumes it (SIGCONT) and waits until the kernel reports it.
    pub(crate) async fn resume(&self) -> Result<(), Failure> {
        self.signal(Signal::CONT, WaitIdOptions::CONTINUED).await
    }

    async fn signal(&self, signal: Signal, awaited: WaitIdOptions) -> Result<(), Failure> {
        let failed = |error: rustix::io::Errno| self.failed(&format!("{signal:?}: {error}"));
        let pid = self.send(signal)?;
        let changed = async {
            loop {
                let options = awaited | WaitIdOptions::NOHANG;
                match rustix::process::waitid(WaitId::Pid(pid), options) {
                    Ok(Some(_)) => return Ok(()),
                    Ok(None) => tokio::time::sleep(POLL_INTERVAL).await,
                    Err(error) => return Err(failed(error)),
                }
            }
        };
        let late = || self.failed(&format!("{signal:?} had no effect"));
        tokio::time::timeout(PATIENCE, changed).await.map_err(|_| late())?
    }

    /// Ends it (SIGTERM) and waits until it is gone; kills it where it does not end.
    pub(crate) async fn terminate(mut self) {
        // It fails only where it has ended already.
        let _ = self.send(Signal::TERM);
        if tokio::time::timeout(PATIENCE, self.child.wait()).await.is_err() {
            self.end().await;
        }
    }

    /// Kills it and waits until it is gone.
    pub(crate) async fn end(mut self) {
        // It fails only where it has ended already.
        let _ = self.child.kill().await;
    }

    /// Something went wrong with it; the end of what it logged is the best explanation.
    pub(crate) fn failed(&self, what: &str) -> Failure {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let from = log.lines().count().saturating_sub(5);
        let tail: String = log.lines().skip(from).map(|line| format!("\n    {line}")).collect();
        let message = format!("{} (pid {}) failed: {what}{tail}", self.name, self.pid());
        Failure::new(code::INTERNAL, message)
    }
}

/// Polls `probe` until it returns a value.
pub(crate) async fn awaited<T>(
    what: &str,
    mut probe: impl AsyncFnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let looking = async {
        loop {
            if let Some(found) = probe().await? {
                return Ok(found);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let late = |_| Failure::internal(format!("{what} did not come in {} s", PATIENCE.as_secs()));
    tokio::time::timeout(PATIENCE, looking).await.map_err(late)?
}
