//! The words that every part of Fencepost shares: tokens, lock names, leases, the `Fencing-Token`
//! header with its signature, and the types that travel as JSON.
//!
//! This crate does no I/O, reads no clock and needs no runtime. A value that exists is valid: every
//! type checks its input where it is made, and [`Invalid`] says which value was refused and why.

pub mod credential;
pub mod duration;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod header;
pub mod ids;
mod invalid;
pub mod lock_name;
pub mod owner;
pub mod problem;
#[cfg(feature = "schema")]
mod schema;
pub mod signing;
pub mod terraform;
mod text;
pub mod token;
pub mod trace;
pub mod ttl;
pub mod wire;

pub use header::{
    FENCING_GUARANTEE, FENCING_MARK, FENCING_TOKEN, FencingToken, IDEMPOTENCY_KEY,
    IDEMPOTENCY_REPLAYED,
};
pub use ids::{LeaseId, SessionId};
pub use invalid::Invalid;
pub use lock_name::LockName;
pub use owner::{KeyId, Namespace, Owner};
pub use problem::{Code, Problem};
pub use signing::{Keyring, SignatureError};
pub use token::Token;
pub use trace::{TRACEPARENT, TraceContext};
pub use ttl::Ttl;
