//! Leases in a quorum of independent Redis nodes.

pub mod replies;
pub mod scripts;
