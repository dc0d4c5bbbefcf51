//! Events of locks for watchers: `GET /v1/events`.
//!
//! Events are an account for people and dashboards; nothing here takes part in a decision, and no
//! operation waits for it or fails because of it. They come from the transitions of the lease
//! rules, in the batches in which they were committed ([`Report`]); handlers add what only they
//! know. A store with rules of its own is observed instead: [`Observed`] stands before it and
//! reports what it answered, and a task checks leases whose time is over. With Redis behind
//! several lock servers, all of them write to one bounded stream and read it, so that each has the
//! same events.
//!
//! The choices are in docs/decisions/0052-events-from-transitions.md.

mod deadlines;
mod follow;
mod hold_times;
mod observe;
mod outbox;
mod ring;
mod ring_index;
mod shared;
mod stream;

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fence_protocol::wire::event::{Event, EventKind, RecentEvents};
use fence_protocol::wire::lock::{EndedReply, LockLine};
use fence_protocol::{LeaseId, LockName};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use service_kit::Kit;
use service_kit::clock::Clock;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use self::deadlines::Deadlines;
use self::hold_times::HoldTimes;
use self::outbox::Outbox;
use self::ring::{Entry, PublishedOnce, Ring};
use crate::engines::contract::ServerId;
use crate::engines::open::StoreUrl;
use crate::engines::options::StoreOptions;
use crate::store::LockStore;
use crate::store::figures::{Held, show_held};
use crate::store::report::Report;

pub use self::observe::Observed;
pub use self::ring::EventId;
#[cfg(any(test, fuzzing))]
pub(crate) use self::shared::fuzz;
pub(crate) use self::stream::{Reader, Watched};

/// Largest number of leases that are followed to their end; expiries beyond it are not reported.
const FOLLOWED_MAX: usize = 50_000;
/// The events of a lock that are shown with it.
const SHOWN: usize = 50;
/// The refusals of a lock that are shown with it.
const REFUSALS_SHOWN: usize = 16;

/// Limits of the event history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct EventOptions {
    /// Events remembered; 0 turns them off.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub event_history: usize,
    /// Readers of the stream of events.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_event_readers: usize,
}

/// Events of a lock server. Cheap to clone; clones share them.
#[derive(Clone, Debug)]
pub struct Events {
    inner: Arc<EventsShared>,
}

#[derive(Debug)]
struct EventsShared {
    options: EventOptions,
    clock: Arc<dyn Clock>,
    state: Mutex<EventLog>,
    /// Changes with every event.
    news: watch::Sender<()>,
    readers: Arc<Semaphore>,
    /// To the task that writes to Redis; none where this server is alone with its events.
    outbox: Option<Outbox>,
    /// Events that did not fit into the outbox since the last gap was published.
    lost: AtomicU64,
    /// Something is due earlier than the follower thinks.
    sooner: Notify,
    shutdown: CancellationToken,
    figures: Figures,
}

#[derive(Debug)]
struct EventLog {
    ring: Ring,
    next: EventId,
    /// The store does not report by itself: its replies are observed instead.
    is_observed: bool,
    published: PublishedOnce,
    deadlines: Deadlines,
}

/// Metrics of the stream.
#[derive(Clone, Debug)]
struct Figures {
    published: Counter,
    lost: Counter,
    readers: Gauge,
    cut: Counter,
    hold_times: HoldTimes,
}

