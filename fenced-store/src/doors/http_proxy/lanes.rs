//! All lanes: feeds them events, carries out their actions, and notifies waiters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{LockName, Token};
use service_kit::Kit;
use service_kit::tls::ServerUrl;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::journal::{Intent, Journal};
use super::lane::{Action, Event, Kind, Lane, OpId, Why};
use super::ticket::{OperationEnds, Ticket};
use super::{ProxyError, Upstream};
use crate::counters::Counters;
use crate::store::{Effect, FenceList, FenceOutcome, FenceQuery, Fences, StoreError, StoreReport};
use crate::verdict::{Fence, Mark};

/// Maximum number of lanes in memory; idle ones make room, and are loaded again from the file.
const MAX_LANES: usize = 100_000;
/// Minimum advised time before a retry.
const RETRY_MS: u64 = 1000;

/// The lanes before one upstream, and their marks.
#[derive(Debug)]
pub struct Lanes {
    slots: Mutex<HashMap<LockName, Slot>>,
    /// Held while a lane is loaded from the file or dropped, so that no lane is made from a mark
    /// that was read before another lane of the same lock raised it.
    loading: tokio::sync::Mutex<()>,
    journal: Journal,
    next_op: AtomicU64,
    url: ServerUrl,
    lifetime_ms: u64,
    drain_wait_ms: u64,
    counters: Counters,
    kit: Kit,
    itself: Weak<Lanes>,
}

#[derive(Debug, Default)]
struct Slot {
    lane: Lane,
    waiting: HashMap<OpId, Caller>,
}

#[derive(Debug)]
struct Caller {
    token: Token,
    answer: oneshot::Sender<Result<(), Why>>,
}

/// Result of waiting in a lane.
#[derive(Debug)]
pub(super) enum Entry {
    /// The operation may be forwarded; its end must be reported.
    Admitted(Ticket),
    /// The fence refused the operation.
    Refused(FenceOutcome),
}

impl Lanes {
    pub(super) async fn open(
        upstream: &Upstream,
        counters: Counters,
        kit: Kit,
    ) -> Result<Arc<Self>, ProxyError> {
        let journal = Journal::open(&upstream.state, &kit)?;
        let intents = journal.intents().await?;
        let next_op = intents.iter().map(|intent| intent.op + 1).max().unwrap_or(1);
        let lanes = Arc::new_cyclic(|itself| Self {
            slots: Mutex::default(),
            loading: tokio::sync::Mutex::default(),
            journal,
            next_op: AtomicU64::new(next_op),
            url: upstream.url.clone(),
            lifetime_ms: whole_ms(upstream.max_request_lifetime),
            drain_wait_ms: whole_ms(upstream.drain_wait),
            counters,
            kit,
            itself: Weak::clone(itself),
        });
        lanes.restore(intents).await?;
        Ok(lanes)
    }

    /// Quarantines every lane with an unresolved intent.
    async fn restore(&self, intents: Vec<Intent>) -> Result<(), StoreError> {
        let until_ms = self.now_ms() + self.lifetime_ms;
        let mut by_lock: HashMap<LockName, Vec<(OpId, Token)>> = HashMap::new();
        for Intent { op, lock, token } in intents {
            by_lock.entry(lock).or_default().push((op, token));
        }
        for (lock, intents) in by_lock {
            tracing::warn!(
                %lock, unknown = intents.len(), lifetime_ms = self.lifetime_ms,
                "operations were in flight when the last process ended; the lane is quarantined"
            );
            let lane = Lane::restore(self.journal.mark(&lock).await?, &intents, until_ms);
            self.counters.quarantined_lanes.inc();
            self.slots().insert(lock.clone(), Slot { lane, ..Slot::default() });
            self.tick_at(lock, until_ms);
        }
        Ok(())
    }

    /// Waits until the operation may be forwarded, at most for the drain time. On `gone` it leaves
    /// the lane; its mark stays.
    ///
    /// # Errors
    /// [`StoreError`]; the operation was not forwarded.
    pub(super) async fn enter(
        &self,
        fence: &Fence,
        kind: Kind,
        gone: &CancellationToken,
    ) -> Result<Entry, StoreError> {
        self.journal.check()?;
        let op = self.next_op.fetch_add(1, Ordering::Relaxed);
        let mut answer = self.arrive(op, fence, kind).await?;
        let waited = tokio::select! {
            answer = &mut answer => Some(answer),
            () = gone.cancelled() => None,
            () = tokio::time::sleep(Duration::from_millis(self.drain_wait_ms)) => None,
        };
        let answered = match waited {
            Some(answered) => answered,
            None => {
                self.feed(&fence.lock, Event::Abandoned { op });
                // The operation left the queue, or is about to get its reply.
                answer.await
            }
        };
        self.entry(op, fence, kind, answered)
    }

