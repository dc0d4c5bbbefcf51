//! Rates of the faults of a simulation.

use std::time::Duration;

use crate::seed::Seed;

/// The faults of one simulation. Numbers without a unit are parts of a thousand calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// The longest ordinary way to the engine or back, ms.
    pub(crate) delay_ms: u64,
    /// Calls that are answered at once, without a way at all.
    pub(crate) direct: u64,
    /// Ways that take up to `slow_ms`.
    pub(crate) slow: u64,
    /// The longest way, ms.
    pub(crate) slow_ms: u64,
    /// Requests that never arrive, and whose sender gets a refusal.
    pub(crate) refused: u64,
    /// Requests that never arrive, and whose sender gets no reply.
    pub(crate) request_lost: u64,
    /// Requests that are carried out without a reply.
    pub(crate) reply_lost: u64,
    /// Messages to other servers that are lost, repeated or late.
    pub(crate) wakeup_lost: u64,
    /// See above.
    pub(crate) wakeup_repeated: u64,
    /// See above.
    pub(crate) wakeup_late: u64,
    /// Between two faults of a whole process, ms; 0 for none.
    pub(crate) pause_ms: u64,
    /// `true` if servers stop and start.
    pub(crate) stops: bool,
    /// `true` if servers stand still for seconds.
    pub(crate) stalls: bool,
    /// `true` if the engine loses what was not durable.
    pub(crate) losses: bool,
    /// `true` if the engine's clock steps, back and forward.
    pub(crate) steps: bool,
    /// Calls that a client hangs up on.
    pub(crate) hang_ups: u64,
    /// Replies that a client does not receive.
    pub(crate) unread: u64,
    /// Acquires that arrive twice.
    pub(crate) repeated: u64,
}

impl Faults {
    /// No faults: the engine answers at once.
    pub(crate) const NONE: Self = Self {
        delay_ms: 0,
        direct: 1_000,
        slow: 0,
        slow_ms: 0,
        refused: 0,
        request_lost: 0,
        reply_lost: 0,
        wakeup_lost: 0,
        wakeup_repeated: 0,
        wakeup_late: 0,
        pause_ms: 0,
        stops: false,
        stalls: false,
        losses: false,
        steps: false,
        hang_ups: 0,
        unread: 0,
        repeated: 0,
    };

    /// Ways that take their time, and clients that hang up: nothing fails.
    pub(crate) fn calm(seed: &mut Seed) -> Self {
        let direct = [0, 500, 1_000][seed.below(3) as usize];
        let delay_ms = 1 + seed.below(12);
        let hang_ups = seed.below(2) * 150;
        let repeated = seed.below(2) * 100;
        Self { delay_ms, direct, hang_ups, repeated, ..Self::NONE }
    }

    /// As [`calm`](Self::calm), but for the messages between servers.
    pub(crate) fn of_messages(seed: &mut Seed) -> Self {
        let lost = 100 + seed.below(400);
        Self { wakeup_lost: lost, wakeup_repeated: 100, wakeup_late: 100, ..Self::calm(seed) }
    }

    /// As [`calm`](Self::calm), but servers stop.
    pub(crate) fn of_stops(seed: &mut Seed) -> Self {
        Self { pause_ms: 3_000 + seed.below(6_000), stops: true, ..Self::calm(seed) }
    }

    /// Some faults, and not all of them in every simulation, so that each meets calm ones too.
    pub(crate) fn some(seed: &mut Seed) -> Self {
        let calm = Self::calm(seed);
        let mut often = |most: u64| if seed.below(2) == 0 { 0 } else { 1 + seed.below(most) };
        Self {
            slow: often(60),
            slow_ms: 50 + often(3_500),
            refused: often(40),
            request_lost: often(40),
            reply_lost: often(60),
            wakeup_lost: often(400),
            wakeup_repeated: often(300),
            wakeup_late: often(300),
            pause_ms: 500 + often(8_000),
            stops: often(2) > 0,
            stalls: often(2) > 0,
            losses: often(4) > 2,
            steps: often(4) > 2,
            hang_ups: often(150),
            unread: often(150),
            ..calm
        }
    }

    /// `true` if something happens that happens so often.
    pub(crate) fn strikes(seed: &mut Seed, of_thousand: u64) -> bool {
        of_thousand > 0 && seed.below(1_000) < of_thousand
    }

    /// Transit time of one message.
    pub(crate) fn way(&self, seed: &mut Seed) -> Duration {
        let most_ms = if Self::strikes(seed, self.slow) { self.slow_ms } else { self.delay_ms };
        Duration::from_millis(seed.below(most_ms + 1))
    }
}
