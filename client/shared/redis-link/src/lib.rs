//! One owned connection to one Redis: verified before it is used, never replayed.
//!
//! A connection that broke is replaced by this module and by nothing else. Before a new one carries
//! a single command, the caller's [`Verifier`] checks the process behind it (is it the Redis of
//! before, has it lost its memory?) and only then loads the scripts. Redis 7 neither persists nor
//! replicates loaded scripts, so a `NOSCRIPT` reply is a second witness of a process that is not
//! verified: the connection is verified again, and the command, which `NOSCRIPT` proves was not
//! run, is sent once more, unless its caller says that it would come too late by then.
//!
//! Commands of many callers share the connection. Commands that wait at the same moment leave in
//! one write (the multiplexer of the `redis` crate drains its queue before it flushes), so a busy
//! server costs Redis less than as many direct clients, and an idle one never waits for a batch to
//! fill.

mod access;
mod cluster;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod link;
mod product;
mod script;
mod sentinel;
mod slots;
mod target;
mod url;
mod value;

pub use cluster::ClusterTarget;
pub use link::{LinkError, LinkOptions, LinkState, LocalLinks, Pinned, RedisLink, Verifier};
pub use product::Product;
pub use script::{Script, load_scripts, plain};
pub use slots::{SLOTS, SlotRange, slot_of};
pub use target::RedisTarget;
pub use url::TargetError;
pub use value::{info_field, text_fields};
