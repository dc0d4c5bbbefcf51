//! Limits of a lease: longest hold, progress and warnings. Pure rules, no clock and no I/O.
//!
//! Renewal keeps a lease for as long as its process lives, even if the work in it hangs. These
//! limits tie the lease to the work.

use std::time::Duration;

use fence_protocol::{Invalid, duration};

use crate::LostReason;
use crate::clock::{Moment, Reading, whole_ms};
use crate::timing::Window;

/// Limits that the caller set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) progress_within: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) warn_before: Option<Duration>,
}

impl Limits {
    /// Checks that each limit is at least 1 ms and that the warning comes after the start.
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        let limits = [("progress_within", self.progress_within), ("max_hold", self.max_hold)];
        for (name, limit) in limits {
            let Some(limit) = limit else { continue };
            let shown = duration::show(limit);
            if limit < Duration::from_millis(1) {
                return Err(Invalid::new(name, shown, "must be at least 1ms"));
            }
            if let Some(before) = self.warn_before.filter(|before| *before >= limit) {
                let rule = format!(
                    "must be less than {name}, which is {shown}: the warning would come at the start"
                );
                return Err(Invalid::new("warn_before", duration::show(before), rule));
            }
        }
        Ok(())
    }
}

/// A loss of the lease that is near unless a renewal succeeds or the work reports progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Moment of the loss.
    pub ends_at: Moment,
    /// Reason of the loss.
    pub reason: LostReason,
}

/// State of a held lease with respect to its limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    limits: Limits,
    began: Moment,
    progressed: Reading,
}

impl Hold {
    /// Starts a hold at `now`, which counts as progress.
    pub(crate) fn new(limits: Limits, now: Reading) -> Self {
        Self { limits, began: now.at, progressed: now }
    }

    /// Records that the work makes progress.
    pub(crate) fn progress(&mut self, now: Reading) {
        self.progressed = now;
    }

    /// Moment by which the work must report progress, seen from `now`.
    ///
    /// Time in suspend since the last report does not count, because the work could not report
    /// then. That is safe, because a suspend stops neither the lease's own deadline nor the longest
    /// hold.
    fn progress_end(&self, now: Reading) -> Option<Warning> {
        let slept_ms = now.suspended_ms.saturating_sub(self.progressed.suspended_ms);
        self.limits.progress_within.map(|within| Warning {
            ends_at: self.progressed.at.plus(within).plus_ms(slept_ms),
            reason: LostReason::NoProgress { within },
        })
    }

    fn held_end(&self) -> Option<Warning> {
        self.limits.max_hold.map(|max| Warning {
            ends_at: self.began.plus(max),
            reason: LostReason::HeldTooLong { max },
        })
    }

    /// The loss that comes next if nothing is renewed or reported: the deadline of the window, or
    /// an earlier limit.
    pub(crate) fn next_end(&self, window: Window, now: Reading) -> Warning {
        let deadline = window_end(window);
        let limits = [self.held_end(), self.progress_end(now)];
        let first =
            |first: Warning, end: Warning| if end.ends_at < first.ends_at { end } else { first };
        limits.into_iter().flatten().fold(deadline, first)
    }

    /// Moment of the next warning, and the warning; `None` if no warnings are asked for.
    ///
    /// The window's deadline is always near if the time to live is short, and every renewal moves
    /// it. To warn only of renewals that fail, that warning comes no earlier than
    /// `Window::worn_at`.
    pub(crate) fn warn_at(
        &self,
        window: Window,
        now: Reading,
        warned: &WarnedEnds,
    ) -> Option<(Moment, Warning)> {
        let before_ms = whole_ms(self.limits.warn_before?);
        let limits = [self.held_end(), self.progress_end(now)];
        let limits = limits.into_iter().flatten().map(|end| (end.ends_at.minus_ms(before_ms), end));
        let deadline = window_end(window);
        let from = deadline.ends_at.minus_ms(before_ms).max(window.worn_at());
        limits
            .chain([(from, deadline)])
            .filter(|(_, end)| warned.is_new(end))
            .min_by_key(|(at, _)| *at)
    }
}

fn window_end(window: Window) -> Warning {
    Warning { ends_at: window.deadline(), reason: LostReason::Deadline }
}

/// Ends that were warned of. Each gets one warning, and another one only when it has moved.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WarnedEnds {
    deadline: Option<Moment>,
    progress: Option<Moment>,
    held: Option<Moment>,
}

impl WarnedEnds {
    pub(crate) fn record(&mut self, warning: Warning) {
        *self.slot(warning.reason) = Some(warning.ends_at);
    }

    fn is_new(mut self, end: &Warning) -> bool {
        *self.slot(end.reason) != Some(end.ends_at)
    }

