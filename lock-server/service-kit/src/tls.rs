//! What all TLS connections share.

/// Makes the one implementation of cryptography that is built in the process' default. Whoever makes
/// a TLS configuration, or an HTTP client that may speak TLS, calls it first; any call after the
/// first does nothing.
pub fn install_crypto() {
    // It fails where one is there already, which is what is wanted.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
