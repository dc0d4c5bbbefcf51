//! Fuzz targets of the Redis port.

pub(crate) use super::cluster::fuzz::replies as cluster_replies;
pub(crate) use super::commands::fuzz::commands;
pub(crate) use super::resp::fuzz::{replies, requests};
