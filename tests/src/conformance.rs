//! One suite a store trait: what every implementation must do, as functions over the trait.
//!
//! A suite's cases use lock names and keys of their own, so that they can share one store.

pub mod fence_store;
pub mod lock_store;
pub mod record_store;
