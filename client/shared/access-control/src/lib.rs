//! Access control: bearer tokens, rights and limits of principals, and the audit log.
//!
//! An operator writes a file of principals, each with hashes of its bearer tokens, its rights
//! (verbs over prefixes of names) and its limits. [`AccessFlags::open`] makes a [`Gate`] of it, and
//! [`protect`] puts the gate around a router. Handlers take the [`Caller`] where they know more
//! than the path says: a name in the body, a lease that now counts.
//!
//! Rights, limits and the reading of the file are pure; only [`mod@file`] and [`audit`] touch the
//! disk.

pub mod audit;
mod caller;
pub mod file;
mod flags;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod gate;
mod layer;
mod ledger;
mod list;
mod rights;
pub mod secret;
mod sessions;

pub use caller::{Caller, Hold, Waiting};
pub use flags::AccessFlags;
pub use gate::{Gate, Need};
pub use layer::{RequestTarget, protect, protect_found};
pub use list::{AccessList, Limits, ListError, Principal};
pub use rights::{Grant, Pattern, Scope, Verb};
