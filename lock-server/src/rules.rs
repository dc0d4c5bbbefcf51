//! The lease rules: pure, without I/O, clock or runtime.
//!
//! [`Machine`] holds every lock of a namespace. Its caller says what time it is, in milliseconds of
//! a clock that never goes back, and carries out what comes back. That is why the same rules run in
//! the `memory` store, the `embedded` store and the tests' simulation.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod machine;
pub mod quorum;
mod record;
mod session;
mod takeover;
pub mod tokens;

pub use machine::{Delivery, Machine, Reply};
pub use record::{
    Closed, Ended, GroupId, Holder, Holders, Record, StoredClosed, StoredEnded, StoredHolder,
    StoredRecord, Waiter,
};
pub use session::{Session, StoredSession};
