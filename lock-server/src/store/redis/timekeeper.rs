//! The time that Redis shows, the leases that may be lost, and the pauses in grants for their sake.
//!
//! Redis measures leases with a clock that people set. Every script is told the latest time that Redis
//! can show by our monotonic clock, and refuses to work under a later one (`CLOCK`): the clock has
//! jumped, or the script was long on its way. [`Timekeeper::settle`] tells which, and lets a pause
//! begin before it believes in the new time, so that nothing is granted under a clock that jumped and
//! no lease ends by it. Scripts that grant read the pause in the call in which they read the lock.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, Value};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use service_kit::Kit;
use service_kit::clock::Clock;
use service_kit::health::{Health, Status};
use service_kit::redis_link::{LinkError, RedisLink, Script, plain, text_fields};
use tokio::sync::Notify;

use super::in_use::InUse;
use super::lineage::ABSENT;
use super::offset::{Offset, Step};
use super::{RedisStore, millis};
use crate::store::{AfterLoss, LossOptions};

/// What this server knows of the time at Redis and of leases that may live.
#[derive(Debug)]
pub(super) struct Timekeeper {
    options: LossOptions,
    prefix: String,
    keys: [String; 2],
    script: Script,
    clock: Arc<dyn Clock>,
    health: Health,
    jumps: Counter,
    paused: Gauge<f64, AtomicU64>,
    state: Mutex<State>,
    settling: tokio::sync::Mutex<()>,
    /// Leases live longer than the others were told.
    longer: Notify,
}

#[derive(Debug, Default)]
struct State {
    offset: Option<Offset>,
    /// How often an offset was taken over.
    looks: u64,
    jumps: u64,
    own: InUse,
    longest_delay_ms: u64,
    others_until_ms: u64,
    paused_until_ms: u64,
    was_paused: bool,
    /// A pause is over, and nobody was told yet.
    pause_ended: bool,
}

/// What is heard of one pause at different moments differs by less than this, ms.
const MOMENT_MS: u64 = 50;

/// Where a question goes.
pub(super) enum Wire<'a> {
    /// A connection that is being verified.
    New(&'a mut MultiplexedConnection),
    /// The one in use.
    Link(&'a RedisLink),
}

impl Wire<'_> {
    async fn call(&mut self, command: &Cmd) -> Result<Value, LinkError> {
        match self {
            Self::Link(link) => link.call(command).await,
            Self::New(connection) => {
                connection.send_packed_command(command).await.map_err(|error| {
                    let why = plain(&error);
                    LinkError::Unknown(format!("the clock of Redis cannot be read: {why}"))
                })
            }
        }
    }
}

