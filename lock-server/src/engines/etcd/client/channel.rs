//! gRPC to one member: HTTP/2 connections, and messages on them.
//!
//! A connection's socket is read and written by the runtime that made it, so each runtime has one
//! of its own: a commit is sent and its reply read without another thread. A connection that broke
//! is replaced by the next request, and so is one on which a reply did not come in time: its peer
//! may be gone without a reset. Pings show the same of a connection that only a watch is on.

use std::collections::HashMap;
use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, RecvStream};
use http::header::{CONTENT_TYPE, HeaderValue, TE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Response, StatusCode, Uri};
use prost::Message;
use service_kit::socket;
use service_kit::tls::TlsClient;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Handle, Id};

use super::envelope::{ENVELOPE, enveloped, next_message, status_of};
use super::verdict::{Raw, shortened};

/// Bytes of one reply, and of one connection, that a member may send before they are read.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Interval of pings while a reply or a watch is awaited. etcd takes one every 5 s by default
/// (`--grpc-keepalive-min-time`).
const PING_EVERY: Duration = Duration::from_secs(10);
/// Time-out of the reply to a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// A call of etcd's API.
pub(super) type Path = &'static str;

/// One member of etcd.
#[derive(Debug)]
pub(super) struct Member {
    /// `http://host:port`, for messages.
    url: String,
    /// `host:port`.
    authority: Authority,
    tls: Option<Arc<TlsClient>>,
    connect_timeout: Duration,
    timeout: Duration,
    connections: Mutex<HashMap<Id, Connection>>,
    /// The member has replied in gRPC before.
    is_proven: AtomicBool,
}

/// An HTTP/2 connection, for as long as a task reads it.
#[derive(Clone, Debug)]
struct Connection {
    requests: SendRequest<Bytes>,
    /// Gone with the task.
    users: Weak<()>,
}

/// A reply whose head is there, and the connection's mark that a reply is awaited.
#[derive(Debug)]
struct Head {
    response: Response<RecvStream>,
    user: Arc<()>,
}

/// Replies that come one after the other.
#[derive(Debug)]
pub(super) struct Replies {
    body: RecvStream,
    buffer: BytesMut,
    message_bytes_max: usize,
    /// A reply is awaited.
    _user: Arc<()>,
}

