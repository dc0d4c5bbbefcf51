//! A grant from the engine's reply until its client has it: guards are sealed where `--seal` says
//! so, and a grant that no client can use is rolled back.
//!
//! The choices are in docs/decisions/0034-revocation-and-sealing.md.

pub mod after_grant;
pub(crate) mod returned;
pub(crate) mod sealed;
mod sealed_grants;
pub(crate) mod undelivered;
