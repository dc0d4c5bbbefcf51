//! Sealing guards: before a lease is revoked, and, where `--seal` says so, when a lock is granted.
//!
//! The choices are in docs/decisions/0034-revocation-and-sealing.md.

mod after_grant;
pub(crate) mod revoke;
mod seal;
mod sealed_grants;
mod sealer;

pub use self::after_grant::SealMode;
pub(crate) use self::after_grant::{NotSealed, Seals};
pub use self::revoke::Unsealed;
pub(crate) use self::sealer::Sealer;
