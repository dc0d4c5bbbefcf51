//! lock-server's HTTP contract: in this process where no socket and no signal takes part.

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
mod segments;
mod sessions;
mod site;
mod takeover;
mod terraform;
mod waiting;
mod witness;

use fence_tests::in_process::InProcess;
use fence_tests::servers::Setup;

/// A lock-server that forgets everything with the process; the contract is the same on each store.
async fn memory() -> InProcess {
    Setup::lock_server("memory:").in_process().await
}
