//! The engines that the campaign hurts, a file each: what they are started as, and what is done to
//! them.

pub mod cluster;
pub mod etcd;
pub mod quorum;
pub mod redis;
pub mod sentinel;
