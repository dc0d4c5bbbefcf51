//! TLS: cryptography, certificate files, and connections.

pub use https_client::{
    ServerUrl, TlsClient, TlsOptions, TlsSettingNames, TlsStream, install_crypto,
};
