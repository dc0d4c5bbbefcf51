//! Seals at acquire: `--seal PREFIX=required|lazy|off`.
//!
//! A guard learns of a new holder by its first operation. Until then the old holder's writes are
//! taken, however long ago its lease has ended. Where that is too late, the guards are sealed with
//! the grant's own token: before the client is told (`required`), or at the same time (`lazy`).
//!
//! Only exclusive leases are sealed. A seal with the token of one of several shared leases, or of
//! one of several permits, would shut the others out.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fence_protocol::wire::lock::GuardSeal;
use fence_protocol::{Code, LeaseId, LockName, Token};
use futures_util::future::join_all;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use service_kit::Kit;
use service_kit::health::Status;
use service_kit::problem::Reject;
use tokio::sync::{Semaphore, mpsc};

use super::seal::Standing;
use super::sealed_grants::Sealed;
use super::sealer::{Cause, Sealer, Told, higher_mark};
use crate::guards::ASK_TIMEOUT;
use crate::prefixes::Prefixes;
use crate::store::{Grant, LockStore, Mode, is_ended, return_lease};

/// How many grants may wait to be sealed in the background; of more than that, seals are dropped.
const LAZY_MAX: usize = 1_024;
/// How many are sealed in the background at the same time.
const LAZY_AT_ONCE: usize = 16;
/// The readiness check.
const CHECK: &str = "seals";
/// How long to wait before the lock is tried again, in seconds.
const RETRY_AFTER_SECS: u64 = 1;

/// Whether guards are sealed when a lock is granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SealMode {
    /// They are not.
    #[default]
    Off,
    /// They are, after the client was told.
    Lazy,
    /// They are before the client is told; where one cannot be, nothing is granted.
    Required,
}

impl FromStr for SealMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "lazy" => Ok(Self::Lazy),
            "required" => Ok(Self::Required),
            _ => Err(format!("{text:?} is none of required, lazy and off")),
        }
    }
}

/// A grant whose client must not be told of it.
#[derive(Debug)]
pub(crate) struct NotSealed {
    /// What to answer.
    pub(crate) reject: Reject,
    /// Whether it is certain that the lease has ended.
    pub(crate) is_given_back: bool,
}

/// A grant that is sealed in the background.
#[derive(Debug)]
struct Later {
    lock: LockName,
    token: Token,
    lease: LeaseId,
}

