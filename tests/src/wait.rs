//! Waiting for conditions, on real or on simulated time.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

/// Time that a condition may take to come true: far more than it needs on a busy machine, so that
/// only what never comes fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Pauses between two looks at a condition: the first is the only one on real time.
const STEP: Duration = Duration::from_millis(5);
const STEP_MAX: Duration = Duration::from_millis(250);

/// Pauses. On simulated time, which passes at once, the next pause is longer: a lease of many
/// seconds would cost thousands of looks.
async fn pause(step: &mut Duration) {
    let begin = std::time::Instant::now();
    tokio::time::sleep(*step).await;
    if begin.elapsed() < *step {
        *step = (*step * 2).min(STEP_MAX);
    }
}

/// Looks until `look` gives a value.
///
/// # Panics
/// When [`PATIENCE`] is over; `what` names the condition.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, look: impl FnMut() -> F) -> T {
    until_within(PATIENCE, what, look).await
}

/// Waits as [`until`] does, for what takes others longer than [`PATIENCE`].
///
/// # Panics
/// When `patience` is over; `what` names the condition.
pub async fn until_within<T, F: Future<Output = Option<T>>>(
    patience: Duration,
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let begin = Instant::now();
    let mut step = STEP;
    loop {
        if let Some(value) = look().await {
            return value;
        }
        assert!(begin.elapsed() < patience, "waited {patience:?} for: {what}");
        pause(&mut step).await;
    }
}

/// Looks until `look` says true.
///
/// # Panics
/// When [`PATIENCE`] is over; `what` names the condition.
pub async fn until_true<F: Future<Output = bool>>(what: &str, mut look: impl FnMut() -> F) {
    until(what, || {
        let seen = look();
        async move { seen.await.then_some(()) }
    })
    .await;
}

/// Looks until `look` gives a value; `None` when [`PATIENCE`] is over, for callers that report it.
pub async fn until_some<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    let mut step = STEP;
    while begin.elapsed() < PATIENCE {
        let value = look();
        if value.is_some() {
            return value;
        }
        pause(&mut step).await;
    }
    None
}

/// Awaits a future for at most [`PATIENCE`].
///
/// # Panics
/// When the time is over; `what` names what was awaited.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {PATIENCE:?} for: {what}"),
    }
}
