//! Marks of an earlier store, carried into the store that takes its place.

use fence_protocol::Namespace;
use service_kit::Kit;

use super::redis::RedisOptions;
use super::{FenceQuery, FenceStore, OpenError, StoreError, StoreUrl, open};
use crate::verdict::Fence;

/// Marks read in one step.
const PAGE: usize = 1_000;

/// Failure to carry the marks over; marks carried before it stay.
#[derive(Debug, thiserror::Error)]
pub enum CarryError {
    /// The earlier store cannot be opened or used.
    #[error("--marks-from {0}: {1}")]
    Earlier(String, OpenError),
    /// A store failed under way.
    #[error("--marks-from {0}: a mark could not be carried over: {1}; start the guard again")]
    Store(String, StoreError),
    /// The earlier store holds no mark, so it is hardly the one that was meant.
    #[error(
        "--marks-from {0} has no marks of namespace {1}; name the store and the namespace of the \
         earlier guard, or leave the flag out"
    )]
    Empty(String, Namespace),
}

/// Raises the marks of `store` to those of the store at `url`, whose guards must have stopped.
/// Returns their number. It may be repeated: a mark only rises.
///
/// # Errors
/// [`CarryError`].
pub async fn carry_marks(
    url: &StoreUrl,
    store: &dyn FenceStore,
    namespace: &Namespace,
    kit: &Kit,
) -> Result<usize, CarryError> {
    let opened = open(url, namespace, RedisOptions::default(), kit).await;
    let earlier = opened.map_err(|error| CarryError::Earlier(url.to_string(), error))?.store;
    let failed = |error| CarryError::Store(url.to_string(), error);
    let mut query = FenceQuery { limit: PAGE, ..FenceQuery::default() };
    let mut count = 0;
    loop {
        let page = earlier.list(query.clone()).await.map_err(failed)?;
        query.after = page.fences.last().map(|(lock, _)| lock.clone());
        count += page.fences.len();
        for (lock, presented) in page.fences {
            store.seal(Fence { lock, presented }).await.map_err(failed)?;
        }
        match (page.more, count) {
            (true, _) => {}
            (false, 0) => return Err(CarryError::Empty(url.to_string(), namespace.clone())),
            (false, count) => return Ok(count),
        }
    }
}
