//! What is known of a lease: until when it may be trusted, or why it may not.

use std::sync::{Mutex, PoisonError};

use fence_protocol::LockName;
use tokio::sync::watch;

use crate::LostReason;
use crate::clock::{self, Moment};
use crate::timing::Window;

/// Shared by the lease and its renewal. Lost is for ever: no renewal brings a lease back, because
/// the work that it protected has been told to stop.
#[derive(Debug)]
pub(super) struct State {
    lock: LockName,
    known: Mutex<Known>,
    changed: watch::Sender<Option<LostReason>>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    window: Window,
    lost: Option<LostReason>,
}

impl State {
    pub(super) fn new(lock: LockName, window: Window) -> Self {
        let (changed, _) = watch::channel(None);
        Self { lock, known: Mutex::new(Known { window, lost: None }), changed }
    }

    fn known<T>(&self, act: impl FnOnce(&mut Known) -> T) -> T {
        act(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn window(&self) -> Window {
        self.known(|known| known.window)
    }

    /// Why the lease cannot be trusted at `now`; `None` where it can.
    pub(super) fn lost(&self, now: Moment) -> Option<LostReason> {
        let (lost, is_news) = self.known(|known| {
            let is_news = known.lost.is_none() && !known.window.is_live(now);
            if is_news {
                known.lost = Some(LostReason::Deadline);
            }
            (known.lost, is_news)
        });
        if is_news {
            self.announce(lost);
        }
        lost
    }

    /// The lease got a new window; `false` where that comes too late, at `now`.
    pub(super) fn extend(&self, window: Window, now: Moment) -> bool {
        if self.lost(now).is_some() {
            return false;
        }
        self.known(|known| {
            if known.lost.is_none() {
                known.window = window;
            }
            known.lost.is_none()
        })
    }

    /// The lease cannot be trusted any more. The first reason stays.
    pub(super) fn lose(&self, reason: LostReason) {
        let is_news = self.known(|known| {
            let is_news = known.lost.is_none();
            known.lost.get_or_insert(reason);
            is_news
        });
        if is_news {
            self.announce(Some(reason));
        }
    }

    fn announce(&self, lost: Option<LostReason>) {
        if let Some(reason) = lost {
            tracing::warn!(lock = %self.lock, %reason, "the lease is lost");
        }
        self.changed.send_replace(lost);
    }

    /// Waits until the lease is lost. Watches the clock itself, because the renewal may have ended
    /// with a lease that was dropped.
    pub(super) async fn when_lost(&self) -> LostReason {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(reason) = self.lost(clock::now()) {
                return reason;
            }
            let deadline = self.window().deadline();
            tokio::select! {
                _ = changed.changed() => {}
                () = clock::sleep_until(deadline) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fence_protocol::wire::lock::EndReason;

    fn at(ms: u64) -> Moment {
        Moment::from_ms(ms)
    }

    fn state() -> State {
        State::new(LockName::new("a").unwrap(), Window::new(at(0), 1000))
    }

    #[test]
    fn a_renewal_in_time_extends() {
        let state = state();
        assert_eq!(state.lost(at(799)), None);
        assert!(state.extend(Window::new(at(300), 1000), at(799)));
        assert_eq!(state.lost(at(1099)), None);
        assert_eq!(state.lost(at(1100)), Some(LostReason::Deadline));
    }

    #[test]
    fn a_renewal_after_the_deadline_brings_nothing_back() {
        let state = state();
        assert!(!state.extend(Window::new(at(790), 1000), at(800)));
        assert_eq!(state.lost(at(800)), Some(LostReason::Deadline));
        // Not even for a clock that could be read as earlier.
        assert_eq!(state.lost(at(0)), Some(LostReason::Deadline));
    }

    #[test]
    fn the_first_reason_stays() {
        let state = state();
        state.lose(LostReason::Ended(EndReason::Revoked));
        assert_eq!(state.lost(at(5000)), Some(LostReason::Ended(EndReason::Revoked)));
        assert!(!state.extend(Window::new(at(0), 1000), at(1)));
    }

    #[tokio::test]
    async fn waiting_sees_the_servers_word_and_the_clock() {
        let now = clock::now();
        let state = State::new(LockName::new("a").unwrap(), Window::new(now, 86_400_000));
        tokio::join!(
            async { assert_eq!(state.when_lost().await, LostReason::Ended(EndReason::Expired)) },
            async { state.lose(LostReason::Ended(EndReason::Expired)) },
        );
        let short = State::new(LockName::new("a").unwrap(), Window::new(now, 20));
        assert_eq!(short.when_lost().await, LostReason::Deadline);
    }
}