impl Member {
    /// A member that is not connected yet.
    ///
    /// # Errors
    /// A sentence where the address is none.
    pub(super) fn new(
        address: &str,
        tls: Option<Arc<TlsClient>>,
        connect_timeout: Duration,
        timeout: Duration,
    ) -> Result<Self, String> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        Ok(Self {
            url: format!("{scheme}://{address}"),
            authority: address.parse().map_err(|_| format!("{address} is no address"))?,
            tls,
            connect_timeout,
            timeout,
            connections: Mutex::default(),
            is_proven: AtomicBool::new(false),
        })
    }

    /// `http://host:port`.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Sends one message and reads the one of the reply, of at most `bytes_max` bytes.
    pub(super) async fn call(
        &self,
        path: Path,
        message: &impl Message,
        token: Option<&HeaderValue>,
        bytes_max: usize,
    ) -> Raw {
        let mut deadline = pin!(tokio::time::sleep(self.timeout));
        let head = match self.send(path, message, token, deadline.as_mut()).await {
            Ok(head) => head,
            Err(raw) => return raw,
        };
        let runtime = Handle::current().id();
        tokio::select! {
            biased;
            raw = self.read(head.response, bytes_max) => raw,
            () = deadline => self.too_late(runtime),
        }
    }

    /// Sends one message and leaves its replies to be read, each of at most `bytes_max` bytes.
    pub(super) async fn stream(
        &self,
        path: Path,
        message: &impl Message,
        token: Option<&HeaderValue>,
        bytes_max: usize,
    ) -> Result<Replies, Raw> {
        let deadline = pin!(tokio::time::sleep(self.timeout));
        let Head { response, user } = self.send(path, message, token, deadline).await?;
        if let Some(refused) = self.refusal(&response) {
            return Err(refused);
        }
        let body = response.into_body();
        let buffer = BytesMut::new();
        Ok(Replies { body, buffer, message_bytes_max: bytes_max, _user: user })
    }

    /// Sends one message, once more where a connection had ended before anything of it was sent.
    async fn send(
        &self,
        path: Path,
        message: &impl Message,
        token: Option<&HeaderValue>,
        mut deadline: Pin<&mut tokio::time::Sleep>,
    ) -> Result<Head, Raw> {
        let runtime = Handle::current().id();
        let request = self.request(path, token).map_err(Raw::NotSent)?;
        let message = enveloped(message);
        let mut last = String::new();
        for _ in 0..2 {
            let begun = tokio::select! {
                biased;
                begun = self.begin_call(runtime, &request, &message) => begun,
                () = deadline.as_mut() => Err(Begin::Failed(self.no_reply())),
            };
            let (response, user) = match begun {
                Ok(begun) => begun,
                Err(Begin::Failed(reason)) => return Err(Raw::NotSent(reason)),
                Err(Begin::Ended(reason)) => {
                    self.forget(runtime);
                    last = self.broken(reason);
                    continue;
                }
            };
            let replied = tokio::select! {
                biased;
                replied = response => replied,
                () = deadline.as_mut() => return Err(self.too_late(runtime)),
            };
            return match replied {
                Ok(response) => Ok(Head { response, user }),
                Err(error) => {
                    self.forget(runtime);
                    Err(Raw::NoReply(self.broken(causes(&error))))
                }
            };
        }
        Err(Raw::NotSent(last))
    }

    /// Sends head and message in one: where they come one by one, etcd wakes up twice.
    async fn begin_call(
        &self,
        runtime: Id,
        request: &Request<()>,
        message: &Bytes,
    ) -> Result<(ResponseFuture, Arc<()>), Begin> {
        let connection = self.connection(runtime).await.map_err(Begin::Failed)?;
        let ended = |error: h2::Error| Begin::Ended(causes(&error));
        let gone = || Begin::Ended("the connection has ended".to_owned());
        let user = connection.users.upgrade().ok_or_else(gone)?;
        let mut requests = connection.requests.ready().await.map_err(ended)?;
        let (response, mut body) = requests.send_request(request.clone(), false).map_err(ended)?;
        // Where the connection ends meanwhile, the reply says so.
        let _ = body.send_data(message.clone(), true);
        Ok((response, user))
    }

    fn request(&self, path: Path, token: Option<&HeaderValue>) -> Result<Request<()>, String> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP });
        uri.authority = Some(self.authority.clone());
        uri.path_and_query = Some(PathAndQuery::from_static(path));
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_parts(uri).map_err(|error| error.to_string())?;
        let headers = request.headers_mut();
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        if let Some(token) = token {
            headers.insert("token", token.clone());
        }
        Ok(request)
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<Id, Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No request is sent on the runtime's connection any more; those that are under way continue.
    fn forget(&self, runtime: Id) {
        self.connections().remove(&runtime);
    }

    #[cfg(test)]
    pub(super) async fn until_closed(&self) {
        while self.connections().values().any(Connection::is_open) {
            tokio::task::yield_now().await;
        }
    }

    /// The connection of this runtime.
    async fn connection(&self, runtime: Id) -> Result<Connection, String> {
        let known = self.connections().get(&runtime).filter(|known| known.is_open()).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let connected = tokio::time::timeout(self.connect_timeout, self.connect()).await;
        let connection = connected.unwrap_or_else(|_| {
            Err(format!("no connection within {} ms", self.connect_timeout.as_millis()))
        })?;
        let mut connections = self.connections();
        connections.retain(|_, known| known.is_open());
        connections.insert(runtime, connection.clone());
        Ok(connection)
    }

    async fn connect(&self) -> Result<Connection, String> {
        let stream = TcpStream::connect(self.authority.as_str()).await;
        let stream = stream.map_err(|error| causes(&error))?;
        socket::tune_to_store(&stream);
        match &self.tls {
            None => begin(stream).await.map_err(|text| self.broken(text)),
            Some(tls) => {
                let host = self.authority.host();
                let stream = tls.connect(host, stream).await.map_err(|error| causes(&error))?;
                begin(stream).await.map_err(|text| self.broken(text))
            }
        }
    }

    async fn read(&self, response: Response<RecvStream>, bytes_max: usize) -> Raw {
        match self.refusal(&response) {
            Some(Raw::Foreign(status, _)) => {
                // The beginning of a foreign text says enough.
                let text = response.into_body().data().await.and_then(Result::ok);
                return Raw::Foreign(status, text.unwrap_or_default());
            }
            Some(refused) => return refused,
            None => {}
        }
        let mut body = response.into_body();
        let mut buffer = BytesMut::new();
        while let Some(data) = body.data().await {
            let data = match data {
                Ok(data) => data,
                Err(error) => return Raw::NoReply(self.broken(causes(&error))),
            };
            if buffer.len() + data.len() > ENVELOPE + bytes_max {
                return Raw::NoReply(format!("it replies more than {bytes_max} bytes"));
            }
            release(&mut body, data.len());
            buffer.extend_from_slice(&data);
        }
        let trailers = match body.trailers().await {
            Ok(trailers) => trailers.unwrap_or_default(),
            Err(error) => return Raw::NoReply(self.broken(causes(&error))),
        };
        match (status_of(&trailers), next_message(&mut buffer, bytes_max)) {
            (Some((0, _)), Ok(Some(message))) => Raw::Reply(message),
            (Some((0, _)), Ok(None)) => Raw::NoReply("its reply has no message".to_owned()),
            (Some((0, _)), Err(reason)) => Raw::NoReply(reason),
            (Some((code, message)), _) => Raw::Refused(code, message),
            (None, _) => Raw::NoReply("its reply ends without a status".to_owned()),
        }
    }

    /// The status of a reply that has a head and no messages.
    fn refusal(&self, response: &Response<RecvStream>) -> Option<Raw> {
        let status = response.status();
        let headers = response.headers();
        let is_grpc = headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        if status != StatusCode::OK || !is_grpc {
            return Some(Raw::Foreign(status, Bytes::new()));
        }
        self.is_proven.store(true, Ordering::Relaxed);
        match status_of(headers)? {
            (0, _) => Some(Raw::NoReply("its reply has no message".to_owned())),
            (code, message) => Some(Raw::Refused(code, message)),
        }
    }

    fn too_late(&self, runtime: Id) -> Raw {
        self.forget(runtime);
        Raw::NoReply(self.no_reply())
    }

    fn no_reply(&self) -> String {
        format!("no reply within {} ms", self.timeout.as_millis())
    }

    /// A connection that ended without a reply. Behind TLS that is also how a certificate is
    /// refused: the handshake ends for the client before its own certificate was checked, and the
    /// reason does not always arrive after it.
    fn broken(&self, text: String) -> String {
        if self.tls.is_some() && !text.contains("ertificate") {
            return format!(
                "{text}; where it asks for a certificate of its clients, --store-cert and \
                 --store-key name one of the authority that it trusts"
            );
        }
        if self.is_proven.load(Ordering::Relaxed) {
            return text;
        }
        format!("{text}; is this the client URL of an etcd of version 3.4 or later?")
    }
}

