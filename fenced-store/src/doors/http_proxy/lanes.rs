//! All lanes: feeds them events, carries out their actions, and notifies waiters.

mod operator;
mod rest;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fence_protocol::LockName;
use service_kit::{Kit, ids};
use tokio::sync::oneshot;

use super::journal::{Change, Journal, OpenLane};
use super::lane::{Action, Event, Inherited, Kind, Lane, OpId, Why};
use super::term::Term;
use super::ticket::{OperationEnds, Ticket};
use super::upstream::Upstream;
use crate::counters::Counters;
use crate::stores::contract::{Effect, FenceOutcome, StoreError};
use crate::verdict::Fence;

use self::rest::Timer;

/// Maximum number of lanes in memory; idle ones make room, and are loaded again from the journal.
const MAX_LANES: usize = 100_000;
/// Minimum advised time before a retry.
const RETRY_MS: u64 = 1000;

/// The lanes before one upstream, and their marks, in one term.
#[derive(Debug)]
pub(super) struct Lanes {
    table: Mutex<Table>,
    /// Held while a lane is loaded from the journal or dropped, so that no lane is made from a mark
    /// that was read before another lane of the same lock raised it.
    loading: tokio::sync::Mutex<()>,
    journal: Journal,
    term: Term,
    lifetime_ms: u64,
    drain_wait: Duration,
    /// Begins the ids of quarantines, so that those of an earlier term or process are no others'.
    quarantine_prefix: String,
    counters: Counters,
    kit: Kit,
    itself: Weak<Lanes>,
}

/// The lanes in memory.
#[derive(Debug, Default)]
struct Table {
    slots: HashMap<LockName, Slot>,
    /// Locks whose lane is open.
    open: HashSet<LockName>,
    next_op: OpId,
    /// Number of the next quarantine, or of the next unknown outcome in one.
    next_quarantine: u64,
    /// The process ends: lanes close as soon as nothing is out.
    is_closing: bool,
    /// Empty between two events; kept for its memory.
    actions: Vec<Action>,
}

impl Table {
    fn number_of_quarantine(&mut self) -> u64 {
        let number = self.next_quarantine;
        self.next_quarantine += 1;
        number
    }
}

#[derive(Debug, Default)]
struct Slot {
    lane: Lane,
    /// Time since which a higher token waits for operations at the upstream.
    draining_since_ms: Option<u64>,
    /// Number of the last unknown outcome, which identifies the quarantine.
    quarantine: u64,
    /// Timer of the quarantine's end.
    timer: Option<Timer>,
    waiting: HashMap<OpId, oneshot::Sender<Result<(), Why>>>,
}

/// One waiting operation. Dropping it takes the operation out of the lane.
struct Waiter<'a> {
    lanes: &'a Lanes,
    lock: LockName,
    op: OpId,
    kind: Kind,
    reply: oneshot::Receiver<Result<(), Why>>,
    is_decided: bool,
}

/// Result of waiting in a lane.
#[derive(Debug)]
pub(super) enum Entry {
    /// The operation may be forwarded; its end must be reported.
    Admitted(Ticket),
    /// The fence refused the operation.
    Refused(FenceOutcome),
}

/// Result of an arrival.
enum Arrival {
    /// It was decided at once.
    Decided(Result<(), Why>),
    /// It waits.
    Waits(OpId, oneshot::Receiver<Result<(), Why>>),
}

impl Lanes {
    /// Makes the lanes of a term. Every lane that was open when the last one ended is quarantined.
    pub(super) fn start(
        upstream: &Upstream,
        journal: Journal,
        term: Term,
        open: Vec<OpenLane>,
        inherited: Inherited,
        counters: &Counters,
        kit: &Kit,
    ) -> Arc<Self> {
        let lanes = Arc::new_cyclic(|itself| Self {
            table: Mutex::default(),
            loading: tokio::sync::Mutex::default(),
            journal,
            term,
            lifetime_ms: whole_ms(upstream.max_request_lifetime),
            drain_wait: upstream.drain_wait,
            quarantine_prefix: ids::random_hex(6),
            counters: counters.clone(),
            kit: kit.clone(),
            itself: Weak::clone(itself),
        });
        lanes.restore(open, inherited);
        Arc::clone(&lanes).start_resting();
        lanes
    }

