//! Waiting for conditions, on real or on simulated time.
//!
//! A limit is how long a broken product may keep a test waiting, and never what a healthy one needs
//! on a busy machine. `FENCE_TEST_PATIENCE` is a factor for all of them.

use std::future::Future;
use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

/// Time that a condition may take to come true, before [`scaled`].
const LIMIT: Duration = Duration::from_secs(45);

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

/// Variable of the environment with the factor, 1 where it is not set.
const FACTOR: &str = "FENCE_TEST_PATIENCE";

/// A limit of a test, multiplied by `FENCE_TEST_PATIENCE`.
///
/// # Panics
/// If the variable is no number above zero, or so large that the limit is no time any more.
pub fn scaled(limit: Duration) -> Duration {
    static SET: LazyLock<Option<String>> = LazyLock::new(|| {
        let set = std::env::var_os(FACTOR);
        set.map(|text| text.to_string_lossy().into_owned())
    });
    let text = SET.as_deref().unwrap_or("1");
    multiplied(limit, text).unwrap_or_else(|| {
        panic!("{FACTOR}={text:?}: expected a number above 0, such as 2 or 1.5, at most 1000")
    })
}

fn multiplied(limit: Duration, factor: &str) -> Option<Duration> {
    let factor: f64 = factor.trim().parse().ok()?;
    (factor > 0.0 && factor <= 1_000.0).then(|| limit.mul_f64(factor))
}

/// Time that a condition may take to come true.
pub fn patience() -> Duration {
    scaled(LIMIT)
}

/// Looks until `look` gives a value.
///
/// # Panics
/// After [`patience`]; `what` names the condition.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, look: impl FnMut() -> F) -> T {
    until_within(LIMIT, what, look).await
}

/// Waits as [`until`] does, for what takes others longer. The limit is [`scaled`] here.
///
/// # Panics
/// When the limit is over; `what` names the condition.
pub async fn until_within<T, F: Future<Output = Option<T>>>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let limit = scaled(limit);
    let begin = Instant::now();
    let mut step = STEP;
    loop {
        // Before the look: a pause of the machine after it has shown nothing to a product that
        // had no time either.
        let is_last = begin.elapsed() >= limit;
        if let Some(value) = look().await {
            return value;
        }
        assert!(!is_last, "waited {limit:?} for: {what}");
        pause(&mut step).await;
    }
}

/// Looks until `look` says true.
///
/// # Panics
/// After [`patience`]; `what` names the condition.
pub async fn until_true<F: Future<Output = bool>>(what: &str, mut look: impl FnMut() -> F) {
    until(what, || {
        let seen = look();
        async move { seen.await.then_some(()) }
    })
    .await;
}

/// Looks until `look` gives a value; `None` after [`patience`], for callers that report it.
pub async fn until_some<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    let mut step = STEP;
    loop {
        let is_last = begin.elapsed() >= patience();
        let value = look();
        if value.is_some() || is_last {
            return value;
        }
        pause(&mut step).await;
    }
}

/// Awaits a future for at most [`patience`].
///
/// # Panics
/// When the time is over; `what` names what was awaited.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let limit = patience();
    match tokio::time::timeout(limit, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {limit:?} for: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_is_a_number_above_zero() {
        let limit = Duration::from_secs(10);
        assert_eq!(multiplied(limit, "1"), Some(limit));
        assert_eq!(multiplied(limit, "2.5"), Some(Duration::from_secs(25)));
        assert_eq!(multiplied(limit, "0.5"), Some(Duration::from_secs(5)));
        for wrong in ["", "0", "-1", "NaN", "inf", "1e9", "two"] {
            assert_eq!(multiplied(limit, wrong), None, "{wrong}");
        }
    }
}
