//! The world that all processes of a simulation share: the engine with its memory, clock and
//! network.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fence_protocol::Token;
use futures_util::FutureExt;
use lock_server::engines::contract::{
    Batch, Change, Committed, Group, Key, RecordStore, ServerId, Snapshot, WAKEUPS_MAX, Wakeup,
};
use lock_server::engines::memory::MemoryRecords;
use lock_server::store::StoreError;
use service_kit::clock::Clock;
use tokio::sync::mpsc;

use crate::audit::{At, Audit, RECOVERY_MS};
use crate::clock::StepClock;
use crate::faults::Faults;
use crate::seed::Seed;

/// Offset of the engine's clock from the simulation's, ms.
const ENGINE_AHEAD_MS: i64 = 1_000_000;
/// A step of the engine's clock that is no jump: the default of `--clock-jump-limit`.
const JUMP_LIMIT_MS: u64 = 1_000;
/// A jump beyond this drops records that matter: the driver keeps them so much longer.
const DROPS_MS: u64 = 60_000;
/// Servers with clocks of their own started within this time of each other, ms: by so much their
/// clocks differ.
const STARTS_APART_MS: u64 = 20_000;
/// Until a message that was lost is made up for, ms: servers check again by themselves every 2 s.
const MESSAGE_MS: u64 = 2_100;

/// State that all processes share.
pub(crate) struct World {
    /// The time that clients and the audit go by.
    pub(crate) time: Arc<dyn Clock>,
    /// Servers go by the engine's clock; otherwise each goes by its own, and the engine's is
    /// nothing but the audit's.
    pub(crate) has_clock: bool,
    engine_clock: Arc<StepClock>,
    state: Mutex<WorldState>,
}

/// The engine and everything that is drawn from the seed.
pub(crate) struct WorldState {
    pub(crate) seed: Seed,
    pub(crate) faults: Faults,
    pub(crate) audit: Audit,
    engine: MemoryRecords,
    /// Memory that remains after a loss.
    durable: MemoryRecords,
    /// Number of the engine's memory; each loss starts a new one.
    lineage: u64,
    /// No lease begins before, by the time of the simulation.
    paused_until_ms: u64,
    /// A lease may live until then, by the time of the simulation.
    lives_until_ms: u64,
    wakeups: BTreeMap<ServerId, mpsc::Sender<Wakeup>>,
    trace: Option<String>,
}

/// Transit of a request to the engine and back.
pub(crate) struct Way {
    /// Answered without a way.
    pub(crate) is_direct: bool,
    pub(crate) there: Duration,
    pub(crate) back: Duration,
    pub(crate) fate: Fate,
}

/// Context of a request.
#[derive(Clone, Copy)]
pub(crate) struct Sent {
    /// The memory of the engine that its server believes in.
    pub(crate) lineage: u64,
    /// Transit time of the reply, ms.
    pub(crate) back_ms: u64,
}

/// Fate of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    Refused,
    RequestLost,
    ReplyLost,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

