//! The lineage in force, and the steps of its verification.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use prometheus_client::metrics::counter::Counter;
use service_kit::Kit;
use service_kit::clock::Clock;
use service_kit::health::{Health, Status};

use super::{Adoption, Found, KnownLineage, Verdict, judge};
use crate::engines::loss::AfterLoss;
use crate::engines::shared::store_clock::StoreTime;
use crate::guards::Guards;

/// Attempts to write while other servers write too.
const TRIES: usize = 8;

/// The record of a lineage, behind one connection to a database.
#[async_trait]
pub(crate) trait LineageStore: Send {
    /// Reads what the database shows to a server that knows this lineage, or none, which is empty.
    ///
    /// # Errors
    /// A sentence that says why this database cannot be used.
    async fn find(&mut self, known_id: &str) -> Result<Found, String>;

    /// Writes an adoption in one step, with `id` where it begins a lineage. Does nothing and
    /// returns none where anything that [`find`](Self::find) read last has changed, other than a
    /// counter that rose and the end of the leases: what begins meanwhile is stored, and not lost.
    ///
    /// # Errors
    /// A sentence; it may be written then.
    async fn write(&mut self, adoption: &Adoption, id: &str) -> Result<Option<Written>, String>;
}

/// State after an adoption.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) counter: u64,
    /// No lease begins for so long.
    pub(crate) paused_ms: u64,
}

/// A verified lineage.
#[derive(Debug)]
pub(crate) struct Verified {
    pub(crate) id: String,
    pub(crate) counter: u64,
}

/// Verifies connections and keeps the lineage in force, as a `T` that shows its id.
#[derive(Debug)]
pub(crate) struct LineageKeeper<T> {
    store: &'static str,
    counter_seen: Arc<AtomicU64>,
    time: Arc<StoreTime>,
    after_loss: AfterLoss,
    guards: Guards,
    clock: Arc<dyn Clock>,
    health: Health,
    begun: Counter,
    /// The lineage in force, and how many began since this server started; the first does not
    /// count.
    current: RwLock<Option<(T, u64)>>,
}

impl<T: AsRef<str> + Clone> LineageKeeper<T> {
    /// Keeps the lineage of a `store`, as texts name it.
    pub(crate) fn new(
        store: &'static str,
        (counter_seen, time): (&Arc<AtomicU64>, &Arc<StoreTime>),
        (after_loss, guards): (AfterLoss, Guards),
        kit: &Kit,
    ) -> Self {
        let begun = kit.metrics.counter(
            "lock_lineages_begun",
            "New lineages that this server began: each lifted the token counter",
        );
        Self {
            store,
            counter_seen: counter_seen.clone(),
            time: time.clone(),
            after_loss,
            guards,
            clock: kit.clock.clone(),
            health: kit.health.clone(),
            begun,
            current: RwLock::new(None),
        }
    }

    /// The lineage in force.
    pub(crate) fn current(&self) -> Option<T> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map(|(adopted, _)| adopted.clone())
    }

    /// The guards, whose marks every verification compares with the counter.
    pub(crate) fn guards(&self) -> &Guards {
        &self.guards
    }

    fn known(&self) -> KnownLineage {
        let current = self.current();
        KnownLineage {
            id: current.as_ref().map_or("", |current| current.as_ref()).to_owned(),
            seen: self.counter_seen.load(Ordering::Relaxed),
            mark: self.guards.highest(),
            wall_ms: self.clock.wall_ms(),
            lives_ms: self.time.lives_ms(),
            waits: self.after_loss == AfterLoss::Wait,
            now_ms: self.time.now_ms(),
            limit_ms: self.time.limit_ms(),
            vouches: false,
        }
    }

    /// Verifies the database behind a connection, and begins a lineage where one is due. The guards
    /// are asked at start and before a lineage begins, so that it begins above what they have seen;
    /// those that do not reply are reported by [`Guards::marks`], and the clock floor is above
    /// their marks.
    ///
    /// # Errors
    /// A sentence; the lineage in force is as it was.
    pub(crate) async fn verify(&self, store: &mut dyn LineageStore) -> Result<Verified, String> {
        let mut is_asked = self.guards.is_empty();
        if !self.guards.were_asked() || self.current().is_none() {
            self.guards.marks().await;
            is_asked = true;
        }
        for _ in 0..TRIES {
            let known = self.known();
            let found = store.find(&known.id).await?;
            let Verdict::Adopt(adoption) = judge(&found, &known) else {
                return Err(format!(
                    "this namespace has no token left above those that may have been issued; use \
                     another namespace, and check the clocks of {} and of this machine",
                    self.store
                ));
            };
            if adoption.reason.is_some() && !is_asked {
                self.guards.marks().await;
                is_asked = true;
                continue;
            }
            let new_id = service_kit::ids::random_hex(16);
            let Some(written) = store.write(&adoption, &new_id).await? else { continue };
            let id = if adoption.reason.is_some() { new_id } else { found.id };
            self.report(&id, &adoption, written);
            return Ok(Verified { id, counter: written.counter });
        }
        Err(format!("other lock servers change the lineage in {} all the time", self.store))
    }

    fn report(&self, lineage: &str, adoption: &Adoption, written: Written) {
        let Written { counter, paused_ms } = written;
        if let Some(reason) = &adoption.reason {
            self.begun.inc();
            tracing::warn!(
                lineage,
                counter,
                reason,
                grants_wait_ms = paused_ms,
                "a new lineage begins: the counter was lifted above every token that can have been issued"
            );
        } else if adoption.lifted_to.is_some() {
            tracing::info!(
                counter,
                "tokens continue above everything that can have been issued: this server or \
                 {} has started",
                self.store
            );
        }
    }

    /// Puts a verified lineage in force.
    pub(crate) fn adopt(&self, adopted: T) {
        let is_new = self.current().is_none_or(|known| known.as_ref() != adopted.as_ref());
        if is_new {
            self.time.is_new();
        }
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let changes = match &*current {
            Some((known, changes)) if known.as_ref() == adopted.as_ref() => *changes,
            Some((_, changes)) => changes + 1,
            None => 0,
        };
        *current = Some((adopted, changes));
        self.health.set("lineage", self.status(changes));
    }

    /// The readiness check `lineage`, after so many lineages that began since this server started.
    fn status(&self, changes: u64) -> Status {
        match changes {
            0 => Status::Ok,
            changes => Status::Warn(format!(
                "{} may have lost tokens {changes} times since this server started; they were \
                 lifted above everything issued before",
                self.store
            )),
        }
    }
}

/// Vouches in a database that a namespace has never issued a token, so that its first one is 1.
/// Returns the lineage in force where it is in use already, which is then left as it is.
///
/// # Errors
/// A sentence.
pub(crate) async fn vouch(
    store: &mut dyn LineageStore,
    clock: &dyn Clock,
) -> Result<Option<String>, String> {
    let known = KnownLineage { wall_ms: clock.wall_ms(), vouches: true, ..KnownLineage::default() };
    let found = store.find("").await?;
    let Verdict::Adopt(adoption) = judge(&found, &known) else { return Ok(Some(found.id)) };
    let id = service_kit::ids::random_hex(16);
    match store.write(&adoption, &id).await? {
        Some(_) => Ok(None),
        // Another one was faster, so it is in use.
        None => Ok(Some(store.find("").await?.id)),
    }
}
