//! The driver of one SDK: a process that does what a scenario requests.
//!
//! It reads one JSON object a line on stdin and writes one a line on stdout; stderr is free text.
//! Requests are handled concurrently: a slow one does not hold up others.
//!
//! ```json
//! {"id": 7, "op": "check", "lease": "a"}
//! {"id": 7, "ok": {"remaining_ms": 12000}}
//! {"id": 7, "error": {"kind": "stale", "code": "stale-token", "reason": null, "end": null,
//!                     "retryable": false, "message": "…"}}
//! {"id": 7, "unsupported": true}
//! {"event": "lost", "lease": "a", "reason": "ended", "end": "revoked"}
//! ```
//!
//! `kind` is a kind of [`fence_client::ErrorKind`] in kebab case, `cancelled`, or `body` if the
//! error is that of the work itself; `code` is that of the problem document. `reason` is
//! `deadline`, `ended`, `no-progress`, `held-too-long` or `forked`, with `end` as the server gave
//! it: `expired`, `superseded`, `released`, `revoked`, `session-ended`. Names of clients, leases,
//! sessions and so on are chosen by the request.
//!
//! A driver that takes long to start may have `--host SOCKET`: it then prints `ready`, and forks a
//! driver for each connection to that path, which leads a process group. Its first line in is the
//! path of a file for stderr, its first line out its process id.
//!
//! The ops, with the members of their requests, and after the arrow those of their replies:
//!
//! - `client`: client, server, guard, owner, incarnation, token, token_file, ca_file, cert, key,
//!   insecure_http; or `env`, an object of variables that configure it
//! - `lock`: client, lease, name, ttl_ms, wait_ms, mode, size, metadata, min_token, takeover,
//!   session, progress_within_ms, max_hold_ms → token, lease_id, lock, remaining_ms, fencing_token,
//!   fencing_credential
//! - `lock_all`: client, lease, names, ttl_ms, wait_ms; the leases are named `LEASE:NAME`
//!   → leases, each with name, token, lease_id
//! - `run`, the block of the language: client, lease, name, ttl_ms, wait_ms, body, body_ms. The
//!   body finishes after body_ms (`wait`, `finish`), fails (`fail`) or blocks its thread (`block`)
//!   → body: `finished` or `cancelled`
//! - `check`: lease → remaining_ms; `release`, `progress`: lease
//! - `put`: lease, key, value, if_match, if_absent, op_id → etag
//! - `get`, `delete`: lease, key → of `get`: value, etag; null if absent
//! - `session`: client, session, ttl_ms → session_id; `session_check`: session; `session_end`:
//!   session → leases, their number
//! - `campaign`: client, leadership, name, ttl_ms, wait_ms → token; `resign`: leadership
//! - `leader`: client, name → owner, token; null if vacant
//! - `events`: client, stream, prefix; each event is then
//!   `{"event": "item", "stream": …, "kind": …, "lock": …}`; `events_close`: stream
//! - `show`: client, name → state, owner; `revoke`: client, name, reason
//! - `cancel`: target, the id of a request; `quit`: ends with exit code 0
//! - `block_loop`: ms, for which the loop or main thread is blocked; `fork_check` (Python): lease
//!   → parent: `live`, child: `lost`
//! - `window`: sent_at_ms, ttl_ms → renew_at, deadline, kill_by, expires_at; `pause`: attempt,
//!   random → ms
//! - `credential`: tokens, header values → credential; `parse_token`: header → token, lock, lease

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::process::{Child, ChildStdin};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::process::{await_pause, command};
use crate::wait::until_some;

/// A reply that has not been awaited yet.
pub type Pending = oneshot::Receiver<Value>;

/// A running driver. Killed, with its process group, when dropped.
#[derive(Debug)]
pub struct Driver {
    /// None of one that was forked: its host, which waits for none, keeps its id from others.
    _child: Option<Child>,
    group: Option<Pid>,
    input: Input,
    last_id: u64,
    received: Arc<Received>,
    errors: NamedTempFile,
    _reading: AbortOnDropHandle<()>,
}

#[derive(Debug)]
enum Input {
    Pipe(ChildStdin),
    Socket(OwnedWriteHalf),
}

/// Lines of a driver that were not taken yet.
#[derive(Debug, Default)]
struct Received {
    replies: Mutex<HashMap<u64, oneshot::Sender<Value>>>,
    events: Mutex<VecDeque<Value>>,
}