impl Connection {
    fn is_open(&self) -> bool {
        self.users.strong_count() > 0
    }
}

/// Why a call did not begin.
enum Begin {
    /// There is no connection.
    Failed(String),
    /// There was one, which has ended.
    Ended(String),
}

/// Speaks HTTP/2 on a stream. The connection ends with the last request on it and the handle, or
/// where a ping has no reply.
async fn begin<S>(stream: S) -> Result<Connection, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (requests, mut connection) = Builder::new()
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(stream)
        .await
        .map_err(|error| causes(&error))?;
    let users = Arc::new(());
    let connected = Connection { requests, users: Arc::downgrade(&users) };
    let pings = connection.ping_pong();
    let serving = async move {
        tokio::select! {
            ended = connection => tracing::debug!(?ended, "a connection to etcd has ended"),
            () = ping(pings, &users) => tracing::debug!("etcd does not reply to a ping"),
        }
    };
    #[expect(clippy::disallowed_methods, reason = "it ends with the last request on it")]
    tokio::spawn(serving);
    Ok(connected)
}

/// Sends pings while a reply is awaited, and returns when one has no reply.
async fn ping(pings: Option<PingPong>, users: &Arc<()>) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        tokio::time::sleep(PING_EVERY).await;
        // etcd closes a connection that pings without a call on it.
        if Arc::strong_count(users) > 1 {
            let pong = tokio::time::timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await;
            if !matches!(pong, Ok(Ok(_))) {
                return;
            }
        }
    }
}

/// So many bytes were read, and as many may be sent again.
fn release(body: &mut RecvStream, bytes: usize) {
    // It fails where more is released than was read.
    let _ = body.flow_control().release_capacity(bytes);
}

impl Replies {
    /// The next message; `None` where there is no further one. Cancel-safe.
    ///
    /// # Errors
    /// A sentence where the stream broke, or ended with a status other than OK.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            if let Some(message) = next_message(&mut self.buffer, self.message_bytes_max)? {
                return Ok(Some(message));
            }
            if let Some(data) = self.body.data().await {
                let data = data.map_err(|error| causes(&error))?;
                release(&mut self.body, data.len());
                self.buffer.extend_from_slice(&data);
                continue;
            }
            let trailers = self.body.trailers().await.map_err(|error| causes(&error))?;
            return match trailers.and_then(|trailers| status_of(&trailers)) {
                Some((0, _)) | None => Ok(None),
                Some((code, message)) => Err(format!("it ended with {code}: {message}")),
            };
        }
    }
}

/// An error by its last cause, which says most.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    let text = shortened(&last.to_string());
    if text.contains("ertificate") {
        return format!(
            "{text}; --store-ca names the authority that signed etcd's certificate, --store-cert \
             and --store-key the one that etcd asks for"
        );
    }
    text
}
