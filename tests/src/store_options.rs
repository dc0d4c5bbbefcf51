//! Options of a store in tests: limits that a busy machine keeps.

use lock_server::engines::options::StoreOptions;
use redis_link::LinkOptions;

use crate::wait::patience;

/// Options for a test in which no server, node or network fails: whatever is behind the store has
/// as long as the test itself waits.
pub fn patient() -> StoreOptions {
    StoreOptions { link: patient_link(), ..StoreOptions::default() }
}

/// The connections of [`patient`].
pub fn patient_link() -> LinkOptions {
    LinkOptions { connect_timeout: patience(), reply_timeout: patience(), ..LinkOptions::default() }
}
