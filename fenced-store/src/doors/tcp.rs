//! Sockets, for the doors that relay a protocol over TCP.

pub(crate) mod client_socket;
