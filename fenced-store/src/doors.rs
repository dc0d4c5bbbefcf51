//! The front doors of the guard: each reads requests of one protocol and passes them to
//! [`crate::guard::Guard`] or, under its registrations and scripts, to Redis. What several doors
//! have is in [`http`] and [`tcp`].

pub mod http;
pub mod http_proxy;
pub mod objects;
pub mod postgres;
pub mod redis;
pub mod tcp;
