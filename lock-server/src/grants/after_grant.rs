//! Seals at acquire: `--seal PREFIX=required|lazy|off`.
//!
//! A guard learns of a new holder by its first operation. Until then it applies the old holder's
//! writes, even long after that lease has ended. Where that is too late, the guards are sealed with
//! the grant's own token: before the grant is acknowledged (`required`), or at the same time
//! (`lazy`).
//!
//! Only exclusive leases are sealed. A seal with the token of one of several shared leases, or of
//! one of several permits, would refuse the others.

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
use service_kit::trace::Carrier;
use tokio::sync::{Semaphore, mpsc};

use super::returned::{is_ended, return_lease};
use super::sealed_grants::{Decision, Decisions};
use crate::guards::GUARD_TIMEOUT;
use crate::guards::seal::SealedMark;
use crate::guards::sealer::{Cause, GuardSealed, Sealer, higher_mark};
use crate::prefixes::Prefixes;
use crate::store::{Grant, LockStore, Mode};

/// Largest number of grants that wait for a seal in the background; seals beyond it are dropped.
const LAZY_MAX: usize = 1_024;
/// Number of background seals at the same time.
const LAZY_AT_ONCE: usize = 16;
/// The readiness check.
const CHECK: &str = "seals";
/// `Retry-After` of a refused acquire, in seconds.
const RETRY_AFTER_SECS: u64 = 1;

/// Mode of sealing guards when a lock is granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SealMode {
    /// No seal.
    #[default]
    Off,
    /// Guards are sealed in the background.
    Lazy,
    /// Guards are sealed before the grant is acknowledged; if one cannot be, nothing is granted.
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

/// A grant that must not be acknowledged.
#[derive(Debug)]
pub(crate) struct NotSealed {
    /// Reply to the client.
    pub(crate) reject: Reject,
    /// `true` if it is certain that the lease has ended.
    pub(crate) is_rolled_back: bool,
}

