//! Sockets and threads, for the doors that relay a protocol over TCP.

pub(crate) mod client_socket;
pub mod front;
