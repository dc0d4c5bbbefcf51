//! What happened to locks, for those who watch: `GET /v1/events`.
//!
//! Events are an account for people and dashboards; nothing here takes part in a decision, and no
//! operation waits for it or fails because of it. They come from three places: [`Observed`] stands
//! before the store and tells what it answered; a task looks at leases whose time is over and tells
//! what the store says of their end; handlers tell what only they know. With Redis behind several
//! lock servers, all of them write to one bounded stream and read it, so that each tells the same.
//!
//! The choices are in docs/decisions/0029-events.md.

mod deadlines;
mod follow;
mod observe;
mod ring;
mod shared;
mod stream;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fence_protocol::wire::event::{Event, EventKind, ToldOfLock};
use fence_protocol::wire::lock::EndedReply;
use fence_protocol::{LeaseId, LockName};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use service_kit::Kit;
use service_kit::clock::Clock;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::deadlines::Deadlines;
use self::ring::{Entry, Ring, Told};
use crate::store::{LockStore, StoreOptions, StoreUrl};

pub use self::observe::Observed;
pub use self::ring::EventId;
#[cfg(any(test, fuzzing))]
pub(crate) use self::shared::fuzz;
pub(crate) use self::stream::{Reader, Watched};

/// How many leases are followed to their end; of more than that, expiries are not told.
const FOLLOWED_MAX: usize = 50_000;
/// How many events may wait to be written to Redis; more are dropped and counted.
const OUTBOX: usize = 16_384;
/// The events of a lock that are shown with it.
const SHOWN: usize = 50;
/// The refusals of a lock that are shown with it.
const REFUSALS_SHOWN: usize = 16;

/// How much is remembered, and for how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventOptions {
    /// How many events are remembered; 0 turns them off.
    pub history: usize,
    /// How many may read the stream at the same time.
    pub readers_max: usize,
}

impl Default for EventOptions {
    fn default() -> Self {
        Self { history: 10_000, readers_max: 256 }
    }
}

/// The events of a lock server. Cheap to clone; clones are the same.
#[derive(Clone, Debug)]
pub struct Events {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: EventOptions,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Changes with every event.
    news: watch::Sender<()>,
    readers: Arc<Semaphore>,
    /// To the task that writes to Redis; none where this server is alone with its events.
    outbox: Option<mpsc::Sender<Event>>,
    /// Events that did not fit into the outbox since the last gap was told.
    lost: AtomicU64,
    /// Something is due earlier than the follower thinks.
    sooner: Notify,
    shutdown: CancellationToken,
    figures: Figures,
}

#[derive(Debug)]
struct State {
    ring: Ring,
    told: Told,
    deadlines: Deadlines,
    next: EventId,
}

/// What is counted.
#[derive(Clone, Debug, Default)]
struct Figures {
    told: Counter,
    lost: Counter,
    readers: Gauge,
    cut: Counter,
}

impl Figures {
    fn new(kit: &Kit) -> Self {
        let figures = Self::default();
        let Self { told, lost, readers, cut } = figures.clone();
        kit.metrics.registry(|registry| {
            registry.register("lock_events", "Events that this server's readers can see", told);
            registry.register(
                "lock_events_lost",
                "Events that were dropped; gaps tell of them",
                lost,
            );
            registry.register("lock_event_readers", "Readers of the event stream now", readers);
            registry.register("lock_event_readers_cut", "Readers that were too slow", cut);
        });
        figures
    }
}

impl Events {
    /// Begins to observe `store`: the events, and the store to use from now on.
    ///
    /// # Errors
    /// A sentence where the Redis that the events of several servers meet in cannot be reached.
    pub async fn observe(
        store: Arc<dyn LockStore>,
        url: &StoreUrl,
        options: EventOptions,
        store_options: &StoreOptions,
        kit: &Kit,
    ) -> Result<(Self, Arc<dyn LockStore>), String> {
        let shared = match url {
            StoreUrl::Redis(target) if options.history > 0 => Some(target),
            _ => None,
        };
        let (outbox, waiting) = mpsc::channel(OUTBOX);
        let events = Self::new(options, shared.map(|_| outbox), kit);
        if options.history == 0 {
            return Ok((events, store));
        }
        if let Some(target) = shared {
            let keys = (&store_options.key_prefix, &store_options.namespace);
            shared::start(&events, target.clone(), keys, waiting, kit).await?;
        }
        follow::start(&events, &store, kit);
        let observed = Arc::new(Observed::new(store, events.clone()));
        Ok((events, observed))
    }

    fn new(options: EventOptions, outbox: Option<mpsc::Sender<Event>>, kit: &Kit) -> Self {
        let life = EventId { ms: kit.clock.wall_ms(), seq: 0 };
        let state = State {
            ring: Ring::new(options.history, life),
            told: Told::new(options.history.saturating_mul(2)),
            deadlines: Deadlines::new(FOLLOWED_MAX),
            next: life,
        };
        Self {
            inner: Arc::new(Inner {
                options,
                clock: kit.clock.clone(),
                state: Mutex::new(state),
                news: watch::channel(()).0,
                readers: Arc::new(Semaphore::new(options.readers_max)),
                outbox,
                lost: AtomicU64::new(0),
                sooner: Notify::new(),
                shutdown: kit.tasks.shutdown_token(),
                figures: Figures::new(kit),
            }),
        }
    }

