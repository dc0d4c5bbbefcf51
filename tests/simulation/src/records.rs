//! The engine as a server reaches it: over a network that delays, reorders and loses.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fence_protocol::{LockName, SessionId, Token};
use lock_server::engines::contract::{
    Batch, Committed, ItemName, Key, RecordStore, ServerId, Snapshot, Wakeup,
};
use lock_server::engines::memory::MemoryRecords;
use lock_server::store::{ListQuery, StoreError};
use service_kit::clock::Clock;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::audit::Audit;
use crate::faults::Faults;
use crate::seed::Seed;
use crate::store::{Fate, Sent, World};

/// Time-out of a server's request to the engine.
const TIMEOUT: Duration = Duration::from_secs(2);

/// One server's way to the records of a simulation.
///
/// [`calm`](Self::calm) makes one without faults, for the conformance suites.
#[derive(Clone)]
pub struct SimRecords {
    world: Arc<World>,
    link: Arc<Link>,
}

/// One server's connection to the engine.
struct Link {
    server: ServerId,
    is_alone: bool,
    clock: Arc<dyn Clock>,
    is_dead: AtomicBool,
    known: Mutex<EngineView>,
}

#[derive(Clone, Copy, Default)]
struct EngineView {
    /// A time that the engine showed, and when that was read by the server's clock.
    anchor: Option<(u64, u64)>,
    lineage: u64,
    /// Nothing of this server moves before.
    stalled_until: Option<Instant>,
}

impl fmt::Debug for SimRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SimRecords").field(&self.link.server).finish()
    }
}

impl EngineView {
    /// The engine's time at least; 0 before it was read.
    fn at(&self, monotonic_ms: u64) -> u64 {
        let Some((shown_ms, read_ms)) = self.anchor else { return 0 };
        (shown_ms + monotonic_ms).saturating_sub(read_ms)
    }

    /// The engine showed a time in the reply to what was sent at `sent_ms`. Less than was known
    /// before is a slow reply, unless it is less than was known when the request was sent.
    fn saw(&mut self, shown_ms: u64, sent_ms: u64, now_ms: u64) {
        if shown_ms >= self.at(now_ms) || shown_ms < self.at(sent_ms) {
            self.anchor = Some((shown_ms, now_ms));
        }
    }
}

impl SimRecords {
    /// An engine without faults, as two servers see it.
    pub fn calm(clock: Arc<dyn Clock>) -> [Self; 2] {
        let world = World::new(clock.clone(), Seed::new(0), Faults::NONE, Audit::default(), false);
        let world = Arc::new(world);
        [1, 2].map(|server| Self::new(world.clone(), ServerId(server), clock.clone(), false))
    }

    pub(crate) fn new(
        world: Arc<World>,
        server: ServerId,
        clock: Arc<dyn Clock>,
        is_alone: bool,
    ) -> Self {
        // As after a first request, which every engine begins with.
        let anchor = Some((world.engine_ms(), clock.monotonic_ms()));
        let known = EngineView { anchor, lineage: world.lineage(), stalled_until: None };
        let is_dead = AtomicBool::new(false);
        let link = Link { server, is_alone, clock, is_dead, known: Mutex::new(known) };
        Self { world, link: Arc::new(link) }
    }

    /// The server stops: nothing of it reaches the engine from now on, and no reply reaches it.
    /// What is on its way may still arrive.
    pub(crate) fn kill(&self) {
        self.link.is_dead.store(true, Ordering::Relaxed);
    }

    /// Pauses the server for `length`.
    pub(crate) fn stall(&self, length: Duration) {
        self.known(|known| known.stalled_until = Some(Instant::now() + length));
    }

    fn known<T>(&self, work: impl FnOnce(&mut EngineView) -> T) -> T {
        work(&mut self.link.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn moves(&self) {
        if self.link.is_dead.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if let Some(until) = self.known(|known| known.stalled_until) {
            sleep_until(until).await;
        }
    }

    /// Sends a request to the engine and awaits the reply.
    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&World, Sent) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let way = self.world.way();
        let (sent_ms, lineage) =
            (self.link.clock.monotonic_ms(), self.known(|known| known.lineage));
        let back_ms = if way.is_direct { 0 } else { u64::try_from(way.back.as_millis()).unwrap() };
        let sent = Sent { lineage, back_ms };
        if way.is_direct {
            self.moves_at_once()?;
            let result = work(&self.world, sent);
            return self.read(result, self.world.engine_ms(), sent_ms);
        }
        self.moves().await;
        let (answer, reply) = oneshot::channel();
        let world = self.world.clone();
        let link = self.link.clone();
        tokio::spawn(async move {
            sleep(way.there).await;
            if link.is_alone && link.is_dead.load(Ordering::Relaxed) {
                // A file has no network: what its process had not written stays unwritten.
                return;
            }
            match way.fate {
                Fate::Refused => {
                    let text = "the connection to the engine was refused".to_owned();
                    let _ = answer.send((Err(StoreError::Unavailable(text)), 0));
                }
                Fate::RequestLost => {}
                Fate::ReplyLost => drop(work(&world, sent)),
                Fate::Answered => {
                    let result = work(&world, sent);
                    let shown_ms = world.engine_ms();
                    sleep(way.back).await;
                    // Its sender may have stopped waiting.
                    let _ = answer.send((result, shown_ms));
                }
            }
        });
        let outcome = tokio::time::timeout(TIMEOUT, reply).await;
        self.moves().await;
        match outcome {
            Ok(Ok((result, shown_ms))) => self.read(result, shown_ms, sent_ms),
            Ok(Err(_)) | Err(_) => Err(StoreError::Unknown("the engine did not reply".to_owned())),
        }
    }