impl World {
    /// An engine without records.
    pub(crate) fn new(
        time: Arc<dyn Clock>,
        seed: Seed,
        faults: Faults,
        audit: Audit,
        is_traced: bool,
    ) -> Self {
        let ahead_ms = if is_traced || audit.is_on() { ENGINE_AHEAD_MS } else { 0 };
        let engine_clock = Arc::new(StepClock::new(time.clone(), ahead_ms));
        let engine = MemoryRecords::new(engine_clock.clone(), 0);
        let state = WorldState {
            seed,
            faults,
            audit,
            durable: engine.copy(),
            engine,
            lineage: 1,
            paused_until_ms: 0,
            lives_until_ms: 0,
            wakeups: BTreeMap::new(),
            trace: is_traced.then(String::new),
        };
        Self { time, has_clock: true, engine_clock, state: Mutex::new(state) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, WorldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.time.monotonic_ms()
    }

    /// The engine's time.
    pub(crate) fn engine_ms(&self) -> u64 {
        self.engine_clock.monotonic_ms()
    }

    /// Adds a line to the history, where it is kept.
    pub(crate) fn log(&self, line: impl FnOnce() -> String) {
        let now_ms = self.now_ms();
        self.state().log(now_ms, line);
    }

    /// The history so far.
    pub(crate) fn take_trace(&self) -> String {
        self.state().trace.take().unwrap_or_default()
    }

    /// Draws the transit of the next request.
    pub(crate) fn way(&self) -> Way {
        let now_ms = self.now_ms();
        let WorldState { seed, faults, audit, .. } = &mut *self.state();
        if faults.direct == 1_000 {
            // Nothing is drawn, so that an engine for the conformance suites needs no seed.
            let there = Duration::ZERO;
            let back = Duration::ZERO;
            return Way { is_direct: true, there, back, fate: Fate::Answered };
        }
        let fate = match seed.below(1_000) {
            at if at < faults.refused => Fate::Refused,
            at if at < faults.refused + faults.request_lost => Fate::RequestLost,
            at if at < faults.refused + faults.request_lost + faults.reply_lost => Fate::ReplyLost,
            _ => Fate::Answered,
        };
        let is_direct = fate == Fate::Answered && Faults::strikes(seed, faults.direct);
        let there = faults.way(seed);
        let back = faults.way(seed);
        let most = Duration::from_millis(faults.delay_ms);
        if fate != Fate::Answered || there.max(back) > most {
            audit.trouble(now_ms, RECOVERY_MS);
        }
        Way { is_direct, there, back, fate }
    }

    /// Commits a batch of a server.
    pub(crate) fn commit(
        &self,
        from: ServerId,
        sent: Sent,
        mut batch: Batch,
    ) -> Result<Committed, StoreError> {
        let now_ms = self.now_ms();
        let engine_ms = self.engine_ms();
        let state = &mut *self.state();
        let ahead_ms = state.audit.ahead_ms(from);
        for group in &mut batch.groups {
            group.not_before_ms = group.not_before_ms.saturating_add_signed(ahead_ms);
            group.before_ms = group.before_ms.saturating_add_signed(ahead_ms);
        }
        let committed = state.commit(from, sent, batch, now_ms, engine_ms)?;
        Ok(Committed { now_ms: committed.now_ms.filter(|_| self.has_clock), ..committed })
    }

    /// Draws what the clock of a new server shows.
    pub(crate) fn origin_ms(&self, life: u32) -> u64 {
        match self.has_clock {
            true => u64::from(life) * 10_000_000,
            false => self.state().seed.below(STARTS_APART_MS),
        }
    }

    /// A server starts, and its clock shows `origin_ms`.
    pub(crate) fn server_starts(&self, server: ServerId, origin_ms: u64) {
        if !self.has_clock {
            let ahead_ms = self.engine_ms().cast_signed() - origin_ms.cast_signed();
            self.state().audit.server_has_clock(server, ahead_ms);
        }
    }

    /// By how much moments of one server's clock are moved to be moments of another one's.
    pub(crate) fn shift_ms(&self, from: ServerId, to: ServerId) -> i64 {
        let audit = &self.state().audit;
        audit.ahead_ms(from) - audit.ahead_ms(to)
    }

    /// Lets a server read records by its clock.
    pub(crate) fn shift(&self, found: &mut [Snapshot], to: ServerId) {
        for snapshot in found {
            snapshot.shift_ms = self.shift_ms(snapshot.version.writer(), to);
        }
    }

    /// The records, where the lineage is the one that the caller believes in.
    pub(crate) fn engine(&self, lineage: u64) -> Result<MemoryRecords, StoreError> {
        let state = self.state();
        state.check_lineage(lineage)?;
        Ok(state.engine.clone())
    }

    /// Number of the engine's memory; each loss starts a new one.
    pub(crate) fn lineage(&self) -> u64 {
        self.state().lineage
    }

    /// Everything up to now survives a loss.
    pub(crate) fn sync(&self) {
        let mut state = self.state();
        state.durable = state.engine.copy();
    }

    /// The engine forgets what was not durable. What has to be true of the next token, and of
    /// leases that were lost, is what the docs of the trait ask of an engine.
    pub(crate) fn lose_memory(&self) {
        let now_ms = self.now_ms();
        let state = &mut *self.state();
        state.engine = state.durable.copy();
        state.lineage += 1;
        state.lift_above_all();
        state.paused_until_ms = state.paused_until_ms.max(state.lives_until_ms);
        let paused_ms = state.paused_until_ms.saturating_sub(now_ms);
        state.log(now_ms, || format!("the engine lost its memory; paused for {paused_ms} ms"));
        let WorldState { audit, engine, .. } = state;
        audit.memory_was_lost(now_ms, |key| snapshot(engine, key));
        for wakeups in state.wakeups.values() {
            // A server that is gone needs no message.
            let _ = wakeups.try_send(Wakeup::All);
        }
    }

    /// The engine's clock steps back: leases live that much longer.
    pub(crate) fn step_clock_back(&self, ms: u64) {
        let now_ms = self.now_ms();
        self.engine_clock.step(-ms.cast_signed());
        let state = &mut *self.state();
        state.audit.clock_stepped_back(now_ms);
        state.log(now_ms, || format!("the engine's clock stepped back by {ms} ms"));
    }

    /// The engine's clock steps forward. A step up to `JUMP_LIMIT_MS` ends leases that much
    /// earlier. A jump is corrected: leases keep their time. Records that were due by the wrong
    /// clock are gone, and no lease begins for as long as the clock jumped, at most while a lease
    /// may live.
    pub(crate) fn step_clock_forward(&self, ms: u64) {
        let now_ms = self.now_ms();
        self.engine_clock.step(ms.cast_signed());
        let state = &mut *self.state();
        state.log(now_ms, || format!("the engine's clock stepped forward by {ms} ms"));
        if ms <= JUMP_LIMIT_MS {
            state.audit.clock_stepped_forward(now_ms, ms);
            return;
        }
        // Reading drops what is due.
        let _ = state.engine.read(&[]).now_or_never();
        self.engine_clock.step(-ms.cast_signed());
        let until_ms = state.lives_until_ms.min(now_ms + ms);
        state.paused_until_ms = state.paused_until_ms.max(until_ms);
        let WorldState { audit, engine, .. } = state;
        audit.clock_jumped(now_ms);
        if ms > DROPS_MS {
            audit.memory_was_lost(now_ms, |key| snapshot(engine, key));
        }
    }

    /// Something happened on purpose that may delay what has to happen by itself, for so long.
    pub(crate) fn trouble(&self, ms: u64) {
        let now_ms = self.now_ms();
        self.state().audit.trouble(now_ms, ms);
    }

    /// From now on only ways take their time.
    pub(crate) fn end_faults(&self) {
        let now_ms = self.now_ms();
        let state = &mut *self.state();
        let Faults { delay_ms, direct, .. } = state.faults;
        state.faults = Faults { delay_ms, direct, ..Faults::NONE };
        state.log(now_ms, || "the faults end".to_owned());
    }

    /// Runs the checks of background progress: see [`Audit::check_waits`].
    pub(crate) fn check_audit(&self) {
        let now_ms = self.now_ms();
        let engine_ms = self.engine_ms();
        let state = &mut *self.state();
        let is_paused = state.paused_until_ms > now_ms;
        let WorldState { audit, engine, .. } = state;
        audit.check_waits(now_ms, engine_ms, is_paused, |key| snapshot(engine, key));
    }

    /// Receiver of a server's wake-up messages.
    pub(crate) fn wakeups(&self, server: ServerId) -> mpsc::Receiver<Wakeup> {
        let (sender, receiver) = mpsc::channel(WAKEUPS_MAX);
        self.state().wakeups.insert(server, sender);
        receiver
    }

    /// A server is gone.
    pub(crate) fn forget_server(&self, server: ServerId) {
        self.state().wakeups.remove(&server);
    }
}

impl WorldState {
    pub(crate) fn log(&mut self, now_ms: u64, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            // Writing to a String does not fail.
            let _ = writeln!(trace, "{now_ms:>6} {}", line());
        }
    }

