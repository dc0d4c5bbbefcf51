//! Memory limit of all bodies together.
//!
//! Received bytes count, not the stated length, so that a slow sender with a large length takes
//! nothing from the others. Small bodies have a share of their own and never wait for a large one.
//! Begun bodies come first: a large one is admitted only while there is room for all of it. When no
//! memory is left, one body waits for more and the others are refused, which frees memory for the
//! first.

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::Code;
use service_kit::problem::Reject;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Unit of memory, in bytes.
const UNIT_BYTES: usize = 4096;
/// Maximum size of a small body, in bytes.
const SMALL_BYTES: usize = 64 * 1024;
/// Time limit of waiting for memory.
const WAIT: Duration = Duration::from_secs(5);

/// Memory for bodies. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct BodyBudget {
    small: Arc<Pool>,
    large: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    units: Arc<Semaphore>,
    /// Held by the one body that has memory and waits for more.
    turn: Semaphore,
    freed: Notify,
}

impl Pool {
    fn new(bytes: usize) -> Arc<Self> {
        let units = Arc::new(Semaphore::new(units(bytes) as usize));
        Arc::new(Self { units, turn: Semaphore::new(1), freed: Notify::new() })
    }

    /// Waits until there is room for `bytes`, without taking it.
    async fn room(&self, bytes: usize) {
        loop {
            let freed = self.freed.notified();
            if self.units.available_permits() >= units(bytes) as usize {
                return;
            }
            freed.await;
        }
    }

    async fn take(&self, units: u32, is_begun: bool) -> Result<OwnedSemaphorePermit, Reject> {
        if let Ok(taken) = Arc::clone(&self.units).try_acquire_many_owned(units) {
            return Ok(taken);
        }
        let turn = if is_begun { Some(self.turn.try_acquire()) } else { None };
        if matches!(turn, Some(Err(_))) {
            return Err(exhausted());
        }
        let taken = Arc::clone(&self.units).acquire_many_owned(units);
        let taken = tokio::time::timeout(WAIT, taken).await.ok().and_then(Result::ok);
        taken.ok_or_else(exhausted)
    }
}

impl BodyBudget {
    /// Makes a budget of `bytes` for all bodies, a quarter of it for small ones. A body of
    /// `max_object_bytes` always fits.
    pub(crate) fn new(bytes: usize, max_object_bytes: usize) -> Self {
        let small = (bytes / 4).max(SMALL_BYTES);
        let large = bytes.saturating_sub(small).max(max_object_bytes);
        Self { small: Pool::new(small), large: Pool::new(large) }
    }

    /// Begins a body of unknown size, without a wait.
    pub(crate) fn small(&self) -> Memory {
        Memory { budget: self.clone(), is_large: false, held: None }
    }

    /// Begins a body of a stated or unknown size.
    ///
    /// # Errors
    /// 429 if there is no room within the time limit.
    pub(crate) async fn begin(&self, stated_bytes: Option<usize>) -> Result<Memory, Reject> {
        let is_large = stated_bytes.is_some_and(|bytes| bytes > SMALL_BYTES);
        if let Some(bytes) = stated_bytes.filter(|_| is_large) {
            let room = tokio::time::timeout(WAIT, self.large.room(bytes)).await;
            room.map_err(|_| exhausted())?;
        }
        Ok(Memory { budget: self.clone(), is_large, held: None })
    }
}

/// Memory of one body, until this is dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    budget: BodyBudget,
    is_large: bool,
    held: Option<OwnedSemaphorePermit>,
}

impl Memory {
    /// Takes memory until `bytes` of the body are covered. A body of unknown size that outgrows the
    /// small ones moves to the share of the large ones.
    ///
    /// # Errors
    /// 429 if there is none within the time limit.
    pub(crate) async fn cover(&mut self, bytes: usize) -> Result<(), Reject> {
        let (pool, missing) = self.missing(bytes);
        if missing > 0 {
            let more = pool.take(missing, self.held.is_some()).await?;
            self.add(more, bytes);
        }
        Ok(())
    }