    fn entry(
        &self,
        op: OpId,
        fence: &Fence,
        kind: Kind,
        answered: Result<Result<(), Why>, oneshot::error::RecvError>,
    ) -> Result<Entry, StoreError> {
        let lock = fence.lock.clone();
        match answered {
            Ok(Ok(())) => Ok(Entry::Admitted(Ticket::new(
                self.itself.clone() as Weak<dyn OperationEnds>,
                lock,
                op,
                kind,
            ))),
            Ok(Err(Why::Stale { mark })) => Ok(Entry::Refused(FenceOutcome::Stale { mark })),
            Ok(Err(Why::Collision { mark })) => {
                Ok(Entry::Refused(FenceOutcome::Collision { mark }))
            }
            Ok(Err(Why::Draining)) => Err(StoreError::Draining { lock, retry_ms: RETRY_MS }),
            Ok(Err(Why::Quarantined { until_ms })) => {
                let retry_ms = until_ms.saturating_sub(self.now_ms()).max(RETRY_MS);
                Err(StoreError::Quarantined { lock, retry_ms })
            }
            Ok(Err(Why::Full)) => {
                let text = format!("too many operations wait for lock {lock}");
                Err(StoreError::LimitReached(text))
            }
            Err(_) => Err(StoreError::Unavailable("the lanes' journal failed".to_owned())),
        }
    }

    /// Puts an operation into its lane, and loads the lane if it is not in memory.
    async fn arrive(
        &self,
        op: OpId,
        fence: &Fence,
        kind: Kind,
    ) -> Result<oneshot::Receiver<Result<(), Why>>, StoreError> {
        let presented = fence.presented;
        loop {
            {
                let mut slots = self.slots();
                if let Some(slot) = slots.get_mut(&fence.lock) {
                    let (answer, receiver) = oneshot::channel();
                    slot.waiting.insert(op, Caller { token: presented.token, answer });
                    let patience_until_ms = self.now_ms() + self.drain_wait_ms;
                    let arrive = Event::Arrive { op, presented, kind, patience_until_ms };
                    self.run(&fence.lock, slot, arrive);
                    return Ok(receiver);
                }
            }
            self.load(&fence.lock).await?;
        }
    }

    async fn load(&self, lock: &LockName) -> Result<(), StoreError> {
        let _one_at_a_time = self.loading.lock().await;
        if self.slots().contains_key(lock) {
            return Ok(());
        }
        let mark = self.journal.mark(lock).await?;
        let mut slots = self.slots();
        if slots.len() >= MAX_LANES {
            slots.retain(|_, slot| !slot.lane.is_idle());
        }
        if slots.len() >= MAX_LANES {
            return Err(StoreError::LimitReached(format!("{MAX_LANES} locks are busy")));
        }
        slots.insert(lock.clone(), Slot { lane: Lane::new(mark), ..Slot::default() });
        Ok(())
    }

    /// Feeds an event to a lane.
    fn feed(&self, lock: &LockName, event: Event) {
        if let Some(slot) = self.slots().get_mut(lock) {
            self.run(lock, slot, event);
        }
    }

