//! By how much the moments of another server's record, or of its waiter, are moved to be moments of
//! this server's clock.
//!
//! etcd has no clock. A record says what its writer's clock showed at the write, so it is as old as
//! this server finds it to be, or older: moving its moments by the difference of the two clocks at
//! the first sight ends nothing too early. A live server also shows its clock once a second, which
//! gives the difference more exactly. The argument is in docs/decisions/0051-records-in-etcd.md.

use std::collections::HashMap;

use crate::engines::contract::{Key, ServerId, Version};

/// For how long the difference to a server's clock counts, in milliseconds: a host that was
/// suspended comes back with another one.
const FRESH_MS: u64 = 5_000;
/// Records that are remembered before old ones are forgotten.
const KEPT: usize = 10_000;
/// Least time for which a record that was not read again is remembered, in milliseconds.
const KEPT_MS: u64 = 3_600_000;

/// A name of another server's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Process {
    /// As records name their writer.
    Writer(u32),
    /// As waiters name their server.
    Server(ServerId),
}

/// Knowledge of other servers' clocks.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    processes: HashMap<Process, Difference>,
    sights: HashMap<Key, Sight>,
    prune_at: usize,
}

/// A record of another server.
#[derive(Clone, Copy, Debug)]
struct Sight {
    version: Version,
    shift_ms: i64,
    at_ms: u64,
}

/// This server's clock minus another one's, or more than that: the lowest of what was seen in this
/// period and in the one before.
#[derive(Clone, Copy, Debug)]
struct Difference {
    lowest_ms: i64,
    before_ms: i64,
    since_ms: u64,
    seen_ms: u64,
}

impl Difference {
    fn is_fresh(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.seen_ms) < FRESH_MS
    }

    fn shift_ms(&self) -> i64 {
        self.lowest_ms.min(self.before_ms)
    }
}

fn between(now_ms: u64, at_ms: u64) -> i64 {
    let now = i64::try_from(now_ms);
    let at = i64::try_from(at_ms);
    now.unwrap_or(i64::MAX).saturating_sub(at.unwrap_or(i64::MAX))
}

impl Clocks {
    /// Records that the clock of a process showed `at_ms` before `now_ms`. Returns the offset to
    /// add to its times.
    pub(super) fn saw(&mut self, process: Process, at_ms: u64, now_ms: u64) -> i64 {
        let shift_ms = between(now_ms, at_ms);
        let fresh = Difference {
            lowest_ms: shift_ms,
            before_ms: shift_ms,
            since_ms: now_ms,
            seen_ms: now_ms,
        };
        if !self.processes.contains_key(&process) {
            self.processes.retain(|_, known| known.is_fresh(now_ms));
        }
        let known = self.processes.entry(process).or_insert(fresh);
        if !known.is_fresh(now_ms) {
            *known = fresh;
        } else if now_ms.saturating_sub(known.since_ms) >= FRESH_MS {
            (known.before_ms, known.lowest_ms) = (known.lowest_ms, shift_ms);
            known.since_ms = now_ms;
        }
        known.lowest_ms = known.lowest_ms.min(shift_ms);
        known.seen_ms = now_ms;
        known.shift_ms()
    }

    /// Returns the offset to add to the times of a record.
    pub(super) fn record_shift_ms(
        &mut self,
        key: &Key,
        version: Version,
        (writer, at_ms): (u32, u64),
        now_ms: u64,
    ) -> i64 {
        let known = self.processes.get(&Process::Writer(writer));
        let known_ms = known.filter(|known| known.is_fresh(now_ms)).map(Difference::shift_ms);
        let sight = self.sights.get(key).filter(|sight| sight.version == version);
        let first_ms = sight.map_or_else(|| between(now_ms, at_ms), |sight| sight.shift_ms);
        let shift_ms = known_ms.map_or(first_ms, |known_ms| first_ms.min(known_ms));
        // Knowledge of a writer counts while it is fresh: its clock may have stopped.
        self.sights.insert(key.clone(), Sight { version, shift_ms: first_ms, at_ms: now_ms });
        self.prune(now_ms);
        shift_ms
    }

