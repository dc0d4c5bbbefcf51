//! lock-server's HTTP contract, over a real process.

mod acquire;
mod bad_input;
mod endings;
mod events;
pub(crate) mod guards;
mod kinds;
mod lock_delay;
mod reading;
mod revoke;
mod revoke_reports;
mod seal;
mod sessions;
mod site;
mod takeover;
mod terraform;
mod waiting;
mod witness;

use fence_tests::servers::{Server, Setup};

/// A lock-server that forgets everything with the process; the contract is the same on each store.
pub(crate) async fn memory() -> Server {
    Setup::lock_server("memory:").start().await
}
