//! A grant from the engine's reply until its client has it: guards are sealed where `--seal` says
//! so, and a grant that no client can use is rolled back.
//!
//! The choices are in docs/decisions/0034-revocation-and-sealing.md.

pub mod after_grant;
pub(crate) mod returned;
pub(crate) mod sealed;
mod sealed_grants;
pub(crate) mod undelivered;

use std::sync::Arc;

use service_kit::Kit;

use self::after_grant::Seals;
use crate::store::LockStore;

/// Grants of a store on their way to clients.
#[derive(Debug)]
pub(crate) struct Grants {
    pub(crate) store: Arc<dyn LockStore>,
    pub(crate) seals: Seals,
    pub(crate) kit: Kit,
}
