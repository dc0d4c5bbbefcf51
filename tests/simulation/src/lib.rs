//! Lock servers in a simulation: the real driver, waiters, sessions and HTTP handlers run on one
//! thread and on simulated time, over records that fail in every way that an engine may fail.
//!
//! All random choices come from one seed, so a seed is a history: `simulate --seed 7` replays it to
//! the byte. The [audit] compares every commit and every reply with the promises of
//! docs/reference/guarantees.md; docs/internals/testing.md says how to run it and how to add a
//! fault.
//!
//! | file | role |
//! | --- | --- |
//! | `run.rs` | one seed: servers, clients and faults for 60 simulated seconds |
//! | `records.rs`, `store.rs` | [`SimRecords`]: record engine behind a bad network |
//! | `faults.rs` | how often what fails, drawn from the seed |
//! | `server.rs`, `client.rs` | processes that restart; clients that hang up, retry and stall |
//! | `audit.rs`, `audit/` | the invariants, over commits and over replies |
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "this crate is test code: it panics on failure, prints how to replay, and owns the \
              simulated clock and tasks"
)]

pub mod audit;
mod client;
pub mod clock;
mod faults;
mod records;
mod run;
pub mod seed;
mod server;
mod store;

pub use records::SimRecords;
pub use run::{History, run};