    fn restore(&self, open: Vec<OpenLane>, inherited: Inherited) {
        let quarantine_ms = inherited.until_ms.saturating_sub(self.now_ms());
        for (lock, mark, open) in open {
            tracing::warn!(
                %lock, token = %open.token, quarantine_ms,
                "writes may have been in flight when the last process ended; the lane is quarantined"
            );
            let lane = Lane::restore(mark, open, inherited);
            self.counters.quarantines.inc();
            self.counters.quarantined_lanes.inc();
            self.counters.open_lanes.inc();
            let mut table = self.table();
            table.open.insert(lock.clone());
            let quarantine = table.number_of_quarantine();
            let mut slot = Slot { lane, quarantine, ..Slot::default() };
            self.set_timer(&lock, &mut slot);
            table.slots.insert(lock, slot);
        }
    }

    /// Refuses whatever waits, after the end of the term. Nothing is admitted any more.
    pub(super) fn abandon_all(&self) {
        let mut table = self.table();
        let slots = std::mem::take(&mut table.slots);
        table.open.clear();
        self.counters.open_lanes.set(0);
        self.counters.quarantined_lanes.set(0);
        drop(table);
        drop(slots);
    }

    /// Returns `true` once the process ends and every lane is closed for good.
    pub(super) fn are_closed(&self) -> bool {
        let table = self.table();
        table.is_closing && table.open.is_empty()
    }

    /// Raises a mark, and waits until nothing lower can take effect.
    ///
    /// # Errors
    /// As [`enter`](Self::enter).
    pub(super) async fn seal(&self, fence: &Fence) -> Result<FenceOutcome, StoreError> {
        match self.enter(fence, Kind::Seal).await? {
            Entry::Admitted(ticket) => {
                ticket.ended();
                let mark = Some(fence.presented.token);
                Ok(FenceOutcome::Applied { effect: Effect::Sealed, mark })
            }
            Entry::Refused(outcome) => Ok(outcome),
        }
    }

    /// Waits until the operation may be forwarded, at most for the drain time.
    ///
    /// # Errors
    /// [`StoreError`]; the operation was not forwarded.
    ///
    /// # Cancel safety
    /// Dropping the future takes the operation out of the lane; its mark stays.
    pub(super) async fn enter(&self, fence: &Fence, kind: Kind) -> Result<Entry, StoreError> {
        self.journal.check()?;
        let decided = loop {
            self.check_term()?;
            match self.arrive(fence, kind) {
                Some(Arrival::Decided(decided)) => break decided,
                Some(Arrival::Waits(op, reply)) => {
                    let lock = fence.lock.clone();
                    let waiter = Waiter { lanes: self, lock, op, kind, reply, is_decided: false };
                    let begun_ms = self.now_ms();
                    let decided = Box::pin(waiter.wait(self.drain_wait)).await;
                    let waited_ms = self.now_ms().saturating_sub(begun_ms);
                    self.counters.lane_wait_seconds.observe(waited_ms as f64 / 1000.0);
                    // Also for a decision that was made in time and noticed late.
                    self.check_term()?;
                    let failed = "the lanes' journal failed".to_owned();
                    break decided.ok_or(StoreError::Unavailable(failed))?;
                }
                None => Box::pin(self.load(&fence.lock)).await?,
            }
        };
        self.entry(fence, kind, decided)
    }

    /// `true` while operations of a lock have an unknown outcome.
    pub(super) fn is_quarantined(&self, lock: &LockName) -> bool {
        let table = self.table();
        table.slots.get(lock).is_some_and(|slot| slot.lane.quarantine().is_some())
    }

    fn check_term(&self) -> Result<(), StoreError> {
        let ended = || StoreError::NotLeader { leader: None };
        self.term.holds().then_some(()).ok_or_else(ended)
    }

