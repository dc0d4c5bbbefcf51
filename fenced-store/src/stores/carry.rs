//! Marks of an earlier store, carried into the store that takes its place.

use std::time::Duration;

use fence_protocol::{Namespace, Token};
use service_kit::Kit;

use super::contract::{FenceQuery, FenceStore, StoreError};
use super::open::{self, OpenError, StoreUrl};
use super::redis::RedisOptions;
use crate::verdict::Fence;

/// Marks read in one step.
const PAGE: usize = 1_000;

/// Longest time for the earlier store to close.
const CLOSE: Duration = Duration::from_secs(5);

/// Failure to carry the marks over; marks carried before it stay.
#[derive(Debug, thiserror::Error)]
pub enum CarryError {
    /// The earlier store cannot be opened or used.
    #[error("--marks-from {0}: {1}")]
    Earlier(String, OpenError),
    /// A store failed under way.
    #[error("--marks-from {0}: a mark could not be carried over: {1}; start the guard again")]
    Store(String, StoreError),
    /// The earlier store refuses every token below a floor, and the new one cannot.
    #[error(
        "--marks-from {0} refuses every token below {1}, whatever the lock, and the new store keeps \
         no such floor; choose a Redis as --store"
    )]
    Floor(String, Token),
    /// The earlier store holds no mark, so it is hardly the one that was meant.
    #[error(
        "--marks-from {0} has no marks of namespace {1}; name the store and the namespace of the \
         earlier guard, or leave the flag out"
    )]
    Empty(String, Namespace),
}

/// Raises the marks and the floor of `store` to those of the store at `url`, whose guards must have
/// stopped. Returns the number of marks. It may be repeated: marks and floors only rise.
///
/// # Errors
/// [`CarryError`].
pub async fn carry_marks(
    url: &StoreUrl,
    store: &dyn FenceStore,
    namespace: &Namespace,
) -> Result<usize, CarryError> {
    // Its checks and connections are none of the guard's, and end here.
    let kit = Kit::new("fenced-store");
    let carried = carry(url, store, namespace, &kit).await;
    kit.tasks.begin_shutdown();
    kit.tasks.drained(CLOSE).await;
    carried
}

async fn carry(
    url: &StoreUrl,
    store: &dyn FenceStore,
    namespace: &Namespace,
    kit: &Kit,
) -> Result<usize, CarryError> {
    let opened = open::open(url, namespace, RedisOptions::default(), kit).await;
    let earlier = opened.map_err(|error| CarryError::Earlier(url.to_string(), error))?.store;
    let failed = |error| CarryError::Store(url.to_string(), error);
    let mut query = FenceQuery { limit: PAGE, ..FenceQuery::default() };
    let mut count = 0;
    let mut highest = None;
    loop {
        let page = earlier.list(query.clone()).await.map_err(failed)?;
        query.after = page.fences.last().map(|(lock, _)| lock.clone());
        count += page.fences.len();
        for (lock, presented) in page.fences {
            highest = highest.max(Some(presented.token));
            store.seal(Fence { lock, presented }).await.map_err(failed)?;
        }
        if !page.more {
            break;
        }
    }
    // A floor, or a mark that is lost: lower tokens of any lock were refused.
    let floor = earlier.highest_mark().await.map_err(failed)?;
    match floor.filter(|floor| Some(*floor) > highest) {
        Some(floor) => match store.set_floor(floor).await.map_err(failed)? {
            Some(_) => Ok(count),
            None => Err(CarryError::Floor(url.to_string(), floor)),
        },
        None if count == 0 => Err(CarryError::Empty(url.to_string(), namespace.clone())),
        None => Ok(count),
    }
}
