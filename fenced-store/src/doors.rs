//! The front doors of the guard: each reads requests of one protocol and passes them to
//! [`crate::service::Guard`] or, under its registrations and scripts, to Redis.

pub mod http_proxy;
pub mod objects;
pub mod redis;