    /// Refuses requests without transit time of a server that stopped or is paused.
    fn moves_at_once(&self) -> Result<(), StoreError> {
        let is_still =
            self.known(|known| known.stalled_until.is_some_and(|at| at > Instant::now()));
        if is_still || self.link.is_dead.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("this server is paused".to_owned()));
        }
        Ok(())
    }

    fn read<T>(
        &self,
        result: Result<T, StoreError>,
        shown_ms: u64,
        sent_ms: u64,
    ) -> Result<T, StoreError> {
        let now_ms = self.link.clock.monotonic_ms();
        let lineage = self.world.lineage();
        self.known(|known| {
            if result.is_ok() {
                known.saw(shown_ms, sent_ms, now_ms);
            } else {
                known.lineage = lineage;
            }
        });
        result
    }

    /// A request that changes nothing: without a reply, nothing was done.
    async fn read_engine<T: Send + 'static>(
        &self,
        work: impl FnOnce(MemoryRecords) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let looked = self.call(move |world, sent| work(world.engine(sent.lineage)?)).await;
        looked.map_err(|error| match error {
            StoreError::Unknown(reason) => StoreError::Unavailable(reason),
            error => error,
        })
    }
}

/// Reads in memory are ready at once.
fn ready<T>(read: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    futures_util::FutureExt::now_or_never(read).unwrap()
}

#[async_trait]
impl RecordStore for SimRecords {
    fn name(&self) -> &'static str {
        "simulation"
    }

    fn is_alone(&self) -> bool {
        self.link.is_alone
    }

    fn overlap_min(&self, _: usize) -> Option<usize> {
        (!self.link.is_alone).then_some(1)
    }

    fn halves_from(&self) -> usize {
        if self.link.is_alone { usize::MAX } else { 2 }
    }

    fn now_ms(&self) -> u64 {
        let now_ms = self.link.clock.monotonic_ms();
        match self.link.is_alone || !self.world.has_clock {
            true => now_ms,
            false => self.known(|known| known.at(now_ms)),
        }
    }

    fn shift_ms(&self, server: ServerId, _: u64) -> i64 {
        self.world.shift_ms(server, self.link.server)
    }

    async fn read(&self, keys: &[Key]) -> Result<(Vec<Snapshot>, u64), StoreError> {
        let keys = keys.to_vec();
        let (mut found, counter) =
            self.read_engine(move |engine| ready(engine.read(&keys))).await?;
        self.world.shift(&mut found, self.link.server);
        Ok((found, counter))
    }

    async fn items(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(ItemName, Vec<u8>)>, StoreError> {
        let key = key.clone();
        let after = after.map(ToOwned::to_owned);
        self.read_engine(move |engine| ready(engine.items(&key, after.as_deref(), limit))).await
    }

    async fn item_count(&self, key: &Key) -> Result<usize, StoreError> {
        let key = key.clone();
        self.read_engine(move |engine| ready(engine.item_count(&key))).await
    }

    async fn commit(&self, batch: Batch) -> Result<Committed, StoreError> {
        let from = self.link.server;
        let committed = self.call(move |world, sent| world.commit(from, sent, batch)).await;
        committed.map(|mut committed| {
            let lost = committed.groups.iter_mut().filter_map(|group| group.as_mut().err());
            lost.for_each(|found| self.world.shift(found, from));
            committed
        })
    }

    async fn locks(&self, query: &ListQuery) -> Result<(Vec<LockName>, bool), StoreError> {
        let query = query.clone();
        self.read_engine(move |engine| ready(engine.locks(&query))).await
    }

    async fn sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<(Vec<SessionId>, bool), StoreError> {
        self.read_engine(move |engine| ready(engine.sessions(after, limit))).await
    }

    async fn lift(&self, mark: Token) -> Result<(), StoreError> {
        self.call(move |world, sent| ready(world.engine(sent.lineage)?.lift(mark))).await
    }

    async fn beat(&self, server: ServerId, ms: u64) -> Result<Vec<ServerId>, StoreError> {
        let beat = self.call(move |world, sent| {
            let alive = ready(world.engine(sent.lineage)?.beat(server, ms))?;
            let now_ms = world.now_ms();
            world.state().audit.server_beat(now_ms, server, ms);
            Ok(alive)
        });
        beat.await
    }

    fn wakeups(&self, server: ServerId) -> mpsc::Receiver<Wakeup> {
        self.world.wakeups(server)
    }
}
