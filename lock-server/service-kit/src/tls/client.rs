//! TLS connections to stores and servers: whom to trust, what to show, error texts.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
pub use tokio_rustls::client::TlsStream;

use super::{FILE_BYTES_MAX, certificates, install_crypto, roots};
use crate::bounded_file::read_bounded;

/// Whom a client trusts, and what it shows itself: what was read of files, and found to be usable.
///
/// Its `Debug` shows none of it.
#[derive(Clone, Default)]
pub struct TlsOptions {
    ca: Option<Arc<[u8]>>,
    client: Option<Arc<ClientPem>>,
}

/// A client's certificate with what leads to its CA, and its key: PEM.
struct ClientPem {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl TlsOptions {
    /// Trusts the certificates of this file alone, instead of those of the system.
    ///
    /// # Errors
    /// A sentence that begins with the file, where it cannot be read or holds no certificate.
    pub fn with_ca(mut self, file: &Path) -> Result<Self, String> {
        let pem = read_bounded(file, FILE_BYTES_MAX)?;
        roots(&pem).map_err(|why| format!("{} {why}", file.display()))?;
        self.ca = Some(pem.into());
        Ok(self)
    }

    /// Shows this certificate to a server that asks for one.
    ///
    /// # Errors
    /// A sentence that begins with the file, where one of the two cannot be read or used, or they
    /// do not belong together.
    pub fn with_client(mut self, certificate: &Path, key: &Path) -> Result<Self, String> {
        let pem = ClientPem {
            certificate: read_bounded(certificate, FILE_BYTES_MAX)?,
            key: read_bounded(key, FILE_BYTES_MAX)?,
        };
        let chain = certificates(&pem.certificate)
            .map_err(|why| format!("{} {why}", certificate.display()))?;
        let secret = PrivateKeyDer::from_pem_slice(&pem.key).map_err(|_| {
            format!("{} holds no private key (PEM, -----BEGIN PRIVATE KEY-----)", key.display())
        })?;
        install_crypto();
        rustls::ClientConfig::builder()
            .with_root_certificates(RootCertStore::empty())
            .with_client_auth_cert(chain, secret)
            .map_err(|error| {
                format!("{} does not go with {}: {error}", key.display(), certificate.display())
            })?;
        self.client = Some(Arc::new(pem));
        Ok(self)
    }

    /// A client for servers that speak this protocol over TLS, as ALPN names it.
    ///
    /// # Errors
    /// A sentence where the certificates cannot be used.
    pub fn client(&self, protocol: &[u8]) -> Result<TlsClient, String> {
        install_crypto();
        let roots = match &self.ca {
            Some(pem) => roots(pem).map_err(|why| format!("--store-ca {why}"))?,
            None => system_roots(),
        };
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let mut config = match &self.client {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let unusable =
                    |why: String| format!("--store-cert and --store-key cannot be used: {why}");
                let chain = certificates(&pem.certificate).map_err(unusable)?;
                let key = PrivateKeyDer::from_pem_slice(&pem.key);
                let key = key.map_err(|error| unusable(error.to_string()))?;
                let builder = builder.with_client_auth_cert(chain, key);
                builder.map_err(|error| unusable(error.to_string()))?
            }
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(TlsClient { connector: TlsConnector::from(Arc::new(config)) })
    }

    /// True if nothing was read: the system's certificates are trusted, and none is shown.
    pub fn is_default(&self) -> bool {
        self.ca.is_none() && self.client.is_none()
    }

    /// The certificates that are trusted instead of the system's, PEM.
    pub fn ca_pem(&self) -> Option<&[u8]> {
        self.ca.as_deref()
    }

    /// The client's certificate and key, PEM.
    pub fn client_pem(&self) -> Option<(&[u8], &[u8])> {
        self.client.as_deref().map(|pem| (&*pem.certificate, &*pem.key))
    }

    /// Explains a TLS error and what to do, as the rest of a sentence about the server at `host`;
    /// `None` if `error` is no TLS error.
    pub fn explain(&self, error: &(dyn Error + 'static), host: &str) -> Option<String> {
        Some(match cause(error)? {
            rustls::Error::InvalidCertificate(why) => self.explain_certificate(why, host),
            rustls::Error::AlertReceived(alert) => self.explain_alert(*alert),
            rustls::Error::InvalidMessage(_) => {
                "it does not answer in TLS; if this port is a plain one, write redis:// in place \
                 of rediss://"
                    .to_owned()
            }
            other => format!("TLS failed: {other}"),
        })
    }

    fn explain_certificate(&self, why: &CertificateError, host: &str) -> String {
        match why {
            // Of two CAs with one name, the other one's key has signed it.
            CertificateError::UnknownIssuer | CertificateError::BadSignature
                if self.ca.is_some() =>
            {
                "its certificate is not signed by the CA of --store-ca; name the file of the CA \
                 that signed it"
                    .to_owned()
            }
            CertificateError::UnknownIssuer => {
                "its certificate is signed by a CA that this system does not know; name the file \
                 of that CA with --store-ca"
                    .to_owned()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!(
                    "its certificate is for other names than {host}; use a name in the URL that \
                     the certificate has, or give the server one that has this name"
                )
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired; give the server a new one, or look at this machine's \
                 clock"
                    .to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet; look at this machine's clock".to_owned()
            }
            other => format!("its certificate cannot be used: {other}"),
        }
    }

    fn explain_alert(&self, alert: AlertDescription) -> String {
        match self.client {
            None => format!(
                "it broke TLS off ({alert:?}): it probably wants a client certificate; name one \
                 with --store-cert and --store-key"
            ),
            Some(_) => format!(
                "it does not take the certificate of --store-cert ({alert:?}); name one that is \
                 signed by the CA that the server trusts"
            ),
        }
    }
}

/// Makes TLS connections to servers of one kind. Cheap to clone.
#[derive(Clone)]
pub struct TlsClient {
    pub(super) connector: TlsConnector,
}

impl TlsClient {
    /// Speaks TLS on a connection to `host`, which the server's certificate must name: a name, or
    /// an address, in brackets or without.
    ///
    /// # Errors
    /// An error of I/O; what is wrong with a certificate is its cause.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(bare.to_owned()).map_err(io::Error::other)?;
        self.connector.connect(name, stream).await
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ca = self.ca.is_some();
        let client = self.client.is_some();
        f.debug_struct("TlsOptions").field("has_ca", &ca).field("has_client", &client).finish()
    }
}

/// The error of rustls, among the causes of an error.
fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // The source of an error that wraps another is the source of what it wraps, and not that
        // itself.
        next = if let Some(shared) = error.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
            Some(&**shared)
        } else if let Some(wrapped) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref)
        {
            Some(wrapped)
        } else {
            error.source()
        };
    }
    None
}

/// The certificates that this system trusts, as far as they can be read.
fn system_roots() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    if !found.errors.is_empty() {
        tracing::debug!(errors = ?found.errors, "some certificates of this system are not read");
    }
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(found.certs);
    store
}