    fn entry(
        &self,
        fence: &Fence,
        kind: Kind,
        decided: Result<(), Why>,
    ) -> Result<Entry, StoreError> {
        let lock = fence.lock.clone();
        match decided {
            Ok(()) => {
                let lanes = self.itself.clone() as Weak<dyn OperationEnds>;
                Ok(Entry::Admitted(Ticket::new(lanes, lock, kind)))
            }
            Err(Why::Stale { mark }) => Ok(Entry::Refused(FenceOutcome::Stale { mark })),
            Err(Why::Collision { mark }) => Ok(Entry::Refused(FenceOutcome::Collision { mark })),
            Err(Why::Draining) => Err(StoreError::Draining { lock, retry_ms: RETRY_MS }),
            Err(Why::Quarantined { until_ms }) => {
                let retry_ms = until_ms.saturating_sub(self.now_ms()).max(RETRY_MS);
                Err(StoreError::Quarantined { lock, retry_ms })
            }
            Err(Why::Full) => {
                let text = format!("too many operations wait for lock {lock}");
                Err(StoreError::LimitReached(text))
            }
        }
    }

    /// Puts an operation into its lane; `None` if the lane is not in memory.
    fn arrive(&self, fence: &Fence, kind: Kind) -> Option<Arrival> {
        let presented = fence.presented;
        let mut table = self.table();
        let op = table.next_op;
        table.next_op += 1;
        let patience_until_ms = self.now_ms() + whole_ms(self.drain_wait);
        let arrive = Event::Arrive { op, presented, kind, patience_until_ms };
        if let Some(decided) = self.run(&mut table, &fence.lock, arrive, Some(op)) {
            return Some(Arrival::Decided(decided));
        }
        let slot = table.slots.get_mut(&fence.lock)?;
        let (answer, reply) = oneshot::channel();
        slot.waiting.insert(op, answer);
        Some(Arrival::Waits(op, reply))
    }

    /// Makes room for a lane, and makes it from the journal.
    async fn load(&self, lock: &LockName) -> Result<(), StoreError> {
        let _one_at_a_time = self.loading.lock().await;
        if self.table().slots.contains_key(lock) {
            return Ok(());
        }
        let mark = self.journal.mark(lock).await?;
        let mut table = self.table();
        self.check_term()?;
        if table.slots.len() >= MAX_LANES {
            table.slots.retain(|_, slot| !slot.lane.is_idle());
        }
        if table.slots.len() >= MAX_LANES {
            return Err(StoreError::LimitReached(format!("{MAX_LANES} locks are busy")));
        }
        table.slots.insert(lock.clone(), Slot { lane: Lane::new(mark), ..Slot::default() });
        Ok(())
    }

    /// Feeds an event to a lane, if it is in memory.
    fn feed(&self, lock: &LockName, event: Event) {
        self.run(&mut self.table(), lock, event, None);
    }