impl Driver {
    /// Starts a driver by its command, which has no other settings of Fencepost.
    ///
    /// # Errors
    /// The reason why it cannot be started.
    pub fn start(words: &[String]) -> Result<Self, String> {
        let (program, args) = words.split_first().ok_or("the driver's command is empty")?;
        let errors = NamedTempFile::new().map_err(|error| error.to_string())?;
        let stderr = errors.reopen().map_err(|error| error.to_string())?;
        let mut starting = tokio::process::Command::from(command(program));
        starting.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        starting.process_group(0).kill_on_drop(true);
        let mut child = starting.spawn().map_err(|error| format!("{program}: {error}"))?;
        let stdin = child.stdin.take().ok_or("no stdin")?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let group = child.id();
        Ok(Self::with(Some(child), group, Input::Pipe(stdin), stdout, errors))
    }

    /// Lets the host at `socket` fork a driver.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub async fn forked(socket: &Path) -> Result<Self, String> {
        let errors = NamedTempFile::new().map_err(|error| error.to_string())?;
        let no_host = |error| format!("the host of drivers: {error}");
        let (stdout, mut stdin) = UnixStream::connect(socket).await.map_err(no_host)?.into_split();
        let line = format!("{}\n", errors.path().display());
        stdin.write_all(line.as_bytes()).await.map_err(no_host)?;
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        stdout.read_line(&mut line).await.map_err(no_host)?;
        let group = line.trim().parse().map_err(|_| format!("no process id: {line:?}"))?;
        Ok(Self::with(None, Some(group), Input::Socket(stdin), stdout, errors))
    }

    fn with(
        child: Option<Child>,
        group: Option<u32>,
        input: Input,
        stdout: impl AsyncBufRead + Send + Unpin + 'static,
        errors: NamedTempFile,
    ) -> Self {
        let received = Arc::new(Received::default());
        let reading = tokio::spawn(read(stdout, Arc::clone(&received)));
        let reading = AbortOnDropHandle::new(reading);
        let group = group.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Self { _child: child, group, input, last_id: 0, received, errors, _reading: reading }
    }

    /// Sends a request; returns its id and where its reply comes.
    ///
    /// # Errors
    /// The reason why it cannot be sent.
    pub async fn send(&mut self, mut request: Value) -> Result<(u64, Pending), String> {
        self.last_id += 1;
        request["id"] = json!(self.last_id);
        let (sender, receiver) = oneshot::channel();
        self.received.replies().insert(self.last_id, sender);
        let line = format!("{request}\n");
        let sent = match &mut self.input {
            Input::Pipe(pipe) => pipe.write_all(line.as_bytes()).await,
            Input::Socket(socket) => socket.write_all(line.as_bytes()).await,
        };
        sent.map_err(|error| format!("the driver does not read: {error}"))?;
        Ok((self.last_id, receiver))
    }

    /// Awaits an event that `is_expected`, and takes it; `None` if it does not arrive.
    pub async fn event(&self, is_expected: impl Fn(&Value) -> bool) -> Option<Value> {
        until_some(|| {
            let mut events = self.received.events();
            let at = events.iter().position(&is_expected);
            at.and_then(|at| events.remove(at))
        })
        .await
    }

    /// All events that were not taken.
    pub fn events(&self) -> Vec<Value> {
        self.received.events().iter().cloned().collect()
    }

    /// SIGSTOP to its process group.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        self.group.into_iter().for_each(await_pause);
    }

    /// SIGCONT to its process group.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, signal);
        }
    }

    /// The end of what it wrote to stderr.
    pub fn stderr(&self) -> String {
        let text = std::fs::read(self.errors.path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

impl Received {
    fn replies(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Value>>> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn events(&self) -> std::sync::MutexGuard<'_, VecDeque<Value>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read(stdout: impl AsyncBufRead + Unpin, received: Arc<Received>) {
    let mut lines = stdout.lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(value) = serde_json::from_str::<Value>(&line) else {
            let event = json!({"event": "no JSON", "line": line});
            received.events().push_back(event);
            continue;
        };
        match value["id"].as_u64().and_then(|id| received.replies().remove(&id)) {
            Some(sender) => drop(sender.send(value)),
            None => received.events().push_back(value),
        }
    }
    // The driver has ended: those that await replies get errors.
    received.replies().clear();
}