    fn slot(&mut self, reason: LostReason) -> &mut Option<Moment> {
        match reason {
            LostReason::NoProgress { .. } => &mut self.progress,
            LostReason::HeldTooLong { .. } => &mut self.held,
            LostReason::Deadline | LostReason::Ended(_) => &mut self.deadline,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn at(ms: u64) -> Reading {
        Reading { at: Moment::from_ms(ms), suspended_ms: 0 }
    }

    fn limits(progress_within: Option<u64>, max_hold: Option<u64>) -> Limits {
        Limits {
            progress_within: progress_within.map(S),
            max_hold: max_hold.map(S),
            warn_before: None,
        }
    }

    /// A window whose deadline is later than every limit.
    fn long() -> Window {
        Window::new(Moment::from_ms(0), 86_400_000)
    }

    #[test]
    fn without_limits_there_is_no_end_and_no_warning() {
        let hold = Hold::new(Limits::default(), at(0));
        let window = Window::new(Moment::from_ms(0), 15_000);
        assert_eq!(hold.warn_at(window, at(0), &WarnedEnds::default()), None);
        let end = Warning { ends_at: window.deadline(), reason: LostReason::Deadline };
        assert_eq!(hold.next_end(window, at(u64::MAX)), end);
    }

    #[test]
    fn progress_moves_its_end_and_not_the_maximum() {
        let mut hold = Hold::new(limits(Some(30), Some(60)), at(1_000));
        let no_progress = LostReason::NoProgress { within: S(30) };
        let first = Warning { ends_at: Moment::from_ms(31_000), reason: no_progress };
        let end = |hold: &Hold, ms| hold.next_end(long(), at(ms));
        assert_eq!(end(&hold, 1_000), first);
        hold.progress(at(20_000));
        let second = Warning { ends_at: Moment::from_ms(50_000), reason: no_progress };
        assert_eq!(end(&hold, 20_000), second);
        hold.progress(at(40_000));
        let too_long = LostReason::HeldTooLong { max: S(60) };
        let last = Warning { ends_at: Moment::from_ms(61_000), reason: too_long };
        assert_eq!(end(&hold, 40_000), last);
    }

    /// A suspend of ten minutes does not shorten the time to report; it does shorten the lease and
    /// the longest hold.
    #[test]
    fn a_suspend_stops_the_clock_of_progress_alone() {
        let hold = Hold::new(limits(Some(30), None), at(0));
        let resumed = Reading { at: Moment::from_ms(610_000), suspended_ms: 600_000 };
        assert_eq!(hold.next_end(long(), resumed).ends_at.ms(), 630_000);
        let window = Window::new(Moment::from_ms(0), 15_000);
        assert_eq!(hold.next_end(window, resumed).reason, LostReason::Deadline);
        assert!(hold.next_end(window, resumed).ends_at < resumed.at);
        let held = Hold::new(limits(None, Some(60)), at(0));
        assert_eq!(held.next_end(long(), resumed).ends_at.ms(), 60_000);
        // Time in suspend before the last report has no effect.
        let mut reported = hold;
        reported.progress(resumed);
        assert_eq!(reported.next_end(long(), resumed).ends_at.ms(), 640_000);
    }

    #[test]
    fn each_end_is_warned_of_once_until_it_moves() {
        let limits = Limits { warn_before: Some(S(10)), ..limits(Some(30), Some(60)) };
        let mut hold = Hold::new(limits, at(0));
        let mut warned = WarnedEnds::default();
        let mut next = |hold: &Hold, ms| {
            let (when, warning) = hold.warn_at(long(), at(ms), &warned).unwrap();
            warned.record(warning);
            (when.ms(), warning.ends_at.ms())
        };
        assert_eq!(next(&hold, 0), (20_000, 30_000));
        hold.progress(at(25_000));
        assert_eq!(next(&hold, 25_000), (45_000, 55_000));
        // Each end is warned of once, in the order of the warnings.
        assert_eq!(next(&hold, 45_000), (50_000, 60_000));
        let deadline = long().deadline().ms();
        assert_eq!(next(&hold, 50_000), (deadline - 10_000, deadline));
        assert_eq!(hold.warn_at(long(), at(50_000), &warned), None);
    }

    /// Renewals that succeed cause no warning, however large `warn_before` is.
    #[test]
    fn a_lease_that_is_renewed_in_time_is_not_warned_of() {
        let limits = Limits { warn_before: Some(S(600)), ..Limits::default() };
        let hold = Hold::new(limits, at(0));
        let window = Window::new(Moment::from_ms(0), 15_000);
        let (when, warning) = hold.warn_at(window, at(0), &WarnedEnds::default()).unwrap();
        assert!(when > window.renew_at());
        assert_eq!((when.ms(), warning.ends_at), (6_000, window.deadline()));
        let renewed = Window::new(window.renew_at(), 15_000);
        let (when, _) = hold.warn_at(renewed, at(5_000), &WarnedEnds::default()).unwrap();
        assert!(when > renewed.renew_at());
    }

    #[test]
    fn limits_that_make_no_sense_are_refused_with_their_values() {
        let refused = |limits: Limits| limits.check().unwrap_err().to_string();
        let zero = Limits { max_hold: Some(Duration::ZERO), ..Limits::default() };
        assert!(refused(zero).contains("max_hold"));
        let early = Limits { warn_before: Some(S(30)), ..limits(Some(30), None) };
        let text = refused(early);
        assert!(text.contains("warn_before") && text.contains("30s"), "{text}");
        let fits = Limits { warn_before: Some(S(29)), ..limits(Some(30), Some(60)) };
        assert_eq!(fits.check(), Ok(()));
    }

    proptest! {
        /// Reports and suspends never move the end of a hold beyond its maximum or its window.
        #[test]
        fn nothing_moves_the_maximum(
            began in 0..1u64 << 40,
            reports in prop::collection::vec((0..1u64 << 40, 0..1u64 << 40), 0..8),
            within in 1..1000u64, max in 1..1000u64, sent in 0..1u64 << 40, ttl_ms in 1..1u64 << 20,
        ) {
            let mut hold = Hold::new(limits(Some(within), Some(max)), at(began));
            let window = Window::new(Moment::from_ms(sent), ttl_ms);
            for (ms, suspended_ms) in reports {
                let now = Reading { at: Moment::from_ms(ms), suspended_ms };
                hold.progress(now);
                prop_assert!(hold.next_end(window, now).ends_at.ms() <= began + max * 1000);
                prop_assert!(hold.next_end(window, now).ends_at <= window.deadline());
            }
        }
    }
}
