//! Leases over HTTP, each with a token that strictly rises.

pub mod rules;
pub mod store;
