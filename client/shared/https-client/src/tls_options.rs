//! The certificates that a client trusts, and the one that it presents.

use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
pub use tokio_rustls::client::TlsStream;

use crate::pem::{FILE_BYTES_MAX, certificates, roots};
use crate::{install_crypto, read_bounded};

/// Names of the settings that [`TlsOptions`] were read from, for error texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsSettingNames {
    /// The file of the CA.
    pub ca: &'static str,
    /// The file of the client's certificate.
    pub certificate: &'static str,
    /// The file of its private key.
    pub key: &'static str,
}

impl Default for TlsSettingNames {
    fn default() -> Self {
        Self {
            ca: "TlsOptions::with_ca",
            certificate: "TlsOptions::with_client",
            key: "TlsOptions::with_client",
        }
    }
}

/// The certificates that a client trusts, by default those of the system, and the one that it
/// presents, by default none. Files are read, and checked, when they are named.
///
/// Its `Debug` shows none of it.
#[derive(Clone, Default)]
pub struct TlsOptions {
    pub(crate) names: TlsSettingNames,
    ca: Option<Arc<[u8]>>,
    client: Option<Arc<ClientPem>>,
}

/// A client's certificate with its chain, and its key: PEM.
struct ClientPem {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl TlsOptions {
    /// Reads the files that the settings of these names give.
    ///
    /// # Errors
    /// A sentence that names the setting and the file, if one cannot be used, or a certificate is
    /// named without its key.
    pub fn read(
        names: TlsSettingNames,
        ca: Option<&Path>,
        certificate: Option<&Path>,
        key: Option<&Path>,
    ) -> Result<Self, String> {
        let TlsSettingNames { ca: ca_name, certificate: certificate_name, key: key_name } = names;
        let mut tls = Self { names, ..Self::default() };
        if let Some(file) = ca {
            tls = tls.with_ca(file).map_err(|error| format!("{ca_name}: {error}"))?;
        }
        match (certificate, key) {
            (None, None) => Ok(tls),
            (Some(certificate), Some(key)) => tls
                .with_client(certificate, key)
                .map_err(|error| format!("{certificate_name} and {key_name}: {error}")),
            (Some(_), None) => Err(format!(
                "{certificate_name} needs its private key; name its file with {key_name}"
            )),
            (None, Some(_)) => Err(format!(
                "{key_name} is the key of a certificate; name its file with {certificate_name}"
            )),
        }
    }

    /// Trusts the certificates of this file alone, instead of those of the system. Blocks on the
    /// read.
    ///
    /// # Errors
    /// A sentence that begins with the file, if it cannot be read or holds no certificate.
    pub fn with_ca(self, file: &Path) -> Result<Self, String> {
        let pem = read_bounded(file, FILE_BYTES_MAX)?;
        self.with_ca_pem(&pem).map_err(|why| format!("{} {why}", file.display()))
    }

    /// Trusts these certificates alone: PEM.
    ///
    /// # Errors
    /// The rest of a sentence about the PEM, if it holds no certificate.
    pub fn with_ca_pem(mut self, pem: &[u8]) -> Result<Self, String> {
        roots(pem)?;
        self.ca = Some(pem.into());
        Ok(self)
    }

    /// Presents this certificate to a server that requests one. Blocks on the reads.
    ///
    /// # Errors
    /// A sentence that begins with the file, if one of the two cannot be read or used, or they do
    /// not belong together.
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
        ClientConfig::builder()
            .with_root_certificates(RootCertStore::empty())
            .with_client_auth_cert(chain, secret)
            .map_err(|error| {
                format!("{} does not go with {}: {error}", key.display(), certificate.display())
            })?;
        self.client = Some(Arc::new(pem));
        Ok(self)
    }

    /// Configuration of rustls with these certificates. With `is_used` false it trusts none, for
    /// clients that only ever speak plain HTTP: reading the system's takes time.
    ///
    /// # Errors
    /// A sentence if the certificates cannot be used.
    pub fn client_config(&self, is_used: bool) -> Result<ClientConfig, String> {
        install_crypto();
        let TlsSettingNames { ca, certificate, key } = self.names;
        let roots = match &self.ca {
            _ if !is_used => RootCertStore::empty(),
            Some(pem) => roots(pem).map_err(|why| format!("{ca} {why}"))?,
            None => system_roots(),
        };
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let Some(pem) = &self.client else { return Ok(builder.with_no_client_auth()) };
        let unusable = |why: String| format!("{certificate} and {key} cannot be used: {why}");
        let chain = certificates(&pem.certificate).map_err(unusable)?;
        let key = PrivateKeyDer::from_pem_slice(&pem.key);
        let key = key.map_err(|error| unusable(error.to_string()))?;
        let config = builder.with_client_auth_cert(chain, key);
        config.map_err(|error| unusable(error.to_string()))
    }

    /// A client for servers that speak this protocol over TLS, as ALPN names it.
    ///
    /// # Errors
    /// A sentence if the certificates cannot be used.
    pub fn client(&self, protocol: &[u8]) -> Result<TlsClient, String> {
        let mut config = self.client_config(true)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(TlsClient { connector: TlsConnector::from(Arc::new(config)) })
    }

    /// `true` if nothing was read: the system's certificates are trusted, and none is presented.
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
}

/// Makes TLS connections to servers of one kind. Cheap to clone.
#[derive(Clone)]
pub struct TlsClient {
    connector: TlsConnector,
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
