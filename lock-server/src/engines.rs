//! Engines that keep leases, each in a folder: five keep records for the driver ([`contract`]), and
//! the quorum is a store of its own.

pub mod contract;
pub mod embedded;
pub mod etcd;
pub mod guarantee;
pub mod loss;
pub mod memory;
pub mod open;
pub mod options;
pub mod postgres;
pub mod quorum;
pub mod redis;
pub(crate) mod shared;

pub use self::open::open;
