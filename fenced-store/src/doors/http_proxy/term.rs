//! The time for which this guard may forward.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use service_kit::clock;
use tokio_util::sync::CancellationToken;

/// One term of a leader, or a term without end for a guard that has no standby. Cheap to clone; all
/// clones are the same.
///
/// A term that has ended stays ended: what was admitted in it is never forwarded in a later one.
#[derive(Clone, Debug, Default)]
pub(super) struct Term(Option<Arc<Limits>>);

#[derive(Debug)]
struct Limits {
    /// End of the trust in the lease, as [`clock::boottime_ms`].
    until_ms: AtomicU64,
    ended: CancellationToken,
    /// Reason of an early end.
    why: OnceLock<String>,
}

impl Term {
    /// A term that ends at `until_ms` of [`clock::boottime_ms`], unless it is extended.
    pub(super) fn until(until_ms: u64) -> Self {
        let until_ms = AtomicU64::new(until_ms);
        let ended = CancellationToken::new();
        Self(Some(Arc::new(Limits { until_ms, ended, why: OnceLock::new() })))
    }

    /// Returns `true` if the guard may be replaced by another.
    pub(super) fn is_limited(&self) -> bool {
        self.0.is_some()
    }

    /// Reads the clock, and returns `true` while the guard may forward.
    pub(super) fn holds(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|limits| clock::boottime_ms() < limits.until_ms.load(Ordering::Acquire))
    }

    /// Extends the term; `false` if it had ended.
    pub(super) fn extend(&self, until_ms: u64) -> bool {
        let Some(limits) = &self.0 else { return true };
        let extended = limits.until_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            (clock::boottime_ms() < now).then_some(now.max(until_ms))
        });
        extended.is_ok()
    }

    /// Ends the term at once, for good.
    pub(super) fn end(&self) {
        if let Some(limits) = &self.0 {
            limits.until_ms.store(0, Ordering::Release);
            limits.ended.cancel();
        }
    }

    /// Ends the term at once, for a reason that [`ended`](Self::ended) returns.
    pub(super) fn end_because(&self, why: String) {
        if let Some(limits) = &self.0 {
            // The first reason is the cause of the others.
            let _ = limits.why.set(why);
            self.end();
        }
    }

    /// Remaining time.
    pub(super) fn remaining(&self) -> Duration {
        self.0.as_ref().map_or(Duration::MAX, |limits| {
            let until_ms = limits.until_ms.load(Ordering::Acquire);
            Duration::from_millis(until_ms.saturating_sub(clock::boottime_ms()))
        })
    }

    /// Waits for [`end`](Self::end), and returns the reason. Cancel-safe.
    pub(super) async fn ended(&self) -> String {
        match &self.0 {
            Some(limits) => {
                limits.ended.cancelled().await;
                limits.why.get().cloned().unwrap_or_default()
            }
            None => std::future::pending().await,
        }
    }

    /// Runs `work` until the term is ended; `None` if that comes first.
    pub(super) async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        match &self.0 {
            Some(limits) => limits.ended.run_until_cancelled(work).await,
            None => Some(work.await),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_that_has_ended_is_never_extended() {
        let term = Term::until(clock::boottime_ms() + 60_000);
        assert!(term.holds() && term.extend(clock::boottime_ms() + 90_000));
        assert!(term.remaining() > Duration::from_secs(60));
        term.end();
        assert!(!term.holds() && !term.extend(u64::MAX) && !term.holds());
        let late = Term::until(clock::boottime_ms());
        assert!(!late.holds() && !late.extend(u64::MAX) && !late.holds());
        assert!(Term::default().holds() && !Term::default().is_limited());
    }
}