    /// Takes memory as [`cover`](Self::cover) does, if there is some now; `false` otherwise.
    pub(crate) fn try_cover(&mut self, bytes: usize) -> bool {
        let (pool, missing) = self.missing(bytes);
        let more = Arc::clone(&pool.units).try_acquire_many_owned(missing);
        more.map(|more| self.add(more, bytes)).is_ok()
    }

    /// Returns `true` if a body of this size has outgrown the share of small ones.
    fn moves(&self, bytes: usize) -> bool {
        !self.is_large && bytes > SMALL_BYTES
    }

    /// Returns the missing units for a body of this size, and their pool.
    fn missing(&self, bytes: usize) -> (&Pool, u32) {
        if self.moves(bytes) {
            return (&self.budget.large, units(bytes));
        }
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        (self.pool(), units(bytes).saturating_sub(u32::try_from(held).unwrap_or(u32::MAX)))
    }

    /// Adds the missing units for a body of this size.
    fn add(&mut self, more: OwnedSemaphorePermit, bytes: usize) {
        if self.moves(bytes) {
            self.release();
            self.is_large = true;
        }
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
    }

    fn pool(&self) -> &Pool {
        if self.is_large { &self.budget.large } else { &self.budget.small }
    }

    fn release(&mut self) {
        drop(self.held.take());
        self.pool().freed.notify_waiters();
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.release();
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX >> 4)
}

fn exhausted() -> Reject {
    let detail = "too many bodies are being received or sent at the same time";
    Reject::new(Code::LimitReached, detail).retry_after(1)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const MIB: usize = 1 << 20;

    /// Budget of 4 MiB, of which 1 MiB is for small bodies.
    fn budget() -> BodyBudget {
        BodyBudget::new(4 * MIB, MIB)
    }

    #[tokio::test]
    async fn what_was_announced_takes_nothing() {
        let budget = budget();
        let mut begun = Vec::new();
        for _ in 0..200 {
            let mut memory = budget.begin(Some(MIB)).await.unwrap();
            memory.cover(1).await.unwrap();
            begun.push(memory);
        }
        let mut whole = budget.begin(Some(MIB)).await.unwrap();
        whole.cover(MIB).await.unwrap();
    }

    #[tokio::test]
    async fn small_bodies_pass_full_large_ones() {
        let budget = budget();
        let mut full = Vec::new();
        for _ in 0..3 {
            let mut memory = budget.begin(Some(MIB)).await.unwrap();
            memory.cover(MIB).await.unwrap();
            full.push(memory);
        }
        let mut unknown = budget.begin(None).await.unwrap();
        unknown.cover(SMALL_BYTES).await.unwrap();
        // It outgrows the share of small bodies, and no other memory is left.
        assert!(unknown.cover(MIB).now_or_never().is_none(), "it waits");
        assert!(budget.begin(Some(MIB)).now_or_never().is_none(), "it waits");
        for _ in 0..10 {
            let mut small = budget.begin(Some(100)).await.unwrap();
            small.cover(100).await.unwrap();
        }
        full.pop();
        assert!(budget.begin(Some(MIB)).await.is_ok());
    }

    #[tokio::test]
    async fn one_waits_for_more_and_the_others_make_room() {
        let budget = budget();
        let mut begun = Vec::new();
        for _ in 0..6 {
            let mut memory = budget.begin(None).await.unwrap();
            memory.cover(MIB / 2).await.unwrap();
            begun.push(memory);
        }
        let mut second = begun.pop().unwrap();
        let mut first = begun.pop().unwrap();
        let waits = async { first.cover(MIB).await };
        let refused = async {
            tokio::task::yield_now().await;
            let outcome = second.cover(MIB).await;
            drop(second);
            outcome
        };
        let (waited, refused) = tokio::join!(waits, refused);
        assert!(waited.is_ok() && refused.is_err(), "{waited:?} {refused:?}");
    }

    #[tokio::test]
    async fn one_object_of_the_largest_size_always_fits() {
        let budget = BodyBudget::new(1, MIB);
        budget.begin(Some(MIB)).await.unwrap().cover(MIB).await.unwrap();
        budget.begin(Some(10)).await.unwrap().cover(10).await.unwrap();
    }
}
