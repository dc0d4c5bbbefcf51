//! Bodies, and headers of the guard, for the doors that speak HTTP.

pub(crate) mod body_budget;
pub(crate) mod download;
pub mod handler_state;
pub(crate) mod headers;
pub(crate) mod unread;
pub(crate) mod upload;
