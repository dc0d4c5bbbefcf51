//! The time at which a certificate ends.

use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

/// A time after the end of every certificate: the year of one has four digits.
const AFTER_ALL: Duration = Duration::from_secs(1 << 40);

/// The end of a certificate in seconds since 1970; `None` if the certificate cannot be read.
///
/// rustls shows the times of a certificate in an error alone. The verification compares them before
/// it looks for an issuer, so one that is far in the future fails and names the end.
pub(super) fn not_after_seconds(certificate: &CertificateDer<'_>) -> Option<u64> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let after_all = UnixTime::since_unix_epoch(AFTER_ALL);
    let roots = RootCertStore::empty();
    match verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], after_all, &[]) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Some(not_after.as_secs())
        }
        _ => None,
    }
}
