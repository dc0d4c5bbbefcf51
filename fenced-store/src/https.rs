//! Connections of the guard's own HTTP clients, plain or over TLS.

use std::time::Duration;

use clap::ValueEnum;
use http::Uri;
use hyper_rustls::{HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use service_kit::tls::TlsOptions;
use tokio::net::TcpStream;
use tower::BoxError;
use tower::timeout::Timeout;
use tower::util::BoxCloneSyncService;

/// Version of HTTP towards the datastore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum UpstreamHttp {
    /// HTTP/1.1.
    #[default]
    H1,
    /// HTTP/2, without TLS too.
    H2,
    /// HTTP/2 if an https:// datastore chooses it, otherwise HTTP/1.1.
    Auto,
}

/// Makes the connections of an HTTP client.
pub(crate) type Connector =
    BoxCloneSyncService<Uri, MaybeHttpsStream<TokioIo<TcpStream>>, BoxError>;

/// Certificates of one HTTP client.
#[derive(Clone, Debug)]
pub struct Https {
    /// Certificates as they were read; they explain errors.
    pub(crate) tls: TlsOptions,
    config: ClientConfig,
}

impl Https {
    /// Certificates that are ready for use. `is_used` is false if no server is reached over TLS.
    ///
    /// # Errors
    /// A sentence if they cannot be used.
    pub fn new(tls: TlsOptions, is_used: bool) -> Result<Self, String> {
        Ok(Self { config: tls.client_config(is_used)?, tls })
    }

    /// Connections that are each ready within `timeout`, with the TLS handshake, and offer these
    /// versions of HTTP.
    pub(crate) fn connector(&self, timeout: Duration, http: UpstreamHttp) -> Connector {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(timeout));
        let https =
            HttpsConnectorBuilder::new().with_tls_config(self.config.clone()).https_or_http();
        let https = match http {
            UpstreamHttp::H1 => https.enable_http1().wrap_connector(tcp),
            UpstreamHttp::H2 => https.enable_http2().wrap_connector(tcp),
            UpstreamHttp::Auto => https.enable_all_versions().wrap_connector(tcp),
        };
        BoxCloneSyncService::new(Timeout::new(https, timeout))
    }
}
