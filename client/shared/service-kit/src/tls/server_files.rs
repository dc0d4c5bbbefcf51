//! Certificate, key and client CAs of the listeners, read and checked.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use https_client::pem::{FILE_BYTES_MAX, certificates, roots};
use https_client::{install_crypto, read_bounded};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls::{Error, ServerConfig, version};

use super::expiry::not_after_seconds;

/// The protocol of most listeners over TLS, as ALPN names it. Clients of the Redis port name none.
const ALPN: &[u8] = b"http/1.1";
/// HTTP/2, as ALPN names it.
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";
/// PostgreSQL's protocol, as ALPN names it. Drivers before libpq 17 name none.
const ALPN_POSTGRESQL: &[u8] = b"postgresql";

/// Demand for a client certificate of `--tls-client-ca`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ClientAuth {
    /// A client without one is refused.
    #[default]
    Required,
    /// A client may show none; one that is shown must be valid.
    Optional,
}

/// Names of the files that a server speaks TLS with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTlsFiles {
    /// `--tls-cert`: the server's certificate first, then those that lead to its CA (PEM).
    pub certificate: PathBuf,
    /// `--tls-key`: the private key of the server's certificate (PEM).
    pub key: PathBuf,
    /// `--tls-client-ca`: the CAs of clients' certificates (PEM).
    pub client_ca: Option<PathBuf>,
    /// `--tls-client-auth`, which is of no effect without the above.
    pub client_auth: ClientAuth,
}

/// TlsContents of the files at one moment, and who may read the key.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct TlsContents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    /// Mode of the key's file, if more users than its purpose needs may read it.
    wide_mode: Option<u32>,
    client_ca: Option<Vec<u8>>,
}

/// A configuration made of the files.
pub(super) struct LoadedTls {
    pub(super) config: Arc<ServerConfig>,
    /// Configuration for listeners that speak HTTP/2 too, which is the first choice.
    pub(super) http2: Arc<ServerConfig>,
    /// Configuration for listeners that speak PostgreSQL's protocol.
    pub(super) postgresql: Arc<ServerConfig>,
    /// End of the server's certificate, in seconds since 1970.
    pub(super) not_after_seconds: u64,
    /// Warning about the key's permissions.
    pub(super) key_warning: Option<String>,
}

impl ServerTlsFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// A sentence with the flag and the file.
    pub(super) fn contents(&self) -> Result<TlsContents, String> {
        let read = |flag: &str, file: &Path| {
            read_bounded(file, FILE_BYTES_MAX).map_err(|error| format!("{flag}: {error}"))
        };
        let client_ca = self.client_ca.as_deref().map(|file| read("--tls-client-ca", file));
        Ok(TlsContents {
            certificate: read("--tls-cert", &self.certificate)?,
            key: read("--tls-key", &self.key)?,
            wide_mode: wide_mode(&self.key),
            client_ca: client_ca.transpose()?,
        })
    }

    /// Makes a configuration of contents of these files.
    ///
    /// # Errors
    /// A sentence with the flag and the file.
    pub(super) fn load(&self, contents: &TlsContents) -> Result<LoadedTls, String> {
        install_crypto();
        let unusable = |why: String| format!("--tls-cert: {} {why}", self.certificate.display());
        let chain = certificates(&contents.certificate).map_err(unusable)?;
        let not_after_seconds = chain
            .first()
            .and_then(not_after_seconds)
            .ok_or_else(|| unusable("holds a certificate that cannot be read".to_owned()))?;
        let key = self.key(&contents.key)?;
        self.check_pair(&chain, &key)?;
        let builder =
            ServerConfig::builder_with_protocol_versions(&[&version::TLS13, &version::TLS12]);
        let builder = match self.client_verifier(contents)? {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| unusable(format!("cannot be used: {error}")))?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        let mut http2 = config.clone();
        http2.alpn_protocols.insert(0, ALPN_HTTP2.to_vec());
        let mut postgresql = config.clone();
        postgresql.alpn_protocols = vec![ALPN_POSTGRESQL.to_vec()];
        Ok(LoadedTls {
            config: Arc::new(config),
            http2: Arc::new(http2),
            postgresql: Arc::new(postgresql),
            not_after_seconds,
            key_warning: contents.wide_mode.map(|mode| self.key_warning(mode)),
        })
    }

    fn key(&self, pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
        PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
            let file = self.key.display();
            format!("--tls-key: {file} holds no private key (PEM, -----BEGIN PRIVATE KEY-----)")
        })
    }

    /// Checks that the key is that of the first certificate.
    fn check_pair(
        &self,
        chain: &[CertificateDer<'static>],
        key: &PrivateKeyDer<'static>,
    ) -> Result<(), String> {
        let certificate = self.certificate.display();
        let file = self.key.display();
        let provider = ring::default_provider();
        let pair = |leaf: &CertificateDer<'static>| {
            CertifiedKey::from_der(vec![leaf.clone()], key.clone_key(), &provider)
        };
        let fits = |at: usize| chain.get(at).is_some_and(|leaf| pair(leaf).is_ok());
        match chain.first().map(pair) {
            None | Some(Ok(_)) => return Ok(()),
            Some(Err(Error::InconsistentKeys(_))) => {}
            Some(Err(error)) => return Err(format!("--tls-key: {file} cannot be used: {error}")),
        }
        match (1..chain.len()).find(|at| fits(*at)) {
            Some(at) => Err(format!(
                "--tls-cert: {certificate} has its certificates in the wrong order: number {} is \
                 that of --tls-key {file} and must be the first, before those that lead to its CA",
                at + 1
            )),
            None => Err(format!(
                "--tls-key: {file} is not the key of the certificate in --tls-cert {certificate}; \
                 name the files of one pair"
            )),
        }
    }

    fn client_verifier(
        &self,
        contents: &TlsContents,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
        let (Some(file), Some(pem)) = (&self.client_ca, &contents.client_ca) else {
            return Ok(None);
        };
        let unusable = |why: String| format!("--tls-client-ca: {} {why}", file.display());
        let builder = WebPkiClientVerifier::builder(Arc::new(roots(pem).map_err(unusable)?));
        let builder = match self.client_auth {
            ClientAuth::Required => builder,
            ClientAuth::Optional => builder.allow_unauthenticated(),
        };
        let verifier = builder.build();
        let verifier = verifier.map_err(|error| unusable(format!("cannot be used: {error}")))?;
        Ok(Some(verifier))
    }

    fn key_warning(&self, mode: u32) -> String {
        let file = self.key.display();
        format!(
            "other users may read the private key {file} (mode {mode:03o}); run chmod 600 on it"
        )
    }
}

/// The mode of a file that all users may read, or the group of one that is this process' own. Where
/// another user owns the file, its group is how this process reads it.
pub(crate) fn wide_mode(file: &Path) -> Option<u32> {
    let facts = std::fs::metadata(file).ok()?;
    let mode = facts.mode() & 0o777;
    let is_own = facts.uid() == rustix::process::geteuid().as_raw();
    let bits = if is_own { 0o044 } else { 0o004 };
    (mode & bits != 0).then_some(mode)
}
