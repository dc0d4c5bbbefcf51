//! fenced-store's HTTP contract, over a real process.

mod bad_input;
mod change_of_store;
mod fences;
mod objects;
mod observe;
mod op_ids;
mod proxy;
mod slow_bodies;
mod stores;

use fence_tests::servers::{Server, Setup};

/// A guard that forgets everything with the process; the contract is the same on each store.
pub(crate) async fn memory() -> Server {
    Setup::fenced_store("memory:").start().await
}