    fn run(&self, lock: &LockName, slot: &mut Slot, event: Event) {
        let was_quarantined = slot.lane.is_quarantined();
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut actions = Vec::new();
            slot.lane.handle(event, &mut actions);
            for action in actions {
                self.perform(lock, slot, action, &mut events);
            }
        }
        match (was_quarantined, slot.lane.is_quarantined()) {
            (false, true) => drop(self.counters.quarantined_lanes.inc()),
            (true, false) => drop(self.counters.quarantined_lanes.dec()),
            _ => {}
        }
    }

    fn perform(&self, lock: &LockName, slot: &mut Slot, action: Action, events: &mut Vec<Event>) {
        match action {
            Action::Persist { mark, intent } => self.persist(lock, slot, mark, intent),
            Action::Go { op } => {
                let delivered = slot.waiting.remove(&op).map(|caller| caller.answer.send(Ok(())));
                if !matches!(delivered, Some(Ok(()))) {
                    // No caller is left to forward it, so it certainly was not sent.
                    events.push(Event::Ended { op });
                }
            }
            Action::Refuse { op, why } => {
                if let Some(caller) = slot.waiting.remove(&op) {
                    let _ = caller.answer.send(Err(why));
                }
            }
            Action::Forget { op } => self.journal.forget(op),
        }
    }

    fn persist(&self, lock: &LockName, slot: &Slot, mark: Option<Mark>, intent: Option<OpId>) {
        let token = intent.and_then(|op| slot.waiting.get(&op)).map(|caller| caller.token);
        let lock = lock.clone();
        let itself = self.itself.clone();
        let journal = self.journal.clone();
        self.kit.tasks.spawn(async move {
            let result = journal.persist(lock.clone(), mark, intent.zip(token)).await;
            let Some(lanes) = itself.upgrade() else { return };
            match result {
                Ok(()) => lanes.feed(&lock, Event::Persisted { mark, intent }),
                Err(error) => lanes.abandon(&lock, &error),
            }
        });
    }

    /// Refuses all waiting operations of a lane after the journal failed, which is final.
    fn abandon(&self, lock: &LockName, error: &StoreError) {
        tracing::error!(%lock, %error, "the lane stops: its journal failed");
        if let Some(slot) = self.slots().get_mut(lock) {
            slot.waiting.clear();
        }
    }

    fn tick_at(&self, lock: LockName, until_ms: u64) {
        let itself = self.itself.clone();
        let clock = Arc::clone(&self.kit.clock);
        let stop = self.kit.tasks.shutdown_token();
        self.kit.tasks.spawn(async move {
            loop {
                let now_ms = clock.monotonic_ms();
                if now_ms >= until_ms {
                    break;
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(Duration::from_millis(until_ms - now_ms)) => {}
                }
            }
            if let Some(lanes) = itself.upgrade() {
                lanes.feed(&lock, Event::Tick { now_ms: clock.monotonic_ms() });
            }
        });
    }

    fn now_ms(&self) -> u64 {
        self.kit.clock.monotonic_ms()
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<LockName, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl OperationEnds for Lanes {
    fn ended(&self, lock: &LockName, op: OpId) {
        self.feed(lock, Event::Ended { op });
    }

    fn unanswered(&self, lock: &LockName, op: OpId) {
        let until_ms = self.now_ms() + self.lifetime_ms;
        self.counters.unknown_outcomes.inc();
        tracing::warn!(
            %lock, lifetime_ms = self.lifetime_ms,
            "a forwarded operation has no reply; the lane is quarantined"
        );
        self.feed(lock, Event::Unanswered { op, until_ms });
        self.tick_at(lock.clone(), until_ms);
    }
}

#[async_trait]
impl Fences for Lanes {
    fn guarantee(&self) -> Guarantee {
        Guarantee::Bounded
    }

    fn report(&self) -> StoreReport {
        let lifetime = self.lifetime_ms;
        StoreReport {
            kind: "http",
            target: self.url.to_string(),
            guarantee: Guarantee::Bounded,
            probe: format!(
                "marks and intents are durable in {}; the datastore itself cannot be probed",
                self.journal.path().display()
            ),
            gaps: vec![
                format!(
                    "Effects of the datastore later than {lifetime} ms (--max-request-lifetime) \
                     after a connection broke are not fenced."
                ),
                "A second proxy with a state folder of its own is not noticed, and shares no marks."
                    .to_owned(),
            ],
        }
    }

    async fn record(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        self.journal.record(fence).await
    }

    async fn highest_mark(&self) -> Result<Option<Token>, StoreError> {
        self.journal.check()?;
        Ok(self.journal.highest())
    }

    async fn seal(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        let token = fence.presented.token;
        match self.enter(&fence, Kind::Seal, &CancellationToken::new()).await? {
            Entry::Admitted(ticket) => {
                ticket.ended();
                Ok(FenceOutcome::Applied { effect: Effect::Sealed, mark: Some(token) })
            }
            Entry::Refused(outcome) => Ok(outcome),
        }
    }

    async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        self.journal.mark(lock).await
    }

    async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
        self.journal.list(query).await
    }
}