/// Seals guards after grants. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Seals {
    modes: Arc<Prefixes<SealMode>>,
    sealer: Sealer,
    store: Arc<dyn LockStore>,
    kit: Kit,
    later: mpsc::Sender<Later>,
    waiting: Gauge,
    dropped: Counter,
    sealed: Arc<Mutex<Sealed>>,
    /// Why a guard was not sealed when it was last tried.
    problems: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Seals {
    /// Begins to seal in the background where `modes` say so, until shutdown.
    pub(crate) fn start(
        modes: Prefixes<SealMode>,
        sealer: Sealer,
        store: Arc<dyn LockStore>,
        kit: &Kit,
    ) -> Self {
        let (later, grants) = mpsc::channel(LAZY_MAX);
        let seals = Self {
            modes: Arc::new(modes),
            sealer,
            store,
            kit: kit.clone(),
            later,
            waiting: Gauge::default(),
            dropped: Counter::default(),
            sealed: Arc::default(),
            problems: Arc::default(),
        };
        seals.register();
        if seals.modes.values().any(|mode| mode == SealMode::Lazy) {
            let (behind, stop) = (seals.clone(), kit.tasks.shutdown_token());
            kit.tasks.spawn(async move {
                stop.run_until_cancelled(behind.seal_behind(grants)).await;
            });
        }
        seals
    }

    fn register(&self) {
        self.kit.metrics.registry(|registry| {
            registry.register(
                "lock_lazy_seals_waiting",
                "Grants that wait to be sealed in the background now",
                self.waiting.clone(),
            );
            registry.register(
                "lock_lazy_seals_dropped",
                "Grants that were not sealed in the background, because too many waited",
                self.dropped.clone(),
            );
        });
    }

    /// Does what `--seal` says for a grant that its client has not been told of: the grant to tell,
    /// with what remains of it now.
    ///
    /// # Errors
    /// [`NotSealed`] where a guard that has to be sealed was not. The lease was given back, or ends
    /// by itself at its time.
    ///
    /// # Cancel safety
    /// Dropped, it leaves the lease live and guards sealed or not. A repeat of the acquire with the
    /// same id seals again.
    pub(crate) async fn after_grant(
        &self,
        lock: &LockName,
        grant: Grant,
    ) -> Result<Grant, NotSealed> {
        let mut grants = [(lock.clone(), grant)];
        self.after_grants(&mut grants).await?;
        let [(_, grant)] = grants;
        Ok(grant)
    }

    /// As [`after_grant`](Self::after_grant) for locks that were granted in one step: they are given
    /// back together.
    ///
    /// # Errors
    /// [`NotSealed`].
    pub(crate) async fn after_grants(
        &self,
        grants: &mut [(LockName, Grant)],
    ) -> Result<(), NotSealed> {
        let with = |wanted| {
            let is_wanted = move |(lock, grant): &&(LockName, Grant)| {
                grant.mode == Mode::Exclusive && self.modes.of(lock) == Some(wanted)
            };
            grants.iter().filter(is_wanted)
        };
        let begun_ms = self.kit.clock.monotonic_ms();
        let shortest_ms = grants.iter().map(|(_, grant)| grant.remaining_ms).min();
        let patience = ASK_TIMEOUT.min(Duration::from_millis(shortest_ms.unwrap_or_default()));
        let unsealed_yet = |(_, grant): &&(LockName, Grant)| !self.is_sealed(grant.token);
        let seals = with(SealMode::Required).filter(unsealed_yet).map(|(lock, grant)| {
            self.sealer.seal(Cause::Required, (lock, grant.token, grant.lease_id), patience)
        });
        let told: Vec<Told> = join_all(seals).await.into_iter().flatten().collect();
        self.note(&told);
        if let Some(told) = unsealed(&told) {
            return Err(self.give_back(grants, told).await);
        }
        for (_, grant) in with(SealMode::Required) {
            self.sealed.lock().unwrap_or_else(PoisonError::into_inner).note(grant.token);
        }
        for (lock, grant) in with(SealMode::Lazy) {
            self.seal_later(lock, grant);
        }
        let took_ms = self.kit.clock.monotonic_ms().saturating_sub(begun_ms);
        for (_, grant) in grants {
            grant.remaining_ms = grant.remaining_ms.saturating_sub(took_ms);
        }
        Ok(())
    }

    fn is_sealed(&self, token: Token) -> bool {
        self.sealed.lock().unwrap_or_else(PoisonError::into_inner).has(token)
    }

    /// Ends leases that no client has received. A tracked task retries those that the store does not
    /// confirm as ended.
    async fn give_back(&self, grants: &[(LockName, Grant)], told: Vec<Told>) -> NotSealed {
        let untold = grants.iter().filter(|(_, grant)| !self.is_sealed(grant.token));
        let untold: Vec<&(LockName, Grant)> = untold.collect();
        let releases = untold.iter().map(|(lock, grant)| self.store.release(lock, grant.lease_id));
        let results = join_all(releases).await;
        for ((lock, grant), result) in untold.into_iter().zip(&results) {
            if !is_ended(result) {
                self.return_later(lock.clone(), grant);
            }
        }
        let is_given_back = results.iter().all(is_ended);
        // A mark above the token of a lease that was live to the end: the counter is below what was
        // issued.
        if let Some(mark) = higher_mark(&told).filter(|_| results.iter().all(Result::is_ok))
            && let Err(error) = self.store.lift(mark).await
        {
            tracing::error!(%mark, %error, "the counter could not be lifted above a guard's mark");
        }
        NotSealed { reject: problem(grants, &told, is_given_back), is_given_back }
    }

    fn return_later(&self, lock: LockName, grant: &Grant) {
        let (store, kit) = (self.store.clone(), self.kit.clone());
        let (lease_id, lives_ms) = (grant.lease_id, grant.remaining_ms);
        self.kit.tasks.spawn(async move {
            return_lease(&*store, &kit, &lock, lease_id, lives_ms).await;
        });
    }

    fn seal_later(&self, lock: &LockName, grant: &Grant) {
        let later = Later { lock: lock.clone(), token: grant.token, lease: grant.lease_id };
        self.waiting.inc();
        if self.later.try_send(later).is_err() {
            self.waiting.dec();
            self.dropped.inc();
        }
    }

    async fn seal_behind(&self, mut grants: mpsc::Receiver<Later>) {
        let room = Arc::new(Semaphore::new(LAZY_AT_ONCE));
        while let Some(Later { lock, token, lease }) = grants.recv().await {
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            let seals = self.clone();
            self.kit.tasks.spawn(async move {
                let grant = (&lock, token, lease);
                let told = seals.sealer.seal(Cause::Lazy, grant, ASK_TIMEOUT).await;
                seals.waiting.dec();
                seals.note(&told);
                drop(permit);
            });
        }
    }

    /// Keeps the readiness check up to date: it warns of guards that were not sealed last time.
    fn note(&self, told: &[Told]) {
        if told.is_empty() {
            return;
        }
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        for Told { guard, answer } in told {
            match answer {
                Ok(_) => problems.remove(guard),
                Err(why) => problems.insert(guard.clone(), why.clone()),
            };
        }
        let texts: Vec<String> = problems
            .iter()
            .map(|(guard, why)| format!("the guard {guard} was not sealed for a new holder: {why}"))
            .collect();
        let is_well = texts.is_empty();
        let status = if is_well { Status::Ok } else { Status::Warn(texts.join("; ")) };
        self.kit.health.set(CHECK, status);
    }
}

