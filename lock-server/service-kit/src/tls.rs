//! TLS: cryptography, certificate files, and both sides of a connection.

mod client;
mod expiry;
mod figures;
mod handshakes;
mod server;
mod server_files;
mod watch;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

pub use client::{TlsClient, TlsOptions, TlsStream};
pub use server::{ClientNames, ServerTls, ServerTlsStream};
pub use server_files::{ClientAuth, ServerTlsFiles};

/// Longer files of certificates are refused, in bytes: the bundle of a whole system has a quarter
/// of it.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Makes the one implementation of cryptography that is built in the process' default. Call it
/// before making a TLS configuration, or an HTTP client that may speak TLS; any call after the
/// first does nothing.
pub fn install_crypto() {
    // It fails where one is there already, which is what is wanted.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The certificates of a PEM file, at least one.
///
/// # Errors
/// The rest of a sentence that begins with the file.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err("holds no certificate (PEM, -----BEGIN CERTIFICATE-----)".to_owned()),
        Err(error) => Err(format!("holds a certificate that cannot be read: {error}")),
    }
}

/// The certificates of a PEM file, as those of CAs.
///
/// # Errors
/// As [`certificates`].
fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem)? {
        store
            .add(certificate)
            .map_err(|error| format!("holds a certificate that cannot be read: {error}"))?;
    }
    Ok(store)
}