    fn check_lineage(&self, lineage: u64) -> Result<(), StoreError> {
        if lineage == self.lineage {
            return Ok(());
        }
        Err(StoreError::Unavailable("the engine is not as this server left it".to_owned()))
    }

    /// No token that was issued is issued again.
    fn lift_above_all(&mut self) {
        let highest = self.audit.highest_issued() + 1_000;
        let lifted = Token::new(highest).map(|mark| self.engine.lift(mark).now_or_never());
        lifted.unwrap().unwrap().unwrap();
    }

    fn commit(
        &mut self,
        from: ServerId,
        sent: Sent,
        mut batch: Batch,
        now_ms: u64,
        engine_ms: u64,
    ) -> Result<Committed, StoreError> {
        self.check_lineage(sent.lineage)?;
        let is_grant = batch.tokens > 0 && !batch.groups.is_empty();
        if is_grant && now_ms < self.paused_until_ms {
            return Err(StoreError::Paused { left_ms: self.paused_until_ms - now_ms });
        }
        if self.lineage == 1 {
            // Later a server may know of tokens that were taken and lost.
            let counter = self.engine.read(&[]).now_or_never().unwrap()?.1;
            let known = batch.counter.saturating_sub(batch.ahead);
            self.audit.counter_is_known(known, counter);
        }
        self.lives_until_ms = self.lives_until_ms.max(now_ms + batch.lives_ms);
        let notify: Vec<_> =
            batch.groups.iter_mut().map(|group| std::mem::take(&mut group.notify)).collect();
        let groups = batch.groups.clone();
        let tokens = batch.tokens;
        let committed = self.engine.commit(batch).now_or_never().unwrap()?;
        self.log(now_ms, || {
            format!(
                "server {} commits at {engine_ms}, base {}, {tokens} tokens",
                from.0, committed.base
            )
        });
        for ((group, outcome), notify) in groups.iter().zip(&committed.groups).zip(notify) {
            self.log(now_ms, || format!("  {}", shown(group, outcome.is_ok())));
            if outcome.is_err() {
                continue;
            }
            let WorldState { audit, engine, .. } = self;
            let tokens = (committed.base, tokens);
            let at = At { now_ms, engine_ms, tokens, back_ms: sent.back_ms };
            audit.committed(at, group, |key| snapshot(engine, key));
            notify.into_iter().for_each(|(server, key)| self.notify(now_ms, server, key));
        }
        Ok(committed)
    }