/// What was said, where some guard does not stand at the token of its grant.
fn unsealed(told: &[Told]) -> Option<Vec<Told>> {
    let stands = |told: &Told| matches!(told.answer, Ok(Standing::At(_)));
    (!told.iter().all(stands)).then(|| told.to_vec())
}

fn problem(grants: &[(LockName, Grant)], told: &[Told], is_given_back: bool) -> Reject {
    let mut why: Vec<String> = Vec::new();
    let mut guards: Vec<GuardSeal> = Vec::new();
    for told in told {
        let problem = match &told.answer {
            Ok(Standing::At(_)) => None,
            Ok(Standing::Above(mark)) => Some(format!("it has seen token {mark} already")),
            Err(why) => Some(why.clone()),
        };
        if let Some(problem) = &problem {
            why.push(format!("the guard {}: {problem}", told.guard));
        }
        guards.push(GuardSeal { problem, ..told.wire() });
    }
    why.dedup();
    let locks: Vec<&str> = grants.iter().map(|(lock, _)| lock.as_str()).collect();
    let then = match is_given_back {
        true => "the lease was given back".to_owned(),
        false => {
            let longest_ms = grants.iter().map(|(_, grant)| grant.remaining_ms).max();
            let ms = longest_ms.unwrap_or_default();
            format!(
                "the lease could not be given back yet; this is retried, and it ends by itself within \
                 {ms} ms"
            )
        }
    };
    let (locks, why) = (locks.join(", "), why.join("; "));
    let detail =
        format!("lock {locks} is not granted, because not every guard was sealed: {why}; {then}");
    Reject::new(Code::GuardUnsealed, detail).with("guards", guards).retry_after(RETRY_AFTER_SECS)
}
