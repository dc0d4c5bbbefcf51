//! Certificates in PEM.

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// Longer files of certificates are refused, in bytes: the bundle of a whole system has a quarter
/// of it.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// The certificates of a PEM file, at least one.
///
/// # Errors
/// The rest of a sentence that begins with the file.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
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
pub fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem)? {
        store
            .add(certificate)
            .map_err(|error| format!("holds a certificate that cannot be read: {error}"))?;
    }
    Ok(store)
}