    /// Messages to other servers are lost, repeated and late.
    fn notify(&mut self, now_ms: u64, server: ServerId, key: Key) {
        let Self { seed, faults, wakeups, audit, .. } = self;
        let Some(sender) = wakeups.get(&server) else { return };
        if Faults::strikes(seed, faults.wakeup_lost) {
            audit.trouble(now_ms, MESSAGE_MS);
            return;
        }
        if faults.direct == 1_000 && faults.delay_ms == 0 {
            let _ = sender.try_send(Wakeup::Record(key));
            return;
        }
        let times = 1 + u32::from(Faults::strikes(seed, faults.wakeup_repeated));
        for _ in 0..times {
            let mut late = faults.way(seed);
            if Faults::strikes(seed, faults.wakeup_late) {
                late += Duration::from_millis(seed.below(3_000));
            }
            if late > Duration::from_millis(faults.delay_ms) {
                audit.trouble(now_ms, MESSAGE_MS);
            }
            let sender = sender.clone();
            let key = key.clone();
            tokio::spawn(async move {
                tokio::time::sleep(late).await;
                // A server that is gone needs no message.
                let _ = sender.try_send(Wakeup::Record(key));
            });
        }
    }
}

/// A record as it stands.
fn snapshot(engine: &MemoryRecords, key: &Key) -> Snapshot {
    let read = engine.read(std::slice::from_ref(key)).now_or_never();
    read.unwrap().unwrap().0.pop().unwrap()
}

/// A group in a line of the history.
fn shown(group: &Group, is_committed: bool) -> String {
    let mut line = if is_committed { "done:" } else { "lost:" }.to_owned();
    for (key, version) in &group.reads {
        let _ = write!(line, " {}@{:x}", name(key), version.0);
    }
    for write in &group.writes {
        let _ = match &write.change {
            Change::Keep => write!(line, "; {}", name(&write.key)),
            Change::Remove => write!(line, "; {} removed", name(&write.key)),
            Change::Put { version, value, .. } => {
                let value = String::from_utf8_lossy(value);
                write!(line, "; {}@{:x} = {value}", name(&write.key), version.0)
            }
        };
        for (item, value) in &write.items {
            let value = value.as_ref().map(|value| String::from_utf8_lossy(value));
            let _ = write!(line, ", {item}: {}", value.as_deref().unwrap_or("-"));
        }
    }
    line
}

fn name(key: &Key) -> String {
    match key {
        Key::Lock(lock) => lock.to_string(),
        Key::Session(id) => id.to_string(),
    }
}