    /// Whether events are kept at all.
    pub fn is_on(&self) -> bool {
        self.inner.options.history > 0
    }

    /// Tells an event. Never waits; one that finds no room is counted, and a gap will tell of it.
    pub fn tell(&self, mut event: Event) {
        if !self.is_on() {
            return;
        }
        if event.kind.is_end() {
            self.complete(&mut event);
        }
        match &self.inner.outbox {
            Some(outbox) => {
                if outbox.try_send(event).is_err() {
                    self.lose(1);
                }
            }
            None => self.remember(event),
        }
    }

    /// Tells of the end of a lease, and perhaps why.
    pub(crate) fn tell_end(&self, ended: &EndedReply, text: Option<String>) {
        let kind = EventKind::of_end(ended.reason);
        let mut event = Event::new(kind).lock(&ended.lock).lease(ended.lease_id);
        event.token = Some(ended.token);
        self.tell(match text {
            Some(text) => event.text(text),
            None => event,
        });
    }

    /// The lease may have ended: the store is asked at once.
    pub(crate) fn look_at(&self, lock: &LockName, lease_id: LeaseId) {
        let now_ms = self.inner.clock.monotonic_ms();
        if self.state().deadlines.look(&(lock.clone(), lease_id), now_ms) {
            self.inner.sooner.notify_one();
        }
    }

    /// What is remembered of a lock, or of one lease on it.
    pub(crate) fn of_lock(&self, lock: &LockName, lease_id: Option<LeaseId>) -> ToldOfLock {
        let is_meant = |event: &Event| lease_id.is_none() || event.lease_id == lease_id;
        let (events, refusals, gap) = {
            let ring = &self.state().ring;
            let refusals = ring.refusals(lock, REFUSALS_SHOWN, is_meant);
            (ring.of_lock(lock, SHOWN, is_meant), refusals, ring.gap())
        };
        let now_ms = self.now_ms();
        let aged = |entries: Vec<Entry>| entries.iter().map(|entry| entry.aged(now_ms)).collect();
        let gap = gap.map(|entry| entry.aged(now_ms));
        ToldOfLock { events: aged(events), refusals: aged(refusals), gap }
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.inner.clock.monotonic_ms()).unwrap_or(i64::MAX)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, count: u64) {
        self.inner.lost.fetch_add(count, Ordering::Relaxed);
        self.inner.figures.lost.inc_by(count);
    }

    /// Adds what is known of the lease that ended.
    fn complete(&self, event: &mut Event) {
        let now_ms = self.inner.clock.monotonic_ms();
        let Some(key) = event.lock.clone().zip(event.lease_id) else { return };
        if let Some(known) = self.state().deadlines.of(&key) {
            event.owner = event.owner.take().or_else(|| known.owner.clone());
            let held_ms = now_ms.saturating_sub(known.granted_at_ms) + known.before_ms;
            event.held_ms = event.held_ms.or(Some(held_ms));
        }
    }

    /// Remembers an event of this server, which is alone with its events.
    fn remember(&self, event: Event) {
        let mut state = self.state();
        if !state.told.is_news(&event) {
            return;
        }
        state.next.seq += 1;
        let id = state.next;
        self.push(state, Some(id), event, self.now_ms(), true);
    }

    /// Remembers an event that was heard from Redis.
    fn hear(&self, id: EventId, mut event: Event, at_ms: i64, is_own: bool) {
        if event.kind.is_end() {
            // It may have been told before its grant was heard, which says whose lease it is.
            self.complete(&mut event);
        }
        let mut state = self.state();
        state.told.is_news(&event);
        self.push(state, Some(id), event, at_ms, is_own);
    }

    /// Tells this server's readers that something is missing here.
    fn gap(&self, missed: Option<u64>, text: &str) {
        let mut event = Event::new(EventKind::Gap).text(text);
        event.missed = missed;
        self.push(self.state(), None, event, self.now_ms(), true);
    }

    fn push(
        &self,
        mut state: MutexGuard<'_, State>,
        id: Option<EventId>,
        event: Event,
        at_ms: i64,
        is_own: bool,
    ) {
        // Two servers can tell an end before its grant.
        let is_over = event.kind == EventKind::Granted && state.told.is_over(&event);
        let is_due =
            !is_over && state.deadlines.note(&event, self.inner.clock.monotonic_ms(), is_own);
        state.ring.push(Entry { id, event: Arc::new(event), at_ms });
        drop(state);
        self.inner.figures.told.inc();
        if is_due {
            self.inner.sooner.notify_one();
        }
        self.inner.news.send_replace(());
    }
}