    /// A record is gone, or is this server's own.
    pub(super) fn forget(&mut self, key: &Key) {
        self.sights.remove(key);
    }

    fn prune(&mut self, now_ms: u64) {
        if self.sights.len() <= self.prune_at.max(KEPT) {
            return;
        }
        // One that is read again later is taken for younger than it is, which ends nothing too
        // early.
        self.sights.retain(|_, sight| now_ms.saturating_sub(sight.at_ms) < KEPT_MS);
        self.prune_at = self.sights.len() * 2;
    }
}

#[cfg(test)]
mod tests {
    use fence_protocol::LockName;

    use super::*;

    const WRITER: Process = Process::Writer(7);

    fn key() -> Key {
        Key::Lock(LockName::new("a").unwrap())
    }

    /// Reading a record once more does not make it younger, and a new version is a new sight.
    #[test]
    fn the_first_sight_counts() {
        let mut clocks = Clocks::default();
        assert_eq!(clocks.record_shift_ms(&key(), Version(1), (7, 1_000), 50_000), 49_000);
        assert_eq!(clocks.record_shift_ms(&key(), Version(1), (7, 1_000), 60_000), 49_000);
        assert_eq!(clocks.record_shift_ms(&key(), Version(2), (7, 11_500), 60_000), 48_500);
        clocks.forget(&key());
        assert_eq!(clocks.record_shift_ms(&key(), Version(2), (7, 11_500), 70_000), 58_500);
    }

    #[test]
    fn a_live_server_shows_its_clock() {
        let mut clocks = Clocks::default();
        clocks.saw(WRITER, 20_000, 30_003);
        clocks.saw(WRITER, 21_000, 31_001);
        clocks.saw(WRITER, 22_000, 32_009);
        assert_eq!(clocks.record_shift_ms(&key(), Version(1), (7, 15_000), 32_500), 10_001);
        // A server that was silent for a while may have another clock by now.
        assert_eq!(clocks.record_shift_ms(&key(), Version(2), (7, 23_000), 60_000), 37_000);
        clocks.saw(WRITER, 24_000, 60_100);
        assert_eq!(clocks.record_shift_ms(&key(), Version(3), (7, 24_100), 60_200), 36_100);
    }

    /// Its clock runs slower than ours: what was seen long ago is lower than what is true.
    #[test]
    fn a_difference_that_grows_is_followed() {
        let mut clocks = Clocks::default();
        for at in 0..100 {
            let now_ms = 1_000_000 + at * 1_000;
            clocks.saw(WRITER, now_ms - 500 - at, now_ms);
        }
        let shift_ms = clocks.record_shift_ms(&key(), Version(1), (7, 0), 1_100_000);
        assert!((589..=599).contains(&shift_ms), "{shift_ms}");
    }

    /// A waiter of a live server has its own times; one of a dead server soon counts as older than
    /// the last list of live servers, however often it is read.
    #[test]
    fn a_waiter_is_as_old_as_its_server_says() {
        let mut clocks = Clocks::default();
        let server = Process::Server(ServerId(7));
        assert_eq!(clocks.saw(server, 20_000, 30_003), 10_003);
        assert_eq!(clocks.saw(server, 15_000, 30_500), 10_003, "an older waiter");
        // Its server is silent.
        for now_ms in 31_000..90_000 {
            let shift_ms = clocks.saw(server, 15_000, now_ms);
            assert!(15_000 + shift_ms <= now_ms.cast_signed());
            assert!(now_ms < 41_000 || 15_000 + shift_ms <= now_ms.cast_signed() - 5_000 + 1);
        }
    }

    #[test]
    fn processes_that_are_gone_are_forgotten() {
        let mut clocks = Clocks::default();
        for number in 0..100_u32 {
            clocks.saw(Process::Writer(number), 0, u64::from(number) * 1_000);
        }
        assert_eq!(clocks.processes.len(), 5);
    }
}
