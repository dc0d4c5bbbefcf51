//! Clients with short leases on few locks, which record the replies that they got.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fence_protocol::wire::lock::LeaseReply;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::api::{Locks, Reply};
use crate::checks::failover::Gone;
use crate::history::{Granted, History};
use crate::key_file::lease_id;
use crate::seed::Seed;
use crate::wait::scaled;

/// Few enough that the clients always meet.
const LOCKS: [&str; 4] = ["orders/1", "orders/2", "orders/3", "orders/4"];
/// The shortest lease, and the bound of the longest.
const TTL_MS: (u64, u64) = (200, 1_000);
/// Longest time that an acquire queues.
const WAIT_MS: u64 = 1_000;
/// Between two tries of a request that was not answered.
const PAUSE: Duration = Duration::from_millis(20);
/// Time without any grant after which the run fails.
const STUCK: Duration = Duration::from_secs(60);

/// Clients at work.
#[derive(Debug)]
pub struct Clients {
    notes: Arc<Notes>,
    stop: CancellationToken,
    workers: Vec<JoinHandle<()>>,
}

/// Record of the replies that the clients got.
#[derive(Debug, Default)]
pub struct Notes {
    /// Grants, and how long each was kept.
    pub history: History,
    gone: Mutex<Vec<Gone>>,
    grants: AtomicU64,
}

impl Notes {
    /// The leases that a server called gone.
    ///
    /// # Panics
    /// If another recorder panicked.
    pub fn gone(&self) -> Vec<Gone> {
        self.gone.lock().unwrap().clone()
    }

    /// Number of grants so far.
    pub fn grants(&self) -> u64 {
        self.grants.load(Ordering::SeqCst)
    }
}

impl Clients {
    /// Sets `count` clients to work; each uses one of the servers, and stays with it.
    pub fn start(servers: &[Locks], count: usize, seed: &mut Seed) -> Self {
        let notes = Arc::new(Notes::default());
        let stop = CancellationToken::new();
        let workers = (0..count).map(|number| {
            let client = Client {
                number,
                locks: servers[number % servers.len()].clone(),
                notes: notes.clone(),
                stop: stop.clone(),
                seed: seed.fork(),
            };
            tokio::spawn(client.run())
        });
        let workers = workers.collect();
        Self { notes, stop, workers }
    }

