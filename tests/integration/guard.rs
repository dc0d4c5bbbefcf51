//! fenced-store's HTTP contract: in this process where no socket and no signal takes part.

mod bad_input;
mod change_of_store;
mod fences;
mod objects;
mod observe;
mod op_ids;
mod proxy;
mod slow_bodies;
mod stores;

use fence_tests::in_process::InProcess;
use fence_tests::servers::Setup;

/// A guard that forgets everything with the process; the contract is the same on each store.
async fn memory() -> InProcess {
    Setup::fenced_store("memory:").in_process().await
}
