//! Time at a store as this server knows it, and the bound on the life of its leases.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use service_kit::clock::Clock;

use super::offset::{ClockJump, Offset};
use crate::store::StoreError;

/// A clock may be slower than another by one part in so many.
const DRIFT: u64 = 2_000;

/// Distance by which the bound in the store is set ahead, at least, so that equal leases need few
/// writes, in milliseconds.
const AHEAD_MS: u64 = 1_000;

/// Whatever the store shows.
const LATEST_MS: u64 = 999_999_999_999_999;

/// Time, and lives of leases.
#[derive(Debug)]
pub(crate) struct StoreTime {
    clock: Arc<dyn Clock>,
    /// By how much the clocks may move against each other before that counts as a jump.
    limit_ms: u64,
    state: Mutex<TimeState>,
}

#[derive(Debug, Default)]
struct TimeState {
    /// A time that the store showed, and when its reply was read by our clock.
    anchor: Option<(u64, u64)>,
    /// Offset of the clock of the store from ours at the last probe.
    offset: Option<Offset>,
    /// Number of probes.
    looks: u64,
    /// Known distance of the clock of the store ahead of the time of the records, in milliseconds.
    ahead_ms: Option<i64>,
    /// No lease that was committed here lives after this, by our clock.
    ends_ms: u64,
    /// The store has this bound, or a later one.
    known_until_ms: u64,
    /// Other servers' bound.
    others_until_ms: u64,
    /// Time of the last change of the memory behind the connection, by our clock.
    new_at_ms: u64,
}

