//! HTTP interface: one verb a file, all routes in [`router`].

pub(crate) mod access;
mod delete;
mod floor;
mod get;
mod lanes;
mod list;
mod put;
mod reply;
pub(crate) mod request;
pub mod router;
mod seal;
mod show;
mod stores;
mod terraform;

#[cfg(test)]
mod tests;