/// A grant that is sealed in the background.
#[derive(Debug)]
struct Later {
    lock: LockName,
    token: Token,
    lease: LeaseId,
    trace: Carrier,
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
    decisions: Arc<Mutex<Decisions>>,
    /// Reasons of the last failed seals, by guard.
    problems: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Seals {
    /// Starts the background seals that `modes` require, until shutdown.
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
            waiting: kit.metrics.gauge(
                "lock_lazy_seals_waiting",
                "Grants that wait to be sealed in the background now",
            ),
            dropped: kit.metrics.counter(
                "lock_lazy_seals_dropped",
                "Grants that were not sealed in the background, because too many waited",
            ),
            decisions: Arc::default(),
            problems: Arc::default(),
        };
        if seals.modes.values().any(|mode| mode == SealMode::Lazy) {
            let behind = seals.clone();
            let stop = kit.tasks.shutdown_token();
            kit.tasks.spawn(async move {
                stop.run_until_cancelled(behind.seal_behind(grants)).await;
            });
        }
        seals
    }

    /// Seals the guards as `--seal` requires for locks that were granted in one step and are not
    /// acknowledged yet: they are rolled back together. Takes the time that it took from what
    /// remains of them. Returns `true` if guards were sealed now, and no other request with the id
    /// was faster.
    ///
    /// # Errors
    /// [`NotSealed`] if a guard that has to be sealed was not. The leases were rolled back, or will
    /// expire; those that were there before the request stay.
    ///
    /// # Cancel safety
    /// If dropped, leases stay live and guards may be sealed or not: a caller that cannot be
    /// retried completes it.
    pub(crate) async fn after_grants(
        &self,
        grants: &mut [(LockName, Grant)],
    ) -> Result<bool, NotSealed> {
        let begun_ms = self.kit.clock.monotonic_ms();
        let is_required = self.with(SealMode::Required, grants).next().is_some();
        let is_new = is_required && self.required(grants).await?;
        for (lock, grant) in self.with(SealMode::Lazy, grants) {
            self.seal_later(lock, grant);
        }
        let took_ms = self.kit.clock.monotonic_ms().saturating_sub(begun_ms);
        for (_, grant) in grants {
            grant.remaining_ms = grant.remaining_ms.saturating_sub(took_ms);
        }
        Ok(is_new)
    }

    /// Those of the grants whose guards are sealed in this mode.
    fn with<'a>(
        &self,
        wanted: SealMode,
        grants: &'a [(LockName, Grant)],
    ) -> impl Iterator<Item = &'a (LockName, Grant)> {
        grants.iter().filter(move |(lock, grant)| {
            grant.mode == Mode::Exclusive && self.modes.value_for(lock) == Some(wanted)
        })
    }

    /// Seals the guards for those grants that require it, or rolls all of them back.
    async fn required(&self, grants: &[(LockName, Grant)]) -> Result<bool, NotSealed> {
        let shortest_ms = grants.iter().map(|(_, grant)| grant.remaining_ms).min();
        let patience = GUARD_TIMEOUT.min(Duration::from_millis(shortest_ms.unwrap_or_default()));
        let unsealed_yet = |each: &&(LockName, Grant)| !self.is_sealed(each);
        let seals = self.with(SealMode::Required, grants).filter(unsealed_yet);
        let seals = seals.map(|(lock, grant)| {
            self.sealer.seal(Cause::Required, (lock, grant.token, grant.lease_id), patience)
        });
        let results: Vec<GuardSealed> = join_all(seals).await.into_iter().flatten().collect();
        self.report(&results);
        if !results.iter().all(is_sealed) {
            return Err(self.roll_back(grants, &results).await);
        }
        match self.decide(grants, Decision::Sealed) {
            (Decision::Sealed, is_first) => Ok(is_first && !results.is_empty()),
            (Decision::RolledBack, _) => Err(rolled_back(grants, &results)),
        }
    }

    /// Returns `true` if grants of `lock` are acknowledged only after guards were sealed.
    pub(crate) fn is_required(&self, lock: &LockName) -> bool {
        self.modes.value_for(lock) == Some(SealMode::Required) && !self.sealer.urls().is_empty()
    }

    fn is_sealed(&self, (lock, grant): &(LockName, Grant)) -> bool {
        let decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        decisions.is_sealed(lock, grant.token)
    }

    fn decide(&self, grants: &[(LockName, Grant)], decision: Decision) -> (Decision, bool) {
        let mut decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        decisions.decide(tokens(grants), decision)
    }

    /// Returns the decision for grants of which one was there before: they are rolled back by the
    /// request that began them, or not at all.
    fn decided(&self, grants: &[(LockName, Grant)]) -> Decision {
        let decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        decisions.earlier(tokens(grants)).unwrap_or(Decision::Sealed)
    }

    /// Ends leases that no client has received. A tracked task retries those that the store does
    /// not confirm as ended. A lease that was there before stays: another server, or this one
    /// before it was started, may have sealed and acknowledged it.
    async fn roll_back(&self, grants: &[(LockName, Grant)], seals: &[GuardSealed]) -> NotSealed {
        let is_repeat = grants.iter().any(|(_, grant)| grant.is_repeat);
        let is_kept = match is_repeat {
            true if self.decided(grants) == Decision::RolledBack => {
                return rolled_back(grants, seals);
            }
            true => true,
            false => self.decide(grants, Decision::RolledBack).0 == Decision::Sealed,
        };
        let pending = if is_kept { &[] } else { grants };
        let releases = pending.iter().map(|(lock, grant)| self.store.release(lock, grant.lease_id));
        let results = join_all(releases).await;
        for ((lock, grant), result) in pending.iter().zip(&results) {
            if !is_ended(result) {
                self.return_later(lock.clone(), grant);
            }
        }
        let is_rolled_back = !is_kept && results.iter().all(is_ended);
        // A mark above the token of a lease that was live to the end: the counter is below an
        // issued token.
        let was_live = is_kept || is_rolled_back && results.iter().all(Result::is_ok);
        if let Some(mark) = higher_mark(seals).filter(|_| was_live)
            && let Err(error) = self.store.lift(mark).await
        {
            tracing::error!(%mark, %error, "the counter could not be raised above a guard's mark");
        }
        let longest_ms = grants.iter().map(|(_, grant)| grant.remaining_ms).max();
        let then = match (is_kept, is_rolled_back) {
            (_, true) => "the lease was rolled back".to_owned(),
            (is_kept, false) => format!(
                "{}; the lease expires within {} ms",
                match is_kept {
                    true => "the lease of an earlier request with this id stays",
                    false => "the rollback of the lease is being retried",
                },
                longest_ms.unwrap_or_default()
            ),
        };
        NotSealed { reject: problem(grants, seals, &then), is_rolled_back }
    }

    fn return_later(&self, lock: LockName, grant: &Grant) {
        let store = self.store.clone();
        let kit = self.kit.clone();
        let lease_id = grant.lease_id;
        let lives_ms = grant.remaining_ms;
        self.kit.tasks.spawn(async move {
            return_lease(&*store, &kit, &lock, lease_id, lives_ms).await;
        });
    }

    fn seal_later(&self, lock: &LockName, grant: &Grant) {
        let trace = Carrier::current();
        let lock = lock.clone();
        let later = Later { lock, token: grant.token, lease: grant.lease_id, trace };
        self.waiting.inc();
        if self.later.try_send(later).is_err() {
            self.waiting.dec();
            self.dropped.inc();
        }
    }

    async fn seal_behind(&self, mut grants: mpsc::Receiver<Later>) {
        let room = Arc::new(Semaphore::new(LAZY_AT_ONCE));
        while let Some(Later { lock, token, lease, trace }) = grants.recv().await {
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            let seals = self.clone();
            self.kit.tasks.spawn(async move {
                let grant = (&lock, token, lease);
                let sealing = seals.sealer.seal(Cause::Lazy, grant, GUARD_TIMEOUT);
                let results = trace.run(sealing).await;
                seals.waiting.dec();
                seals.report(&results);
                drop(permit);
            });
        }
    }

    /// Updates the readiness check, which warns of guards whose last seal failed.
    fn report(&self, results: &[GuardSealed]) {
        if results.is_empty() {
            return;
        }
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        for GuardSealed { guard, outcome } in results {
            match outcome {
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

/// `true` if the mark of the guard is the token of its grant.
fn is_sealed(result: &GuardSealed) -> bool {
    matches!(result.outcome, Ok(SealedMark::At(_)))
}

fn tokens(grants: &[(LockName, Grant)]) -> impl Iterator<Item = (&LockName, Token)> + Clone {
    grants.iter().map(|(lock, grant)| (lock, grant.token))
}

/// Refuses a request while an earlier one with its id rolls the lease back.
fn rolled_back(grants: &[(LockName, Grant)], seals: &[GuardSealed]) -> NotSealed {
    let guards: Vec<GuardSeal> = seals.iter().map(GuardSealed::wire).collect();
    let locks: Vec<&str> = grants.iter().map(|(lock, _)| lock.as_str()).collect();
    let detail = format!(
        "lock {} is not granted: an earlier request with this lease_id found a guard that was not \
         sealed, and rolls the lease back",
        locks.join(", ")
    );
    let reject = Reject::new(Code::GuardUnsealed, detail).with("guards", guards);
    NotSealed { reject: reject.retry_after(RETRY_AFTER_SECS), is_rolled_back: false }
}

fn problem(grants: &[(LockName, Grant)], seals: &[GuardSealed], then: &str) -> Reject {
    let mut why: Vec<String> = Vec::new();
    let mut guards: Vec<GuardSeal> = Vec::new();
    for seal in seals {
        let problem = match &seal.outcome {
            Ok(SealedMark::At(_)) => None,
            Ok(SealedMark::Above(mark)) => Some(format!("it has seen token {mark} already")),
            Err(why) => Some(why.clone()),
        };
        if let Some(problem) = &problem {
            why.push(format!("the guard {}: {problem}", seal.guard));
        }
        guards.push(GuardSeal { problem, ..seal.wire() });
    }
    why.dedup();
    let locks: Vec<&str> = grants.iter().map(|(lock, _)| lock.as_str()).collect();
    let locks = locks.join(", ");
    let why = why.join("; ");
    let detail =
        format!("lock {locks} is not granted, because not every guard was sealed: {why}; {then}");
    Reject::new(Code::GuardUnsealed, detail).with("guards", guards).retry_after(RETRY_AFTER_SECS)
}
