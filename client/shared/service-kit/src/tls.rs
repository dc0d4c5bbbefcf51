//! TLS: cryptography, certificate files, and both sides of a connection.

mod expiry;
mod figures;
mod handshakes;
mod server;
mod server_files;
mod watch;

pub use https_client::{
    ServerUrl, TlsClient, TlsOptions, TlsSettingNames, TlsStream, install_crypto,
};
pub use server::{ClientNames, ServerTls, ServerTlsStream};
pub use server_files::{ClientAuth, ServerTlsFiles};