    /// Feeds an event to a lane and carries out its actions. Returns the decision on `own`, which
    /// has no waiter yet.
    fn run(
        &self,
        table: &mut Table,
        lock: &LockName,
        event: Event,
        own: Option<OpId>,
    ) -> Option<Result<(), Why>> {
        let Table { slots, open, actions, is_closing, next_quarantine, .. } = table;
        let slot = slots.get_mut(lock)?;
        if matches!(event, Event::Unanswered { .. }) {
            slot.quarantine = *next_quarantine;
            *next_quarantine += 1;
        }
        let was_quarantined = slot.lane.quarantine().is_some();
        let was_open = slot.lane.is_open();
        slot.lane.handle(event, actions);
        if *is_closing {
            slot.lane.handle(Event::Close, actions);
        }
        let mut decision = None;
        for action in actions.drain(..) {
            let (op, decided) = match action {
                Action::Persist { seq, mark, open } => {
                    self.persist(lock, Change { seq, mark, open });
                    continue;
                }
                Action::Go { op } => (op, Ok(())),
                Action::Refuse { op, why } => (op, Err(why)),
            };
            if own == Some(op) {
                decision = Some(decided);
            } else if let Some(answer) = slot.waiting.remove(&op) {
                // A waiter that leaves ends an operation that was admitted meanwhile.
                let _ = answer.send(decided);
            }
        }
        if slot.lane.is_draining() {
            slot.draining_since_ms.get_or_insert_with(|| self.now_ms());
        } else if let Some(since_ms) = slot.draining_since_ms.take() {
            let took_ms = self.now_ms().saturating_sub(since_ms);
            self.counters.lane_drain_seconds.observe(took_ms as f64 / 1000.0);
        }
        match (was_open, slot.lane.is_open()) {
            (false, true) => {
                open.insert(lock.clone());
                self.counters.open_lanes.inc();
            }
            (true, false) => {
                open.remove(lock);
                self.counters.open_lanes.dec();
            }
            _ => {}
        }
        match (was_quarantined, slot.lane.quarantine().is_some()) {
            (false, true) => {
                self.counters.quarantines.inc();
                self.counters.quarantined_lanes.inc();
            }
            (true, false) => drop(self.counters.quarantined_lanes.dec()),
            _ => {}
        }
        self.set_timer(lock, slot);
        decision
    }

    /// Queues a change in the order of the lane's actions. One task commits whatever is queued.
    fn persist(&self, lock: &LockName, change: Change) {
        if !self.journal.queue(lock, change) {
            return;
        }
        let itself = self.itself.clone();
        let journal = self.journal.clone();
        self.kit.tasks.spawn(async move {
            while let Some(changes) = journal.next() {
                let changes = Arc::new(changes);
                let result = journal.commit(Arc::clone(&changes)).await;
                let Some(lanes) = itself.upgrade() else { return };
                for (lock, Change { seq, .. }) in changes.iter() {
                    match &result {
                        Ok(()) => lanes.feed(lock, Event::Persisted { seq: *seq }),
                        Err(error) => lanes.abandon(lock, error),
                    }
                }
            }
        });
    }

    /// Refuses all waiting operations of a lane after the journal failed, which is final.
    fn abandon(&self, lock: &LockName, error: &StoreError) {
        if self.term.holds() {
            tracing::error!(%lock, %error, "the lane stops: its journal failed");
        }
        if let Some(slot) = self.table().slots.get_mut(lock) {
            slot.waiting.clear();
        }
    }

    fn now_ms(&self) -> u64 {
        self.kit.clock.monotonic_ms()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter<'_> {
    /// Waits for the decision, and abandons the lane after `patience`. `None` if the lane failed.
    async fn wait(mut self, patience: Duration) -> Option<Result<(), Why>> {
        let decided = match tokio::time::timeout(patience, &mut self.reply).await {
            Ok(decided) => decided,
            Err(_) => {
                self.lanes.feed(&self.lock, Event::Abandoned { op: self.op });
                // It left the queue just now, or was decided before.
                (&mut self.reply).await
            }
        };
        self.is_decided = true;
        decided.ok()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.is_decided {
            return;
        }
        self.lanes.feed(&self.lock, Event::Abandoned { op: self.op });
        // Admitted in the meantime, and certainly never sent.
        if let Ok(Ok(())) = self.reply.try_recv()
            && self.kind != Kind::Seal
        {
            self.lanes.feed(&self.lock, Event::Ended { kind: self.kind });
        }
    }
}

/// Whole milliseconds of a duration.
pub(super) fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl OperationEnds for Lanes {
    fn ended(&self, lock: &LockName, kind: Kind) {
        self.feed(lock, Event::Ended { kind });
    }

    fn unanswered(&self, lock: &LockName, kind: Kind) {
        let until_ms = self.now_ms() + self.lifetime_ms;
        self.counters.unknown_outcomes.inc();
        tracing::warn!(
            %lock, lifetime_ms = self.lifetime_ms,
            "a forwarded operation has no reply; the lane is quarantined"
        );
        self.feed(lock, Event::Unanswered { kind, until_ms });
    }
}
