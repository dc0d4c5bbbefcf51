//! Holders of rising tokens that all go on writing over HTTP, whether they still hold the lock or
//! not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fence_protocol::{Code, Problem};
use http::Method;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::api::{Api, Reply};
use crate::journal::{Answer, Journal, Seal, WriteReport};
use crate::journal_origin::Origin;
use crate::key_file::{lease_id, unsigned};
use crate::seed::Seed;
use crate::wait::{patience, soon};

/// Pause after a refusal.
const PAUSE: Duration = Duration::from_millis(20);
/// A holder that was refused as stale so often believes it.
const REFUSALS: u64 = 4;
/// Longer than what the guard receives before it forwards anything.
const LONG_BODY: usize = 1_300_000;

/// Addresses that the holders write to.
#[derive(Clone, Debug)]
pub struct Target {
    /// The reverse proxy, `http://127.0.0.1:PORT`.
    pub proxy: String,
    /// The guard's own API, for seals.
    pub guard: String,
    /// Name of the lock, and path of its one resource.
    pub lock: String,
}

/// Holders of one lock at work.
#[derive(Debug)]
pub struct Holders {
    target: Target,
    origin: Arc<Origin>,
    journal: Arc<Mutex<Journal>>,
    applied: Arc<AtomicU64>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    token: u64,
    seed: Seed,
}

impl Holders {
    /// No holder yet.
    pub fn new(target: Target, origin: &Arc<Origin>, seed: &mut Seed) -> Self {
        Self {
            target,
            origin: Arc::clone(origin),
            journal: Arc::default(),
            applied: Arc::default(),
            stop: CancellationToken::new(),
            tasks: Vec::new(),
            token: 0,
            seed: seed.fork(),
        }
    }

    /// Starts one more holder, with a higher token. Those before it are not notified.
    pub fn succeed(&mut self) {
        self.token += 1 + self.seed.below(10);
        let holder = Holder {
            api: Api::new(&self.target.proxy),
            guard: Api::new(&self.target.guard),
            credential: unsigned(self.token, &self.target.lock, lease_id()),
            target: self.target.clone(),
            origin: Arc::clone(&self.origin),
            token: self.token,
            journal: Arc::clone(&self.journal),
            applied: Arc::clone(&self.applied),
            stop: self.stop.clone(),
            seed: self.seed.fork(),
            ops: 0,
        };
        self.tasks.push(tokio::spawn(holder.run()));
    }

    /// Number of acknowledged writes.
    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::SeqCst)
    }

    /// Ends all holders, and returns what happened.
    ///
    /// # Panics
    /// If a holder panicked or does not end.
    pub async fn stop(self) -> Journal {
        self.stop.cancel();
        for task in self.tasks {
            soon("a holder to end", task).await.expect("no holder panicked");
        }
        let mut journal = std::mem::take(&mut *self.journal.lock().unwrap());
        journal.entries = self.origin.entries(&format!("/{}", self.target.lock));
        journal
    }
}

struct Holder {
    target: Target,
    origin: Arc<Origin>,
    api: Api,
    guard: Api,
    token: u64,
    credential: String,
    journal: Arc<Mutex<Journal>>,
    applied: Arc<AtomicU64>,
    stop: CancellationToken,
    seed: Seed,
    ops: u64,
}

