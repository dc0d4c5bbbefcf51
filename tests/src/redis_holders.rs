//! Holders of rising tokens that all go on writing, whether they still hold the lock or not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::journal::{Answer, Entry, Journal, Seal, WriteReport};
use crate::redis_server::Redis;
use crate::redis_writes::{Grant, Way, journal, patient, refusal, write};
use crate::resp_client::{Resp, RespClient};
use crate::seed::Seed;
use crate::wait::{soon, until, until_true};

/// Between two tries of a guard that does not answer.
const PAUSE: Duration = Duration::from_millis(10);
/// A holder that was refused as stale so often believes it.
const REFUSALS: u64 = 6;

/// Ports to which the holders write.
#[derive(Clone, Debug)]
pub struct Target {
    /// Addresses of ports; each connection takes one of them.
    pub ports: Vec<String>,
    /// Redis itself, to measure the journal.
    pub redis: String,
    /// The `id` of the lock `orders/{id}`.
    pub id: String,
    /// False: the control. The holders write to `ports` without any token.
    pub is_guarded: bool,
}

/// Holders at work.
#[derive(Debug)]
pub struct Holders {
    target: Target,
    journal: Arc<Mutex<Journal>>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    seen: Arc<Seen>,
    token: u64,
    seed: Seed,
}

/// Replies that all holders have got so far.
#[derive(Debug, Default)]
struct Seen {
    applied: AtomicU64,
    refused: AtomicU64,
    highest_answered: AtomicU64,
    highest_applied: AtomicU64,
}

impl Holders {
    /// No holder yet.
    pub fn new(target: Target, seed: &mut Seed) -> Self {
        Self {
            target,
            journal: Arc::default(),
            stop: CancellationToken::new(),
            tasks: Vec::new(),
            seen: Arc::default(),
            token: 0,
            seed: seed.fork(),
        }
    }

    /// Starts one more holder, with the next token. Those before it are not notified.
    pub fn succeed(&mut self) {
        self.token += 1 + self.seed.below(10);
        let holder = Holder {
            target: self.target.clone(),
            grant: Grant::new(self.token, &self.target.id),
            journal: Arc::clone(&self.journal),
            seen: Arc::clone(&self.seen),
            stop: self.stop.clone(),
            seed: self.seed.fork(),
            ops: 0,
        };
        self.tasks.push(tokio::spawn(holder.run()));
    }

    /// Waits until so many more writes were applied, and the newest holder made one of them.
    ///
    /// # Panics
    /// If the newest holder ended, or nothing is applied.
    pub async fn progress(&self, writes: u64) {
        let goal = self.seen.applied.load(Ordering::SeqCst) + writes;
        until_true("the newest holder to make progress", || async {
            let is_over = self.tasks.last().is_some_and(JoinHandle::is_finished);
            assert!(!is_over, "the newest holder ended");
            self.seen.applied.load(Ordering::SeqCst) >= goal
                && self.seen.highest_applied.load(Ordering::SeqCst) >= self.token
        })
        .await;
    }

    /// Waits until so many writes were refused, all in all.
    pub async fn refusals(&self, count: u64) {
        until_true("old holders to be refused", || async {
            self.seen.refused.load(Ordering::SeqCst) >= count
        })
        .await;
    }

    /// Ends all holders, and returns what happened.
    ///
    /// # Panics
    /// If a holder panicked or does not end.
    pub async fn stop(self, redis: &Redis) -> Journal {
        self.stop.cancel();
        for task in self.tasks {
            soon("a holder to end", task).await.expect("no holder panicked");
        }
        let mut journal = std::mem::take(&mut *self.journal.lock().unwrap());
        journal.entries = entries(&redis.address(), &self.target.id).await;
        let count = |kind| journal.answers.iter().filter(|answer| answer.report == kind).count();
        eprintln!(
            "{} entries; {} applied, {} refused, {} unknown; {} seals",
            journal.entries.len(),
            count(WriteReport::Applied),
            count(WriteReport::Refused),
            count(WriteReport::Unknown),
            journal.seals.len()
        );
        journal
    }
}

struct Holder {
    target: Target,
    grant: Grant,
    journal: Arc<Mutex<Journal>>,
    seen: Arc<Seen>,
    stop: CancellationToken,
    seed: Seed,
    ops: u64,
}