impl Figures {
    fn new(kit: &Kit) -> Self {
        let metrics = &kit.metrics;
        Self {
            published: metrics.counter("lock_events", "Events that this server's readers can see"),
            lost: metrics.counter("lock_events_lost", "Events that were dropped; a gap marks them"),
            readers: metrics.gauge("lock_event_readers", "Readers of the event stream now"),
            cut: metrics.counter("lock_event_readers_cut", "Readers that were too slow"),
            hold_times: HoldTimes::new(metrics),
        }
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
            StoreUrl::Redis(target) if options.event_history > 0 => Some(target),
            _ => None,
        };
        let events = Self::new(options, shared.is_some(), kit);
        if options.event_history == 0 {
            return Ok((events, store));
        }
        let reporter = store.report_to(Arc::new(events.clone()));
        if let Some(target) = shared {
            let keys = (&store_options.key_prefix, &store_options.namespace);
            let origin = reporter.unwrap_or_default();
            shared::start(&events, target.clone(), keys, origin, kit).await?;
        }
        if reporter.is_some() {
            return Ok((events, store));
        }
        events.state().is_observed = true;
        events.show_held(kit);
        follow::start(&events, &store, kit);
        let observed = Arc::new(Observed::new(store, events.clone()));
        Ok((events, observed))
    }

    fn new(options: EventOptions, is_shared: bool, kit: &Kit) -> Self {
        // Larger values would exceed any memory.
        let event_history = options.event_history.min(1_000_000);
        let max_event_readers = options.max_event_readers.min(100_000);
        let options = EventOptions { event_history, max_event_readers };
        let life = EventId { ms: kit.clock.wall_ms(), seq: 0 };
        let state = EventLog {
            ring: Ring::new(options.event_history, life),
            next: life,
            is_observed: false,
            published: PublishedOnce::new(options.event_history.saturating_mul(2)),
            deadlines: Deadlines::new(FOLLOWED_MAX),
        };
        Self {
            inner: Arc::new(EventsShared {
                options,
                clock: kit.clock.clone(),
                state: Mutex::new(state),
                news: watch::channel(()).0,
                readers: Arc::new(Semaphore::new(options.max_event_readers)),
                outbox: is_shared.then(Outbox::default),
                lost: AtomicU64::new(0),
                sooner: Notify::new(),
                shutdown: kit.tasks.shutdown_token(),
                figures: Figures::new(kit),
            }),
        }
    }

    /// `true` if events are kept.
    pub fn is_on(&self) -> bool {
        self.inner.options.event_history > 0
    }

    /// Publishes an event. Never waits: an event that finds no room is counted, and a gap reports
    /// it.
    pub fn publish(&self, event: Event) {
        if self.is_on() {
            self.report(vec![event]);
        }
    }

    /// Publishes the end of a lease with its reason, if the store does not report by itself.
    pub(crate) fn publish_end(&self, ended: &EndedReply, text: Option<String>) {
        if !self.state().is_observed {
            return;
        }
        let kind = EventKind::of_end(ended.reason);
        let mut event = Event::new(kind).lock(&ended.lock).lease(ended.lease_id);
        event.token = Some(ended.token);
        self.publish(match text {
            Some(text) => event.text(text),
            None => event,
        });
    }

    /// Has the follower read a lease that may have ended from the store at once.
    pub(crate) fn check_lease(&self, lock: &LockName, lease_id: LeaseId) {
        let now_ms = self.inner.clock.monotonic_ms();
        let is_followed = self.state().deadlines.make_due(&(lock.clone(), lease_id), now_ms);
        if is_followed {
            self.inner.sooner.notify_one();
        }
    }

    /// Remembered events of a lock, or of one lease on it.
    pub(crate) fn of_lock(&self, lock: &LockName, lease_id: Option<LeaseId>) -> RecentEvents {
        let is_meant = |event: &Event| lease_id.is_none() || event.lease_id == lease_id;
        let (events, refusals, gap) = {
            let ring = &self.state().ring;
            let refusals = ring.refusals(lock, REFUSALS_SHOWN, is_meant);
            (ring.of_lock(lock, SHOWN, is_meant), refusals, ring.gap())
        };
        let now_ms = self.now_ms();
        let aged = |entries: Vec<Entry>| entries.iter().map(|entry| entry.aged(now_ms)).collect();
        let gap = gap.map(|entry| entry.aged(now_ms));
        RecentEvents { events: aged(events), refusals: aged(refusals), gap }
    }

    /// Sets the number of remembered refusals of each line.
    pub(crate) fn count_refusals(&self, lines: &mut [LockLine]) {
        let state = self.state();
        let index = state.ring.index();
        for line in lines {
            line.refusals = index.refusal_count(&line.lock);
        }
    }

    /// At most `limit` locks with remembered refusals under `prefix` and after `after`, in the
    /// order of their names, and whether there are more.
    pub(crate) fn refused(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> (Vec<LockName>, bool) {
        let from = match after {
            Some(after) if after.as_str() >= prefix => Bound::Excluded(after.as_str()),
            _ => Bound::Included(prefix),
        };
        let state = self.state();
        let names = state.ring.index().refused(from);
        let mut names = names.take_while(|lock| lock.as_str().starts_with(prefix));
        let page = names.by_ref().take(limit).cloned().collect();
        (page, names.next().is_some())
    }

    /// Shows the leases of an observed store that are followed.
    fn show_held(&self, kit: &Kit) {
        let events = Arc::downgrade(&self.inner);
        show_held(&kit.metrics, move || {
            let inner = events.upgrade()?;
            let state = inner.state.lock().unwrap_or_else(PoisonError::into_inner);
            Some(Held { locks: state.deadlines.lock_count(), sessions: 0 })
        });
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.inner.clock.monotonic_ms()).unwrap_or(i64::MAX)
    }

    fn state(&self) -> MutexGuard<'_, EventLog> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, count: u64) {
        self.inner.lost.fetch_add(count, Ordering::Relaxed);
        self.inner.figures.lost.inc_by(count);
    }

    /// Publishes a gap to this server's readers.
    fn gap(&self, missed: Option<u64>, text: &str) {
        let mut event = Event::new(EventKind::Gap).text(text);
        event.missed = missed;
        let entry = Entry::new(None, event, self.now_ms(), ServerId::default());
        self.state().ring.push(entry);
        self.notify(1);
    }

    /// Remembers events that were read from Redis.
    fn remember_all(
        &self,
        events: impl Iterator<Item = (EventId, Event)>,
        at_ms: i64,
        origin: ServerId,
    ) {
        let count = self.state().remember(events, at_ms, origin);
        self.notify(count);
    }

    fn notify(&self, count: u64) {
        self.inner.figures.published.inc_by(count);
        self.inner.news.send_replace(());
    }
}

