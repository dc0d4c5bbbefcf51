//! The client side of HTTP over TLS, for the SDK and both servers: addresses of servers, the
//! certificates that are trusted and presented, and errors that say what to do.

mod bounded_file;
mod explanation;
pub mod pem;
mod server_url;
mod tls_options;

pub use bounded_file::{read_bounded, read_text};
pub use server_url::ServerUrl;
pub use tls_options::{TlsClient, TlsOptions, TlsSettingNames, TlsStream};

/// Makes the one implementation of cryptography that is built in the process' default. Call it
/// before making a TLS configuration, or an HTTP client that may speak TLS; any call after the
/// first does nothing.
pub fn install_crypto() {
    // Fails if the program has installed a provider already, which is then used.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