impl Holder {
    async fn run(mut self) {
        let mut refusals = 0;
        while !self.stop.is_cancelled() && refusals < REFUSALS {
            let is_old = self.grant.token < self.seen.highest_answered.load(Ordering::SeqCst);
            if self.session().await && is_old {
                refusals += 1;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One connection, until it ends; whether it ended by a refusal.
    async fn session(&mut self) -> bool {
        let at = self.seed.below(self.target.ports.len() as u64);
        let address = self.target.ports[usize::try_from(at).expect("small")].clone();
        let Ok(mut client) = patient(RespClient::try_connect(&address)).await else { return false };
        let way = self.way();
        if way.logs_in() && self.target.is_guarded {
            match patient(client.try_call(&["AUTH", "fence", &self.grant.credential])).await {
                Ok(Resp::Simple(_)) => self.sealed().await,
                Ok(reply) => return is_stale(&reply),
                Err(_) => return false,
            }
        }
        while !self.stop.is_cancelled() {
            let ops = self.ops();
            let (reports, end) = write(&mut client, way, &self.grant, &ops).await;
            let last = reports.last().copied();
            let any = reports.contains(&WriteReport::Applied);
            self.record(ops, reports);
            if any && self.seed.below(8) == 0 {
                self.sealed().await;
            }
            if end.is_err() || last != Some(WriteReport::Applied) {
                return last == Some(WriteReport::Refused);
            }
        }
        false
    }

    fn way(&mut self) -> Way {
        let ways = if self.target.is_guarded { 4 } else { 3 };
        Way::ALL[usize::try_from(self.seed.below(ways)).expect("small")]
    }

    fn ops(&mut self) -> Vec<String> {
        let count = 1 + self.seed.below(50);
        let first = self.ops;
        self.ops += count;
        (first..self.ops).map(|number| format!("{}-{number}", self.grant.token)).collect()
    }

    fn record(&self, ops: Vec<String>, reports: Vec<WriteReport>) {
        let count = |kind| reports.iter().filter(|report| **report == kind).count() as u64;
        let token = self.grant.token;
        self.seen.applied.fetch_add(count(WriteReport::Applied), Ordering::SeqCst);
        self.seen.refused.fetch_add(count(WriteReport::Refused), Ordering::SeqCst);
        if reports.contains(&WriteReport::Applied) {
            self.seen.highest_applied.fetch_max(token, Ordering::SeqCst);
        }
        let answers = ops.into_iter().zip(reports).map(|(op, report)| Answer { token, op, report });
        self.journal.lock().unwrap().answers.extend(answers);
    }

    /// The token was answered: from what comes next in the list, nothing may be lower.
    async fn sealed(&self) {
        let length = length(&self.target.redis, &self.target.id).await;
        self.seen.highest_answered.fetch_max(self.grant.token, Ordering::SeqCst);
        self.journal.lock().unwrap().seals.push(Seal { token: self.grant.token, length });
    }
}

/// `true` if an answer to AUTH says that the token is stale. Others say that Redis is unreachable.
fn is_stale(reply: &Resp) -> bool {
    refusal(reply);
    reply.is_error("FENCED")
}

/// Length of the journal of `orders/{id}` now, by Redis itself.
///
/// # Panics
/// If Redis does not answer for long.
pub async fn length(redis: &str, id: &str) -> usize {
    let key = journal(id);
    until("Redis to say how long the journal is", || async {
        let mut direct = RespClient::try_connect(redis).await.ok()?;
        match direct.try_call(&["LLEN", &key]).await.ok()? {
            Resp::Integer(length) => usize::try_from(length).ok(),
            _ => None,
        }
    })
    .await
}

/// The journal of `orders/{id}`, read in pages.
///
/// # Panics
/// If Redis does not answer, or there is something else in the list.
pub async fn entries(redis: &str, id: &str) -> Vec<Entry> {
    const PAGE: usize = 2_000;
    let mut direct = RespClient::connect(redis).await;
    let mut all: Vec<Entry> = Vec::new();
    loop {
        let first = all.len().to_string();
        let last = (all.len() + PAGE - 1).to_string();
        let page = direct.call(&["LRANGE", &journal(id), &first, &last]).await;
        all.extend(page.items().iter().map(|item| item.text().parse::<Entry>().unwrap()));
        if page.items().len() < PAGE {
            return all;
        }
    }
}