impl Holder {
    async fn run(mut self) {
        let mut refusals = 0;
        while !self.stop.is_cancelled() && refusals < REFUSALS {
            let code = match self.seed.below(16) {
                0 => self.seal().await,
                1..=2 => self.read().await,
                3 => self.hang_up().await,
                _ => self.write().await,
            };
            match code {
                Some(Code::StaleToken) => refusals += 1,
                None => continue,
                Some(_) => {}
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn write(&mut self) -> Option<Code> {
        let op = self.next_op();
        let mut body = op.clone().into_bytes();
        if self.seed.below(24) == 0 {
            body.resize(LONG_BODY, b'.');
        }
        let reply = self.send(Method::PUT, &op, body.into()).await;
        let Some(reply) = reply else {
            self.report(op, WriteReport::Unknown);
            return Some(Code::UpstreamUnavailable);
        };
        let code = refusal(&reply, &op);
        let report = match code {
            None if reply.status == 202 => WriteReport::Unknown,
            None => WriteReport::Applied,
            Some(Code::OutcomeUnknown) => WriteReport::Unknown,
            Some(_) => WriteReport::Refused,
        };
        self.report(op, report);
        if report == WriteReport::Applied {
            self.applied.fetch_add(1, Ordering::SeqCst);
            self.sealed();
        }
        code
    }

    async fn read(&mut self) -> Option<Code> {
        let op = format!("{}-read", self.token);
        let reply = self.send(Method::GET, &op, Bytes::new()).await?;
        let code = refusal(&reply, &op);
        if code.is_none() {
            self.sealed();
        }
        code
    }

    async fn seal(&mut self) -> Option<Code> {
        let path = format!("/v1/fences/{}/seal", self.target.lock);
        let headers = [("fencing-token", self.credential.as_str())];
        let sealing = self.guard.attempt(Method::POST, &path, &headers, Bytes::new());
        let reply = tokio::time::timeout(patience(), sealing).await.ok()?.ok()?;
        if reply.status == 200 {
            self.sealed();
            return None;
        }
        Some(reply.read::<Problem>().code)
    }

    /// A write whose client leaves: after the whole request, or within its body.
    async fn hang_up(&mut self) -> Option<Code> {
        let op = self.next_op();
        let length = if self.seed.below(6) > 0 { op.len() } else { LONG_BODY };
        let mut body = op.clone().into_bytes();
        body.resize(length, b'.');
        let sent = length - usize::try_from(self.seed.below(length as u64)).expect("small");
        let head = format!(
            "PUT /{} HTTP/1.1\r\nhost: localhost\r\nfencing-token: {}\r\nx-op: {op}\r\n\
             content-length: {length}\r\n\r\n",
            self.target.lock, self.credential
        );
        let stay = self.seed.time_ms(0, 20);
        // Before it can take effect.
        self.report(op, WriteReport::Abandoned);
        let address = self.target.proxy.trim_start_matches("http://");
        if let Ok(mut stream) = TcpStream::connect(address).await {
            let sending = async {
                stream.write_all(head.as_bytes()).await?;
                stream.write_all(&body[..sent]).await?;
                tokio::time::sleep(stay).await;
                std::io::Result::Ok(())
            };
            let _ = tokio::time::timeout(patience(), sending).await;
        }
        None
    }

    /// Sends a request; `None` where no reply came.
    async fn send(&self, method: Method, op: &str, body: Bytes) -> Option<Reply> {
        let path = format!("/{}", self.target.lock);
        let headers = [("fencing-token", self.credential.as_str()), ("x-op", op)];
        let sending = self.api.attempt(method, &path, &headers, body);
        let reply = tokio::time::timeout(patience(), sending).await;
        reply.expect("a reply, or the end of the connection").ok()
    }

    fn next_op(&mut self) -> String {
        self.ops += 1;
        format!("{}-{}", self.token, self.ops)
    }

    fn report(&self, op: String, report: WriteReport) {
        let answer = Answer { token: self.token, op, report };
        self.journal.lock().unwrap().answers.push(answer);
    }

    /// The token was answered: from what comes next in the journal, nothing may be lower.
    fn sealed(&self) {
        let length = self.origin.entries(&format!("/{}", self.target.lock)).len();
        self.journal.lock().unwrap().seals.push(Seal { token: self.token, length });
    }
}

/// Code of a refusal; `None` for a reply of the origin, which must be for this operation.
///
/// # Panics
/// If it is one that no request of a holder may get.
fn refusal(reply: &Reply, op: &str) -> Option<Code> {
    if matches!(reply.status, 200 | 202) {
        assert_eq!(reply.header("x-op"), op, "the reply to another operation: {reply:?}");
        return None;
    }
    let problem: Problem = reply.read();
    match problem.code {
        Code::StaleToken
        | Code::Draining
        | Code::Quarantined
        | Code::OutcomeUnknown
        | Code::UpstreamUnavailable
        | Code::StoreUnavailable => Some(problem.code),
        _ => panic!("no request of a holder may get this: {reply:?}"),
    }
}
