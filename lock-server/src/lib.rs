//! Leases over HTTP, each with a token that strictly rises.
//!
//! Invariants (docs/reference/guarantees.md says what each costs and where it ends):
//! - L1 per lock, every token is greater than every token issued before it;
//! - L2 at most one live lease a lock, or those whose kind lets them share it, as the store's clock
//!   sees it;
//! - L3 one lease id, one grant;
//! - L4 nothing acknowledged is forgotten by a restart of this server;
//! - L5 where the store's memory may have been lost, no token is issued until L1 is certain again.
//!
//! The package [`lease`] has the rules, pure; [`api`] parses, calls the [`store`] and renders;
//! [`driver`] decides by the rules on the records that [`engines`] keep; [`grants`] are on their
//! way to clients; [`app`] puts it together.

pub mod api;
pub mod app;
pub mod config;
mod counters;
pub mod driver;
pub mod engines;
pub mod events;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod grants;
pub mod guards;
pub mod prefixes;
pub mod process;
mod signer;
pub mod store;
mod ui;