impl EventLog {
    fn remember(
        &mut self,
        events: impl Iterator<Item = (EventId, Event)>,
        at_ms: i64,
        origin: ServerId,
    ) -> u64 {
        let mut count = 0;
        for (id, event) in events {
            count += 1;
            self.ring.push(Entry::new(Some(id), event, at_ms, origin));
        }
        count
    }

    /// Gives events of this server their ids.
    fn number(&mut self, events: Vec<Event>) -> impl Iterator<Item = (EventId, Event)> + use<> {
        let EventId { ms, seq } = self.next;
        self.next.seq += events.len() as u64;
        (seq + 1..).map(move |seq| EventId { ms, seq }).zip(events)
    }
}

impl EventLog {
    /// `true` if an event of an observed store is new. An end receives the owner and age of its
    /// lease.
    fn is_news(&mut self, event: &mut Event, now_ms: u64) -> bool {
        if event.kind.is_end()
            && let Some(key) = event.lock.clone().zip(event.lease_id)
            && let Some(known) = self.deadlines.lease(&key)
        {
            event.owner = event.owner.take().or_else(|| known.owner.clone());
            let held_ms = now_ms.saturating_sub(known.granted_at_ms);
            event.held_ms = event.held_ms.or(Some(held_ms));
        }
        self.published.is_news(event)
    }
}

impl Report for Events {
    fn report(&self, mut events: Vec<Event>) {
        if let Some(outbox) = &self.inner.outbox {
            self.inner.figures.hold_times.observe(&events);
            self.lose(outbox.put(events) as u64);
            return;
        }
        let now_ms = self.inner.clock.monotonic_ms();
        let mut state = self.state();
        let mut is_due = false;
        if state.is_observed {
            events.retain_mut(|event| state.is_news(event, now_ms));
            for event in &events {
                is_due |= state.deadlines.record(event, now_ms);
            }
        }
        self.inner.figures.hold_times.observe(&events);
        let numbered = state.number(events);
        let count = state.remember(numbered, self.now_ms(), ServerId::default());
        drop(state);
        self.notify(count);
        if is_due {
            self.inner.sooner.notify_one();
        }
    }

    fn granted_by(&self, server: ServerId) -> Vec<LockName> {
        self.state().ring.granted_by(server)
    }
}
