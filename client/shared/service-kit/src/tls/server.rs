//! TLS connections of clients to this server.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use std::{fmt, io, mem};

use rustls::ServerConfig;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use webpki::EndEntityCert;

use super::figures::TlsFigures;
use super::handshakes::{Handshakes, late};
use super::server_files::{ALPN_HTTP2, LoadedTls, ServerTlsFiles, TlsContents};
use crate::socket::linger;

/// A connection of a client that speaks TLS.
pub type ServerTlsStream = tokio_rustls::server::TlsStream<TcpStream>;

/// Longest handshake, unless a listener sets its own limit.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// First byte of a ClientHello: the content type of handshake records.
const HANDSHAKE_RECORD: u8 = 0x16;

/// TLS of a server's listeners. Cheap to clone; clones share the files and what was read of them.
#[derive(Clone)]
pub struct ServerTls {
    pub(super) shared: Arc<SharedTls>,
    handshake_timeout: Duration,
    plain_reply: fn() -> Vec<u8>,
    config: fn(&LoadedTls) -> &Arc<ServerConfig>,
}

pub(super) struct SharedTls {
    pub(super) files: ServerTlsFiles,
    /// TlsContents at the start.
    pub(super) first: TlsContents,
    pub(super) loaded: RwLock<LoadedTls>,
    pub(super) figures: TlsFigures,
    handshakes: Handshakes,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// A sentence that names the flag and the file.
    pub fn read(files: &ServerTlsFiles) -> Result<Self, String> {
        let first = files.contents()?;
        let loaded = RwLock::new(files.load(&first)?);
        let figures = TlsFigures::default();
        let shared = Arc::new(SharedTls {
            files: files.clone(),
            first,
            loaded,
            handshakes: Handshakes::new(figures.under_way.clone()),
            figures,
        });
        Ok(Self {
            shared,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            plain_reply: Vec::new,
            config: |loaded| &loaded.config,
        })
    }

    /// The same for one listener: its limit of a handshake, and its reply to a client that does not
    /// speak TLS, in the listener's protocol.
    #[must_use]
    pub fn for_listener(mut self, timeout: Duration, plain_reply: fn() -> Vec<u8>) -> Self {
        self.handshake_timeout = timeout;
        self.plain_reply = plain_reply;
        self
    }

    /// Offers HTTP/2 too, if `has_http2` is true.
    #[must_use]
    pub(crate) fn with_http2(mut self, has_http2: bool) -> Self {
        if has_http2 {
            self.config = |loaded| &loaded.http2;
        }
        self
    }

    /// Offers PostgreSQL's protocol in place of HTTP.
    #[must_use]
    pub fn for_postgresql(self) -> Self {
        Self { config: |loaded| &loaded.postgresql, ..self }
    }

    /// Returns `true` if the client chose HTTP/2.
    pub(crate) fn is_http2(stream: &ServerTlsStream) -> bool {
        stream.get_ref().1.alpn_protocol() == Some(ALPN_HTTP2)
    }

    /// Does the handshake with a client. It waits while as many as the process allows are under
    /// way; that wait is not part of the limit.
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    /// The failure, after the client was sent an alert or the reply to plain text.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<ServerTlsStream> {
        let result = self.handshake(stream).await;
        if result.is_err() {
            self.shared.figures.failures.inc();
        }
        result
    }

    async fn handshake(&self, mut stream: TcpStream) -> io::Result<ServerTlsStream> {
        let mut first = [0];
        let peeked = tokio::time::timeout(self.handshake_timeout, stream.peek(&mut first));
        if peeked.await.map_err(|_| late("the client sent nothing"))?? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first != [HANDSHAKE_RECORD] {
            // A client that is gone needs no reply.
            let _ = stream.write_all(&(self.plain_reply)()).await;
            linger(stream).await;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the client speaks no TLS"));
        }
        let config = {
            let loaded = self.shared.loaded.read().unwrap_or_else(PoisonError::into_inner);
            Arc::clone((self.config)(&loaded))
        };
        let peer = stream.peer_addr()?.ip();
        let accepting = TlsAcceptor::from(config).accept(stream).into_fallible();
        match self.shared.handshakes.run(peer, self.handshake_timeout, accepting).await? {
            Ok(stream) => Ok(stream),
            Err((error, stream)) => {
                // rustls has sent an alert, which a reset would overtake.
                linger(stream).await;
                Err(error)
            }
        }
    }

    /// Returns the DNS names, in lower case, and the URIs of the client's certificate, which was
    /// verified; none if the client showed no certificate.
    pub fn client_names(stream: &ServerTlsStream) -> ClientNames {
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        // The handshake has read it by the same parser.
        let Some(parsed) = certificate.and_then(|der| EndEntityCert::try_from(der).ok()) else {
            return ClientNames::default();
        };
        let names = parsed.valid_dns_names().map(str::to_ascii_lowercase);
        // A CA's constraints of DNS names say nothing of URIs, so none may look like a DNS name.
        let uris = parsed.valid_uri_names().filter(|uri| uri.contains(':')).map(str::to_owned);
        ClientNames(names.chain(uris).collect())
    }

    /// Puts another configuration in force for later handshakes; established connections continue.
    pub(super) fn replace(&self, loaded: LoadedTls) {
        let mut current = self.shared.loaded.write().unwrap_or_else(PoisonError::into_inner);
        drop(mem::replace(&mut *current, loaded));
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.shared.files).finish_non_exhaustive()
    }
}

/// Names of a client's certificate. Cheap to clone.
///
/// The extensions of every request that came over TLS have it, also where no certificate was shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientNames(Arc<[String]>);

impl ClientNames {
    /// DNS names in lower case, then URIs.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Returns `true` if the client showed no certificate, or one without such names.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<String> for ClientNames {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> Self {
        Self(names.into_iter().collect())
    }
}