    /// Record of the replies so far.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Waits for so many more grants.
    ///
    /// # Errors
    /// If nothing was granted for a long time, or a client ended: what was seen.
    pub async fn progress(&self, grants: u64) -> Result<(), String> {
        let goal = self.notes.grants() + grants;
        let mut seen = (self.notes.grants(), tokio::time::Instant::now());
        while self.notes.grants() < goal {
            if self.workers.iter().any(JoinHandle::is_finished) {
                return Err("a client panicked; see above".to_owned());
            }
            if self.notes.grants() > seen.0 {
                seen = (self.notes.grants(), tokio::time::Instant::now());
            }
            let limit = scaled(STUCK);
            if seen.1.elapsed() > limit {
                return Err(format!("nothing was granted for {limit:?}"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Lets every client finish, and returns the record of their replies.
    ///
    /// # Panics
    /// If a client panicked.
    pub async fn stop(self) -> Arc<Notes> {
        self.stop.cancel();
        for worker in self.workers {
            worker.await.expect("no client panicked");
        }
        self.notes
    }
}

struct Client {
    number: usize,
    locks: Locks,
    notes: Arc<Notes>,
    stop: CancellationToken,
    seed: Seed,
}

/// Final reply to a request that is retried until it is answered.
struct Answer {
    reply: Reply,
    /// Before the try that was answered.
    asked_ns: u64,
    /// `true` if an earlier try may have been carried out, too.
    is_repeat: bool,
}

impl Client {
    async fn run(mut self) {
        while !self.stop.is_cancelled() {
            let at = usize::try_from(self.seed.below(LOCKS.len() as u64)).expect("small");
            let ttl_ms = TTL_MS.0 + self.seed.below(TTL_MS.1 - TTL_MS.0);
            if let Some(lease) = self.acquire(LOCKS[at], ttl_ms).await {
                self.hold(LOCKS[at], ttl_ms, &lease).await;
            }
        }
    }

    /// Most leases are given back at once, so that many tokens are issued; others are kept for most
    /// of their time, or renewed; some are never given back.
    async fn hold(&mut self, lock: &str, ttl_ms: u64, lease: &LeaseReply) {
        let kind = self.seed.below(20);
        if kind >= 14 {
            let rounds = if kind >= 18 { 1 + self.seed.below(3) } else { 0 };
            for _ in 0..rounds {
                tokio::time::sleep(self.seed.time_ms(0, ttl_ms / 2)).await;
                let until_ns = self.notes.history.until_ns(lease.lease_id);
                if !self.renew(lock, lease, until_ns).await {
                    return;
                }
            }
            tokio::time::sleep(self.seed.time_ms(0, ttl_ms * 4 / 5)).await;
        }
        if kind != 14 {
            self.release(lock, lease).await;
        }
    }

    /// A lease that may be relied on. What was waited for has little left that is certain, counted
    /// from before it was asked for, and is renewed first, as the SDK does.
    async fn acquire(&self, lock: &str, ttl_ms: u64) -> Option<LeaseReply> {
        let lease = lease_id();
        let ask = json!({"lease_id": lease, "ttl_ms": ttl_ms, "wait_ms": WAIT_MS,
                         "owner": format!("client {}", self.number)});
        let invoked_ns = self.notes.history.now_ns();
        let answer = self.answered(lock, "acquire", ask, u64::MAX).await?;
        // 423: another client has it. 410: an earlier try was granted, and rolled back or over.
        let granted: LeaseReply = (answer.reply.status == 200).then(|| answer.reply.read())?;
        self.notes.history.granted(Granted {
            lock: lock.to_owned(),
            lease,
            token: granted.token.get(),
            ttl_ms,
            span: self.notes.history.since(invoked_ns),
            released_ns: None,
            // A repeat that was granted anew lives from that repeat on.
            kept_ns: Some(answer.asked_ns + granted.ttl_ms * 1_000_000),
        });
        self.notes.grants.fetch_add(1, Ordering::SeqCst);
        let worn_ns = self.notes.history.now_ns() - answer.asked_ns;
        if worn_ns > ttl_ms * 1_000_000 / 4 && !self.renew(lock, &granted, u64::MAX).await {
            return None;
        }
        Some(granted)
    }

    /// `true` if the lease is still there; given up at `until_ns`.
    async fn renew(&self, lock: &str, lease: &LeaseReply, until_ns: u64) -> bool {
        let ask = json!({"lease_id": lease.lease_id});
        let Some(answer) = self.answered(lock, "renew", ask, until_ns).await else { return false };
        if answer.reply.status != 200 {
            let reason = answer.reply.json()["reason"].as_str().unwrap_or_default().to_owned();
            self.record_gone(lease, reason);
            return false;
        }
        let renewed: LeaseReply = answer.reply.read();
        if renewed.token != lease.token {
            // The engine forgot the grant, and an earlier try of the same request was granted anew.
            self.record_gone(lease, format!("granted anew with token {}", renewed.token));
            return false;
        }
        self.notes.history.kept(lease.lease_id, answer.asked_ns, renewed.ttl_ms);
        true
    }

    async fn release(&self, lock: &str, lease: &LeaseReply) {
        let until_ns = self.notes.history.until_ns(lease.lease_id);
        self.notes.history.releasing(lease.lease_id);
        let ask = json!({"lease_id": lease.lease_id});
        if let Some(answer) = self.answered(lock, "release", ask, until_ns).await
            && answer.reply.status != 200
            && !answer.is_repeat
        {
            let reason = answer.reply.json()["reason"].as_str().unwrap_or_default().to_owned();
            self.record_gone(lease, reason);
        }
    }

    fn record_gone(&self, lease: &LeaseReply, reason: String) {
        let reported_ns = self.notes.history.now_ns();
        let gone = Gone { lease: lease.lease_id, reported_ns, reason };
        self.notes.gone.lock().unwrap().push(gone);
    }

    /// Repeats a request until it is answered with a decision (200, 410 or 423). `None` where the
    /// run ends, or `until_ns` of its clock comes, before that.
    async fn answered(&self, lock: &str, verb: &str, ask: Value, until_ns: u64) -> Option<Answer> {
        let mut is_repeat = false;
        loop {
            let asked_ns = self.notes.history.now_ns();
            match self.locks.try_post(lock, verb, ask.clone()).await {
                Ok(reply) if matches!(reply.status, 200 | 410 | 423) => {
                    return Some(Answer { reply, asked_ns, is_repeat });
                }
                // Nothing was done.
                Ok(reply) if reply.status == 503 => {}
                // The outcome is unknown.
                Ok(reply) if reply.status == 504 => is_repeat = true,
                Ok(reply) => panic!("{verb} {lock}: {reply:?}"),
                Err(_) => is_repeat = true,
            }
            if self.stop.is_cancelled() || self.notes.history.now_ns() > until_ns {
                return None;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