impl Timekeeper {
    pub(super) fn new(prefix: &str, script: &Script, options: LossOptions, kit: &Kit) -> Self {
        let (jumps, paused) = (Counter::default(), Gauge::default());
        kit.metrics.registry(|registry| {
            registry.register(
                "lock_clock_jumps",
                "Jumps of the clock of Redis against this server's monotonic clock",
                jumps.clone(),
            );
            registry.register(
                "lock_grants_paused_seconds",
                "For how much longer nobody is granted a lock, after a loss or a jump of the clock",
                paused.clone(),
            );
        });
        Self {
            options,
            prefix: prefix.to_owned(),
            keys: ["lineage", ABSENT].map(|name| format!("{prefix}{name}")),
            script: script.clone(),
            clock: kit.clock.clone(),
            health: kit.health.clone(),
            jumps,
            paused,
            state: Mutex::default(),
            settling: tokio::sync::Mutex::default(),
            longer: Notify::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limit_ms(&self) -> u64 {
        millis(self.options.clock_jump_limit)
    }

    /// The latest time that Redis can show now; 0 where its clock was never read.
    pub(super) fn latest_ms(&self) -> u64 {
        let (now_ms, limit_ms) = (self.clock.monotonic_ms(), self.limit_ms());
        self.state().offset.map_or(0, |offset| offset.latest_ms(now_ms, limit_ms))
    }

    /// How often the clock of Redis was looked at.
    pub(super) fn looks(&self) -> u64 {
        self.state().looks
    }

    /// Whether grants wait after a loss.
    pub(super) fn waits_after_loss(&self) -> bool {
        self.options.after_loss == AfterLoss::Wait
    }

    /// Somebody is about to be told that a lease, or a session, lives for so long. Whoever was not told
    /// believes in nothing that is worth a pause.
    pub(super) fn note(&self, lives_ms: u64) {
        let now_ms = self.clock.monotonic_ms();
        let mut state = self.state();
        if state.own.left_ms(now_ms) == 0 {
            // Nothing lives here that has a delay.
            state.longest_delay_ms = 0;
        }
        let delay_ms = state.longest_delay_ms;
        if state.own.note(now_ms, lives_ms.saturating_add(delay_ms)) {
            drop(state);
            self.longer.notify_one();
        }
    }

    /// As [`note`](Self::note), which was told of it already, of a lease after which its lock stays closed
    /// for so long. A renewal does not tell that any more, so it counts for all leases until nothing lives.
    /// What was asked for in vain counts for none.
    pub(super) fn granted(&self, lives_ms: u64, delay_ms: u64) {
        if delay_ms > 0 {
            let mut state = self.state();
            state.longest_delay_ms = state.longest_delay_ms.max(delay_ms);
        }
        self.note(lives_ms);
    }

    /// A script tells of a pause that lasts for so long.
    pub(super) fn paused(&self, left_ms: u64) {
        if left_ms > 0 && left_ms > self.paused_ms() + MOMENT_MS {
            let now_ms = self.clock.monotonic_ms();
            self.state().paused_until_ms = now_ms + left_ms;
            self.tell_of_pause();
            self.longer.notify_one();
        }
    }

    /// For how long a lease may still live that this server knows of, its own or another server's, ms.
    pub(super) fn lives_ms(&self) -> u64 {
        let now_ms = self.clock.monotonic_ms();
        let state = self.state();
        state.own.left_ms(now_ms).max(state.others_until_ms.saturating_sub(now_ms))
    }

    /// Reads the clock of Redis, and lets a pause begin where it jumped forward. `is_new` where another
    /// process, or another memory, may be behind the connection: its clock is not compared.
    ///
    /// # Errors
    /// [`LinkError`]; the old time is believed in then.
    ///
    /// # Cancel safety
    /// Dropped, it leaves at most a pause.
    pub(super) async fn settle(
        &self,
        mut wire: Wire<'_>,
        lineage: &str,
        is_new: bool,
    ) -> Result<(), LinkError> {
        let offset = self.look(&mut wire, lineage, 0).await?;
        let step = if is_new { Step::Steady } else { self.step(offset) };
        if let Step::Forward(ms) = step
            && self.options.clock_pause
        {
            let wait_ms = ms.min(self.lives_ms());
            if wait_ms > 0 {
                self.look(&mut wire, lineage, wait_ms).await?;
            }
        }
        self.believe(offset, is_new);
        Ok(())
    }

    /// As [`settle`](Self::settle) on the connection in use, for whoever was refused by its clock after
    /// `looks`; one at a time.
    pub(super) async fn settle_after(
        &self,
        looks: u64,
        link: &RedisLink,
        lineage: &str,
    ) -> Result<(), LinkError> {
        let _one_at_a_time = self.settling.lock().await;
        if self.looks() != looks {
            return Ok(());
        }
        self.settle(Wire::Link(link), lineage, false).await
    }

    fn step(&self, offset: Offset) -> Step {
        let before = self.state().offset;
        before.map_or(Step::Steady, |before| offset.since(before, self.limit_ms()))
    }

    /// One question: the time, what is left of a pause, and for how long leases may live. Lets a pause
    /// of at least `wait_ms` begin.
    async fn look(
        &self,
        wire: &mut Wire<'_>,
        lineage: &str,
        wait_ms: u64,
    ) -> Result<Offset, LinkError> {
        let sent_ms = self.clock.monotonic_ms();
        // Only what this server knows by itself: others tell what they know.
        let own_ms = self.state().own.left_ms(sent_ms);
        let mut command = self.script.call(&self.keys.each_ref().map(String::as_str));
        command.arg(lineage).arg(&self.prefix).arg(own_ms).arg(wait_ms);
        let answer = wire.call(&command).await?;
        let heard_ms = self.clock.monotonic_ms();
        let fields = text_fields(answer).unwrap_or_default();
        let numbers: Vec<u64> = fields.iter().filter_map(|field| field.parse().ok()).collect();
        let [redis_ms, paused_ms, lives_ms] = numbers[..] else {
            return Err(LinkError::Unknown(format!(
                "the clock of Redis cannot be read: {fields:?}"
            )));
        };
        let mut state = self.state();
        state.others_until_ms = state.others_until_ms.max(heard_ms + lives_ms);
        state.paused_until_ms = if paused_ms == 0 { 0 } else { heard_ms + paused_ms };
        drop(state);
        self.tell_of_pause();
        Ok(Offset::measured(redis_ms, sent_ms, heard_ms))
    }

    /// From now on. A jump that another caller took over meanwhile is not counted again.
    fn believe(&self, offset: Offset, is_new: bool) {
        let mut state = self.state();
        let before = state.offset.filter(|_| !is_new);
        let step = before.map_or(Step::Steady, |before| offset.since(before, self.limit_ms()));
        state.offset = Some(offset);
        state.looks += 1;
        state.jumps += u64::from(step != Step::Steady);
        let jumps = state.jumps;
        drop(state);
        let (ms, way) = match step {
            Step::Steady => return,
            Step::Forward(ms) => (ms, "forward: leases may have looked as if they were over"),
            Step::Backward(ms) => (ms, "back: leases live that much longer"),
        };
        self.jumps.inc();
        tracing::warn!(jump_ms = ms, jumps, "the clock of Redis jumped {way}");
        let times = if jumps == 1 { "once".to_owned() } else { format!("{jumps} times") };
        self.health.set(
            "clock",
            Status::Warn(format!(
                "the clock of Redis jumped {times} since this server started, the last time by {ms} \
                 ms {way}; slew the clock instead of stepping it"
            )),
        );
    }

    /// Shows whether a pause is in force.
    fn tell_of_pause(&self) {
        let left_ms = self.paused_ms();
        #[expect(clippy::cast_precision_loss, reason = "a gauge of seconds needs no more")]
        self.paused.set(left_ms as f64 / 1_000.0);
        let mut state = self.state();
        let was_paused = std::mem::replace(&mut state.was_paused, left_ms > 0);
        state.pause_ended |= was_paused && left_ms == 0;
        drop(state);
        match (was_paused, left_ms) {
            (false, 0) => {}
            (true, 0) => self.health.remove("grants"),
            _ => self.health.set(
                "grants",
                Status::Warn(
                    "nobody is granted a lock for a while: Redis may have lost leases, or its clock \
                     cut them short, and their holders may still believe; renewals go on, \
                     lock_grants_paused_seconds says for how much longer"
                        .to_owned(),
                ),
            ),
        }
    }

    /// What is left of the pause that is in force, ms; 0 where there is none.
    fn paused_ms(&self) -> u64 {
        let now_ms = self.clock.monotonic_ms();
        self.state().paused_until_ms.saturating_sub(now_ms)
    }

    /// Whether a pause has ended since this was asked before.
    fn pause_ended(&self) -> bool {
        self.tell_of_pause();
        std::mem::take(&mut self.state().pause_ended)
    }
}

/// How often the clock is read, and word of leases is given and taken.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Reads the clock of Redis now and then, so that a jump is noticed where nobody asks for anything, and
/// exchanges with the other servers for how long leases may live. When a pause is over, whoever waits
/// here asks again.
pub(super) async fn keep(store: &RedisStore) {
    let inner = &*store.inner;
    loop {
        let pause_left = Duration::from_millis(inner.time.paused_ms() + 1);
        let pause =
            if pause_left.as_millis() > 1 { pause_left.min(LOOK_INTERVAL) } else { LOOK_INTERVAL };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = inner.time.longer.notified() => {}
        }
        if inner.time.pause_ended() {
            inner.waiting.wake_all();
        }
        let (generation, looks) = (inner.link.generation(), inner.time.looks());
        match store.look_at_clock(looks).await {
            Ok(()) => {}
            Err(LinkError::Server { code, .. }) if code == "LINEAGE" => {
                // What is wrong with it is told by the link.
                let _ = inner.link.verify_again(generation).await;
            }
            Err(error) => tracing::debug!(%error, "the clock of Redis was not read"),
        }
    }
}
