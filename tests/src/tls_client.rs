//! The client's side of TLS, for tests that decide what is sent over it.

use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certificates::Certificates;

/// Trust in one CA, and the certificate that is shown.
#[derive(Clone, Debug)]
pub struct TlsClient(Arc<ClientConfig>);

impl TlsClient {
    /// Trusts the CA, and shows no certificate.
    ///
    /// # Panics
    /// If the file cannot be used.
    pub fn anonymous(certificates: &Certificates) -> Self {
        Self::with(certificates, None)
    }

    /// Trusts the CA, and shows the client's certificate of `own`.
    ///
    /// # Panics
    /// If the files cannot be used.
    pub fn identified(certificates: &Certificates, own: &Certificates) -> Self {
        Self::with(certificates, Some(own))
    }

    fn with(certificates: &Certificates, own: Option<&Certificates>) -> Self {
        service_kit::tls::install_crypto();
        let read = |from: &Certificates, name: &str| {
            let chain = CertificateDer::pem_file_iter(from.file(name)).expect("certificates");
            chain.map(|one| one.expect("a certificate")).collect::<Vec<_>>()
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(read(certificates, "ca.pem"));
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let key = PrivateKeyDer::from_pem_file(own.file("client.key")).expect("a key");
                builder.with_client_auth_cert(read(own, "client.pem"), key).expect("a pair")
            }
        };
        Self(Arc::new(config))
    }

    /// Names a protocol in the handshake (ALPN).
    #[must_use]
    pub fn naming(mut self, protocol: &str) -> Self {
        Arc::make_mut(&mut self.0).alpn_protocols = vec![protocol.into()];
        self
    }

    /// Does the handshake with the server, which is called `localhost`.
    ///
    /// # Errors
    /// Its failure.
    pub async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        TlsConnector::from(Arc::clone(&self.0)).connect(localhost(), stream).await
    }

    /// A session without a socket: the test moves its bytes.
    ///
    /// # Panics
    /// If rustls does not take the configuration.
    pub fn session(&self) -> ClientConnection {
        ClientConnection::new(Arc::clone(&self.0), localhost()).expect("a session")
    }
}

fn localhost() -> ServerName<'static> {
    ServerName::try_from("localhost").expect("a name")
}