impl StoreTime {
    pub(crate) fn new(clock: Arc<dyn Clock>, limit_ms: u64) -> Self {
        Self { clock, limit_ms, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, TimeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// By how much a clock may move without a jump.
    pub(crate) fn limit_ms(&self) -> u64 {
        self.limit_ms
    }

    pub(crate) fn monotonic_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    /// The time that the store shows at least, unless its clock went back since it was read; 0
    /// before it was read.
    pub(crate) fn now_ms(&self) -> u64 {
        let now_ms = self.clock.monotonic_ms();
        self.state().at(now_ms)
    }

    /// The store showed `shown_ms` in the reply to a command that was sent at `sent_ms` of our
    /// clock. A reply that was long on its way shows less than is known already.
    pub(crate) fn saw(&self, shown_ms: u64, sent_ms: u64) {
        let now_ms = self.clock.monotonic_ms();
        let mut state = self.state();
        let earliest_ms = state.at(sent_ms).saturating_sub(self.limit_ms);
        if shown_ms > state.latest_ms(now_ms, self.limit_ms) || shown_ms < earliest_ms {
            // A clock that jumped is not believed before it was measured.
            return;
        }
        state.read(shown_ms, sent_ms, now_ms);
    }

    /// The earliest time that the store can show from now on.
    pub(crate) fn earliest_ms(&self) -> u64 {
        self.now_ms().saturating_sub(self.limit_ms)
    }

    /// The latest time that the store can show now, without what comes on the way to it.
    pub(crate) fn latest_ms(&self) -> u64 {
        let now_ms = self.clock.monotonic_ms();
        self.state().latest_ms(now_ms, self.limit_ms)
    }

    /// Returns the number of probes.
    pub(crate) fn looks(&self) -> u64 {
        self.state().looks
    }

    /// Evaluates a probe: the offset of the clock from ours, and its jump since the last probe.
    pub(crate) fn compare(&self, shown_ms: u64, sent_ms: u64) -> (Offset, ClockJump) {
        let offset = Offset::measured(shown_ms, sent_ms, self.clock.monotonic_ms());
        let before = self.state().offset;
        (offset, before.map_or(ClockJump::Steady, |before| offset.since(before, self.limit_ms)))
    }

    /// From now on: the store showed `shown_ms` in the reply to a command that was sent at
    /// `sent_ms`.
    pub(crate) fn believe(&self, offset: Offset, shown_ms: u64, sent_ms: u64) {
        let now_ms = self.clock.monotonic_ms();
        let mut state = self.state();
        state.offset = Some(offset);
        state.looks += 1;
        state.read(shown_ms, sent_ms, now_ms);
    }

    /// Returns whether a jump was corrected since the last probe.
    pub(crate) fn is_corrected(&self, ahead_ms: i64) -> bool {
        self.state().ahead_ms.is_some_and(|before_ms| before_ms != ahead_ms)
    }

    /// The clock of the store is so far ahead of the time of the records. Returns the jump that was
    /// corrected since the last measurement, by this server or by another one.
    pub(crate) fn corrected(&self, ahead_ms: i64) -> ClockJump {
        let before_ms = self.state().ahead_ms.replace(ahead_ms);
        match before_ms.map_or(0, |before_ms| ahead_ms - before_ms) {
            0 => ClockJump::Steady,
            jump_ms if jump_ms > 0 => ClockJump::Forward(jump_ms.unsigned_abs()),
            jump_ms => ClockJump::Backward(jump_ms.unsigned_abs()),
        }
    }

    /// A lease that lives for so long is about to be committed. Returns what the store is to keep,
    /// in milliseconds; 0 where it has a bound that is late enough.
    pub(crate) fn promise(&self, lives_ms: u64) -> u64 {
        let ends_ms = self.clock.monotonic_ms().saturating_add(lives_ms);
        if lives_ms == 0 || ends_ms <= self.state().known_until_ms {
            return 0;
        }
        lives_ms.saturating_add((lives_ms / 8).max(AHEAD_MS))
    }

    /// Records that the commit of such leases got its reply, and no holder believes in one before:
    /// they may have begun as late as now. Where it failed, the store may not have the bound; where
    /// it was refused, none began. The store itself has the bound that was sent with it,
    /// `sent_bound_ms` after `sent_ms`.
    pub(crate) fn promised(
        &self,
        lives_ms: u64,
        (sent_bound_ms, sent_ms): (u64, u64),
        outcome: Result<(), &StoreError>,
    ) {
        if lives_ms == 0 {
            return;
        }
        let now_ms = self.clock.monotonic_ms();
        let mut state = self.state();
        if matches!(outcome, Ok(()) | Err(StoreError::Unknown(_))) {
            state.ends_ms = state.ends_ms.max(now_ms.saturating_add(lives_ms));
        }
        match outcome {
            // What was sent before a change of the memory may be lost with the former one.
            Ok(()) if sent_bound_ms == 0 || sent_ms <= state.new_at_ms => {}
            Ok(()) => {
                state.known_until_ms =
                    state.known_until_ms.max(sent_ms.saturating_add(sent_bound_ms));
            }
            Err(_) => state.known_until_ms = 0,
        }
    }

    /// For how long a lease may live that was committed here, ms.
    pub(crate) fn own_lives_ms(&self) -> u64 {
        let now_ms = self.clock.monotonic_ms();
        self.state().ends_ms.saturating_sub(now_ms)
    }

    /// Leases of some server live for at most so long.
    pub(crate) fn others_live(&self, lives_ms: u64) {
        let until_ms = self.clock.monotonic_ms().saturating_add(lives_ms);
        let mut state = self.state();
        state.others_until_ms = state.others_until_ms.max(until_ms);
    }

    /// For how long a lease may live that this server knows of, ms.
    pub(crate) fn lives_ms(&self) -> u64 {
        let now_ms = self.clock.monotonic_ms();
        let state = self.state();
        state.ends_ms.max(state.others_until_ms).saturating_sub(now_ms)
    }

    /// Another process, or another memory, may be behind the connection: its clock is not compared,
    /// and what the store stored may be lost.
    pub(crate) fn is_new(&self) {
        let now_ms = self.clock.monotonic_ms();
        let mut state = self.state();
        (state.known_until_ms, state.offset, state.ahead_ms) = (0, None, None);
        state.new_at_ms = now_ms;
    }
}

impl TimeState {
    fn read(&mut self, shown_ms: u64, sent_ms: u64, now_ms: u64) {
        if shown_ms >= self.at(now_ms) || shown_ms < self.at(sent_ms) {
            self.anchor = Some((shown_ms, now_ms));
        }
    }

    fn latest_ms(&self, now_ms: u64, limit_ms: u64) -> u64 {
        self.offset.map_or(LATEST_MS, |offset| offset.latest_ms(now_ms, limit_ms))
    }

    fn at(&self, monotonic_ms: u64) -> u64 {
        let Some((shown_ms, read_ms)) = self.anchor else { return 0 };
        let since_ms = monotonic_ms.saturating_sub(read_ms);
        (shown_ms + since_ms - since_ms.div_ceil(DRIFT))
            .saturating_sub(read_ms.saturating_sub(monotonic_ms))
    }
}

#[cfg(test)]
mod tests {
    use service_kit::clock::ManualClock;

    use super::*;

    fn time() -> (Arc<ManualClock>, StoreTime) {
        let clock = Arc::new(ManualClock::new(1_000, 0));
        (clock.clone(), StoreTime::new(clock, 1_000))
    }

    #[test]
    fn the_time_is_never_ahead() {
        let (clock, time) = time();
        assert_eq!(time.now_ms(), 0);
        time.saw(50_000, 990);
        assert_eq!(time.now_ms(), 50_000);
        clock.advance(100);
        assert_eq!(time.now_ms(), 50_099);
        // It was 80 ms on its way.
        time.saw(50_030, 1_020);
        assert_eq!(time.now_ms(), 50_099);
        time.saw(50_140, 1_095);
        assert_eq!(time.now_ms(), 50_140);
        // The clock went back by seconds.
        time.saw(45_000, 1_099);
        assert!(time.now_ms() >= 50_140);
        time.believe(time.compare(45_000, 1_099).0, 45_000, 1_099);
        assert_eq!(time.now_ms(), 45_000);
    }

    #[test]
    fn a_clock_that_jumped_is_not_believed_before_it_was_looked_at() {
        let (clock, time) = time();
        time.believe(time.compare(50_000, 1_000).0, 50_000, 1_000);
        clock.advance(100);
        time.saw(3_600_000, 1_099);
        assert_eq!(time.now_ms(), 50_099);
        assert_eq!(time.latest_ms(), 51_100);
        let (offset, step) = time.compare(3_600_000, 1_100);
        assert_eq!(step, ClockJump::Forward(3_549_900));
        time.believe(offset, 3_600_000, 1_100);
        assert_eq!((time.now_ms(), time.looks()), (3_600_000, 2));
    }

    #[test]
    fn equal_leases_seldom_move_the_bound() {
        let (clock, time) = time();
        let mut stored = 0;
        for _ in 0..80 {
            let promise_ms = time.promise(80_000);
            assert!(promise_ms == 0 || promise_ms == 90_000, "{promise_ms}");
            stored += u64::from(promise_ms > 0);
            time.promised(80_000, (promise_ms, time.monotonic_ms()), Ok(()));
            clock.advance(1_000);
        }
        assert_eq!(stored, 8);
        assert_eq!(time.lives_ms(), 79_000);
        time.others_live(100_000);
        assert_eq!((time.own_lives_ms(), time.lives_ms()), (79_000, 100_000));
        clock.advance(100_000);
        assert_eq!(time.lives_ms(), 0);
        assert_eq!(time.promise(0), 0);
    }

    #[test]
    fn a_failed_promise_is_made_again() {
        let (_, time) = time();
        assert_eq!(time.promise(8_000), 9_000);
        let sent_ms = time.monotonic_ms();
        time.promised(8_000, (9_000, sent_ms), Err(&StoreError::Exhausted));
        assert_eq!(time.lives_ms(), 0);
        assert_eq!(time.promise(8_000), 9_000);
        assert_eq!(time.promise(8_000), 9_000, "not before it is answered");
        time.promised(8_000, (9_000, sent_ms), Ok(()));
        assert_eq!(time.promise(8_000), 0);
        time.promised(8_000, (0, sent_ms), Err(&StoreError::Unknown("no reply".to_owned())));
        assert_eq!(time.lives_ms(), 8_000);
    }

    #[test]
    fn a_promise_to_a_former_memory_is_made_again() {
        let (clock, time) = time();
        let sent_ms = time.monotonic_ms();
        clock.advance(1);
        time.is_new();
        time.promised(8_000, (9_000, sent_ms), Ok(()));
        assert_eq!((time.promise(8_000), time.lives_ms()), (9_000, 8_000));
    }
}
