//! A client that trusts one certificate: that of the server with the same settings.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio_rustls::TlsConnector;

use super::client::TlsClient;
use super::{FILE_BYTES_MAX, certificates, install_crypto};
use crate::bounded_file::read_bounded;

/// A client for the server with this certificate, whatever its names and its time are. It shows the
/// same certificate where the server asks for one.
///
/// # Errors
/// A sentence with the file that cannot be used.
pub(crate) fn own_client(certificate: &Path, key: &Path) -> Result<TlsClient, String> {
    install_crypto();
    let pem = read_bounded(certificate, FILE_BYTES_MAX)?;
    let chain = certificates(&pem).map_err(|why| format!("{} {why}", certificate.display()))?;
    let unusable = |error: String| format!("{} cannot be used: {error}", key.display());
    let key = PrivateKeyDer::from_pem_slice(&read_bounded(key, FILE_BYTES_MAX)?)
        .map_err(|error| unusable(error.to_string()))?;
    let verifier = OneCertificate {
        certificate: chain.first().cloned(),
        algorithms: ring::default_provider().signature_verification_algorithms,
    };
    let config = ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, key)
        .map_err(|error| unusable(error.to_string()))?;
    Ok(TlsClient { connector: TlsConnector::from(Arc::new(config)) })
}

#[derive(Debug)]
struct OneCertificate {
    certificate: Option<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for OneCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.certificate.as_ref() == Some(end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
