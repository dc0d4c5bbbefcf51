//! The trust in a lease or a session: until when it may be used, or the reason why it may not.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use tokio::sync::watch;

use crate::clock::{self, Reading};
use crate::limits::{Hold, Limits, WarnedEnds};
use crate::timing::Window;
use crate::{Error, LostReason, Warning};

/// Trust in one lease or session, shared with its renewal or heartbeat and with the leases of a
/// session. A loss is final: no renewal undoes it, because the work that it protected was
/// cancelled.
#[derive(Debug)]
pub(crate) struct Trust {
    what: String,
    state: Mutex<TrustState>,
    changed: watch::Sender<Option<LostReason>>,
}

#[derive(Clone, Copy, Debug)]
struct TrustState {
    window: Window,
    hold: Hold,
    lost: Option<LostReason>,
}

impl Trust {
    /// Creates the trust in a live lease; `what` names the lock or the session in the log.
    pub(crate) fn new(what: impl fmt::Display, window: Window, hold: Hold) -> Self {
        let (changed, _) = watch::channel(None);
        let what = what.to_string();
        Self { what, state: Mutex::new(TrustState { window, hold, lost: None }), changed }
    }

    fn with_state<T>(&self, act: impl FnOnce(&mut TrustState) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn window(&self) -> Window {
        self.with_state(|state| state.window)
    }

    /// The loss that comes next if nothing is renewed or reported.
    pub(crate) fn next_end(&self, now: Reading) -> Warning {
        self.with_state(|state| state.hold.next_end(state.window, now))
    }

    /// Records that the work makes progress at `now`; `false` if the lease was lost by then.
    pub(crate) fn progress(&self, now: Reading) -> bool {
        if self.lost(now).is_some() {
            return false;
        }
        self.with_state(|state| {
            state.hold.progress(now);
            state.lost.is_none()
        })
    }

    /// Reason why the lease cannot be trusted at `now`; `None` if it can.
    pub(crate) fn lost(&self, now: Reading) -> Option<LostReason> {
        let (lost, is_news) = self.with_state(|state| {
            let end = state.hold.next_end(state.window, now);
            let is_news = state.lost.is_none() && end.ends_at <= now.at;
            if is_news {
                state.lost = Some(end.reason);
            }
            (state.lost, is_news)
        });
        if let Some(reason) = lost.filter(|_| is_news) {
            tracing::info!(what = %self.what, %reason, "the lease is lost");
            self.changed.send_replace(lost);
        }
        lost
    }

    /// Starts the limits anew at `now`.
    pub(crate) fn limit(&self, limits: Limits, now: Reading) {
        self.with_state(|state| {
            if state.lost.is_none() {
                state.hold = Hold::new(limits, now);
            }
        });
        // Wakes tasks that sleep until a later end.
        self.changed.send_modify(|_| ());
    }

    /// Replaces the window after a renewal; `false` if the lease was lost at `now`.
    pub(crate) fn extend(&self, window: Window, now: Reading) -> bool {
        if self.lost(now).is_some() {
            return false;
        }
        self.with_state(|state| {
            if state.lost.is_none() {
                state.window = window;
            }
            state.lost.is_none()
        })
    }

    /// Marks the lease as lost. The first reason stays.
    pub(crate) fn lose(&self, reason: LostReason) {
        if self.end(reason) {
            tracing::info!(what = %self.what, %reason, "the lease is lost");
        }
    }

    /// Marks the lease as lost without a log line, because the holder ended it; `true` if it was
    /// live.
    pub(crate) fn end(&self, reason: LostReason) -> bool {
        let was_live = self.with_state(|state| {
            let was_live = state.lost.is_none();
            state.lost.get_or_insert(reason);
            was_live
        });
        if was_live {
            self.changed.send_replace(Some(reason));
        }
        was_live
    }

    /// Waits until the lease is lost. Watches the clock itself, because the renewal may have ended
    /// with a lease that was dropped.
    pub(crate) async fn when_lost(&self) -> LostReason {
        let mut changed = self.changed.subscribe();
        loop {
            let now = clock::reading();
            if let Some(reason) = self.lost(now) {
                return reason;
            }
            let end = self.next_end(now).ends_at;
            tokio::select! {
                _ = changed.changed() => {}
                () = clock::sleep_until(end) => {}
            }
        }
    }

    /// Awaits `release` until the lease has expired, when nothing is left to release.
    pub(crate) async fn until_expired<T>(
        &self,
        release: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::select! {
            biased;
            () = self.when_expired() => Err(Error::lease_lost(&self.what, LostReason::Deadline)),
            result = release => result,
        }
    }

    /// Waits until the time to live has passed on this machine's clock.
    async fn when_expired(&self) {
        // The heartbeat of a session continues while one of its leases is released.
        while self.window().expires_at() > clock::now() {
            clock::sleep_until(self.window().expires_at()).await;
        }
    }

    /// Waits until a warning is due that is not in `warned`. Never resolves if the limits ask for
    /// no warnings, nor once the lease is lost.
    pub(crate) async fn when_near(&self, warned: &WarnedEnds) -> Warning {
        loop {
            let now = clock::reading();
            if self.lost(now).is_some() {
                return std::future::pending().await;
            }
            // At the next end the lease is lost, or the end has moved and needs a new warning.
            let end = self.next_end(now).ends_at;
            match self.with_state(|state| state.hold.warn_at(state.window, now, warned)) {
                Some((at, warning)) if at <= now.at => return warning,
                Some((at, _)) => clock::sleep_until(at.min(end)).await,
                None => clock::sleep_until(end).await,
            }
        }
    }
}

/// Drives `work` for as long as `check` succeeds; `lost` wakes it when the lease is lost.
///
/// `check` reads the clock before each poll of the work, so that a process that was stopped past
/// its deadline takes no further step.
pub(crate) async fn guard<T>(
    check: impl Fn() -> Result<(), Error>,
    lost: impl Future<Output = Error>,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    let mut work = pin!(work);
    let mut lost = pin!(lost);
    poll_fn(|context| {
        if let Err(error) = check() {
            return Poll::Ready(Err(error));
        }
        if let Poll::Ready(error) = lost.as_mut().poll(context) {
            return Poll::Ready(Err(error));
        }
        match work.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(check().map(|()| value)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Moment;
    use fence_protocol::wire::lock::EndReason;

    fn at(ms: u64) -> Reading {
        Reading { at: Moment::from_ms(ms), suspended_ms: 0 }
    }

    fn window(ms: u64) -> Window {
        Window::new(Moment::from_ms(ms), 1000)
    }

    fn trust() -> Trust {
        under(Limits::default())
    }

    fn under(limits: Limits) -> Trust {
        Trust::new("a", window(0), Hold::new(limits, at(0)))
    }

    #[test]
    fn without_progress_the_lease_is_lost_and_neither_renewal_nor_report_brings_it_back() {
        let within = Duration::from_millis(500);
        let trust = under(Limits { progress_within: Some(within), ..Limits::default() });
        assert!(trust.progress(at(400)));
        assert!(trust.extend(window(600), at(700)));
        assert_eq!(trust.lost(at(899)), None);
        let lost = Some(LostReason::NoProgress { within });
        assert_eq!(trust.lost(at(900)), lost);
        assert!(!trust.progress(at(900)));
        assert!(!trust.extend(window(900), at(900)));
        assert_eq!(trust.lost(at(0)), lost);
    }

    /// No other call has read the clock before the report.
    #[test]
    fn a_report_after_the_limit_is_too_late_though_the_loss_was_not_noticed_yet() {
        let within = Duration::from_millis(500);
        let trust = under(Limits { progress_within: Some(within), ..Limits::default() });
        assert!(!trust.progress(at(500)));
        assert_eq!(trust.lost(at(501)), Some(LostReason::NoProgress { within }));
    }

    #[test]
    fn renewals_and_reports_do_not_move_the_longest_hold() {
        let max = Duration::from_millis(1500);
        let trust = under(Limits { max_hold: Some(max), ..Limits::default() });
        assert!(trust.extend(window(700), at(700)));
        assert!(trust.progress(at(1400)));
        assert!(trust.extend(window(1400), at(1499)));
        assert_eq!(trust.lost(at(1500)), Some(LostReason::HeldTooLong { max }));
    }

    #[test]
    fn a_renewal_in_time_extends() {
        let trust = trust();
        assert_eq!(trust.lost(at(799)), None);
        assert!(trust.extend(window(300), at(799)));
        assert_eq!(trust.lost(at(1099)), None);
        assert_eq!(trust.lost(at(1100)), Some(LostReason::Deadline));
    }

    #[test]
    fn a_renewal_after_the_deadline_brings_nothing_back() {
        let trust = trust();
        assert!(!trust.extend(window(790), at(800)));
        assert_eq!(trust.lost(at(800)), Some(LostReason::Deadline));
        // Not even for a clock that could be read as earlier.
        assert_eq!(trust.lost(at(0)), Some(LostReason::Deadline));
    }

    #[test]
    fn the_first_reason_stays() {
        let trust = trust();
        trust.lose(LostReason::Ended(EndReason::Revoked));
        assert_eq!(trust.lost(at(5000)), Some(LostReason::Ended(EndReason::Revoked)));
        assert!(!trust.extend(window(0), at(1)));
    }

    /// All ends were warned of, and then a renewal moves one: the waiter gets another warning.
    #[tokio::test]
    async fn an_end_that_moved_is_warned_of_again() {
        let now = clock::reading();
        let limits = Limits { warn_before: Some(Duration::from_secs(60)), ..Limits::default() };
        let old = Window::new(now.at, 10_000);
        let trust = Trust::new("a", old, Hold::new(limits, now));
        let mut warned = WarnedEnds::default();
        warned.record(Warning { ends_at: old.deadline(), reason: LostReason::Deadline });
        // Sent so long ago that its end is near, but still seconds ahead.
        let renewed = Window::new(now.at.minus_ms(40_000), 120_000);
        let near = tokio::time::timeout(Duration::from_secs(20), trust.when_near(&warned));
        let renewal = async { assert!(trust.extend(renewed, clock::reading())) };
        // The wait begins before the renewal.
        let (warning, ()) = tokio::join!(biased; near, renewal);
        let moved = Warning { ends_at: renewed.deadline(), reason: LostReason::Deadline };
        assert_eq!(warning.expect("a warning"), moved);
    }

    #[tokio::test]
    async fn waiting_ends_by_the_servers_reply_and_by_the_clock() {
        let now = clock::reading();
        let trust = |ttl_ms| {
            let hold = Hold::new(Limits::default(), now);
            Trust::new("a", Window::new(now.at, ttl_ms), hold)
        };
        let long = trust(86_400_000);
        let short = trust(20);
        tokio::join!(
            async { assert_eq!(long.when_lost().await, LostReason::Ended(EndReason::Expired)) },
            async { long.lose(LostReason::Ended(EndReason::Expired)) },
        );
        assert_eq!(short.when_lost().await, LostReason::Deadline);
    }
}
