//! HTTP interface: one verb a file, all routes in [`router`].

mod access;
pub(crate) mod body_budget;
mod delete;
pub(crate) mod download;
mod floor;
mod get;
pub mod handler_state;
mod lanes;
mod list;
mod put;
mod reply;
mod request;
pub mod router;
mod seal;
mod show;
mod stores;
mod terraform;
mod unread;
mod upload;

pub(crate) use access::need;
pub(crate) use request::{condition, owner};
pub(crate) use upload::Upload;

#[cfg(test)]
mod tests;
