//! gRPC to one member: HTTP/2 connections, and messages on them.
//!
//! A connection's socket is read and written by the runtime that made it, so each runtime has one of its
//! own: a commit is sent and its reply read without another thread. A connection that broke is replaced
//! by the next request, and so is one on which a reply did not come in time: its peer may be gone
//! without a reset. Pings show the same of a connection that only a watch is on.

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::rt::Executor as _;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use prost::Message;
use service_kit::socket;
use service_kit::tls::TlsClient;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Handle, Id};

use super::verdict::shortened;

/// Length of what stands before a message: whether it is compressed, and its length.
const ENVELOPE: usize = 5;
/// How much a member may send of one reply before it is read, in bytes, and on one connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// How often a ping is sent while a reply or a watch is awaited. etcd takes one every 5 s by default
/// (`--grpc-keepalive-min-time`).
const PING_EVERY: Duration = Duration::from_secs(10);
/// How long the reply to a ping may take.
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
    connections: Mutex<HashMap<Id, SendRequest<Once>>>,
    /// Whether it has ever replied in gRPC.
    is_proven: AtomicBool,
}

/// The outcome of one call at one member.
#[derive(Debug)]
pub(super) enum Raw {
    /// The message of the reply.
    Reply(Bytes),
    /// A status other than OK, with its message.
    Refused(u32, String),
    /// It replies, and not in gRPC.
    Foreign(StatusCode, Bytes),
    /// The request was not sent.
    NotSent(String),
    /// The request was sent, and there is no reply.
    NoReply(String),
}

/// Replies that come one after the other.
#[derive(Debug)]
pub(super) struct Replies {
    body: Incoming,
    buffer: BytesMut,
    message_bytes_max: usize,
}

/// A request's body: one message, sent at once.
#[derive(Debug)]
pub(super) struct Once(Option<Bytes>);

impl Once {
    fn new(message: &impl Message) -> Self {
        let length = message.encoded_len();
        let mut bytes = BytesMut::with_capacity(ENVELOPE + length);
        bytes.put_u8(0);
        bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        bytes.extend_from_slice(&message.encode_to_vec());
        Self(Some(bytes.freeze()))
    }
}

impl Body for Once {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, Bytes::len) as u64)
    }
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
        let response = match self.send(path, message, token, deadline.as_mut()).await {
            Ok(response) => response,
            Err(raw) => return raw,
        };
        let runtime = Handle::current().id();
        tokio::select! {
            biased;
            raw = self.read(response, bytes_max) => raw,
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
        let response = self.send(path, message, token, deadline).await?;
        if let Some(refused) = self.refusal(&response) {
            return Err(refused);
        }
        let body = response.into_body();
        Ok(Replies { body, buffer: BytesMut::new(), message_bytes_max: bytes_max })
    }

    /// Sends one message, once more where a connection had ended before anything of it was sent.
    async fn send(
        &self,
        path: Path,
        message: &impl Message,
        token: Option<&HeaderValue>,
        mut deadline: Pin<&mut tokio::time::Sleep>,
    ) -> Result<Response<Incoming>, Raw> {
        let runtime = Handle::current().id();
        let mut request = self.request(path, message, token).map_err(Raw::NotSent)?;
        let mut last = String::new();
        for _ in 0..2 {
            let connection = tokio::select! {
                biased;
                connection = self.connection(runtime) => connection,
                () = deadline.as_mut() => Err(self.no_reply()),
            };
            let mut connection = connection.map_err(Raw::NotSent)?;
            let sent = tokio::select! {
                biased;
                sent = connection.try_send_request(request) => sent,
                () = deadline.as_mut() => return Err(self.too_late(runtime)),
            };
            let mut error = match sent {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            self.forget(runtime);
            let unsent = error.take_message();
            last = self.broken(causes(&error.into_error()));
            request = match unsent {
                Some(request) => request,
                None => return Err(Raw::NoReply(last)),
            };
        }
        Err(Raw::NotSent(last))
    }

    fn request(
        &self,
        path: Path,
        message: &impl Message,
        token: Option<&HeaderValue>,
    ) -> Result<Request<Once>, String> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP });
        uri.authority = Some(self.authority.clone());
        uri.path_and_query = Some(PathAndQuery::from_static(path));
        let uri = Uri::from_parts(uri).map_err(|error| error.to_string())?;
        let mut request = Request::new(Once::new(message));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        if let Some(token) = token {
            headers.insert("token", token.clone());
        }
        Ok(request)
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<Id, SendRequest<Once>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No request is sent on the runtime's connection any more; those that are under way go on.
    fn forget(&self, runtime: Id) {
        self.connections().remove(&runtime);
    }

    #[cfg(test)]
    pub(super) async fn until_closed(&self) {
        while self.connections().values().any(|known| !known.is_closed()) {
            tokio::task::yield_now().await;
        }
    }

    /// The connection of this runtime.
    async fn connection(&self, runtime: Id) -> Result<SendRequest<Once>, String> {
        let known = self.connections().get(&runtime).filter(|known| !known.is_closed()).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let connected = tokio::time::timeout(self.connect_timeout, self.connect()).await;
        let connection = connected.unwrap_or_else(|_| {
            Err(format!("no connection within {} ms", self.connect_timeout.as_millis()))
        })?;
        let mut connections = self.connections();
        connections.retain(|_, known| !known.is_closed());
        connections.insert(runtime, connection.clone());
        Ok(connection)
    }

    async fn connect(&self) -> Result<SendRequest<Once>, String> {
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

    async fn read(&self, response: Response<Incoming>, bytes_max: usize) -> Raw {
        if let Some(Raw::Foreign(status, _)) = self.refusal(&response) {
            // The beginning of a foreign text says enough.
            let frame = response.into_body().frame().await;
            let text = frame.and_then(Result::ok).and_then(|frame| frame.into_data().ok());
            return Raw::Foreign(status, text.unwrap_or_default());
        }
        if let Some(refused) = self.refusal(&response) {
            return refused;
        }
        let mut body = response.into_body();
        let mut buffer = BytesMut::new();
        loop {
            let frame = match body.frame().await {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Raw::NoReply(self.broken(causes(&error))),
                None => return Raw::NoReply("its reply ends without a status".to_owned()),
            };
            let trailers = match frame.into_data() {
                Ok(data) if buffer.len() + data.len() > ENVELOPE + bytes_max => {
                    return Raw::NoReply(format!("it replies more than {bytes_max} bytes"));
                }
                Ok(data) => {
                    buffer.extend_from_slice(&data);
                    continue;
                }
                Err(frame) => frame.into_trailers().unwrap_or_default(),
            };
            return match (status_of(&trailers), next_message(&mut buffer, bytes_max)) {
                (Some((0, _)), Ok(Some(message))) => Raw::Reply(message),
                (Some((0, _)), Ok(None)) => Raw::NoReply("its reply has no message".to_owned()),
                (Some((0, _)), Err(reason)) => Raw::NoReply(reason),
                (Some((code, message)), _) => Raw::Refused(code, message),
                (None, _) => Raw::NoReply("its reply ends without a status".to_owned()),
            };
        }
    }

    /// What the head of a reply says that has no messages.
    fn refusal(&self, response: &Response<Incoming>) -> Option<Raw> {
        let (status, headers) = (response.status(), response.headers());
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

    /// A connection that ended without a reply. Behind TLS that is also how a certificate is refused:
    /// the handshake ends for the client before its own certificate was looked at, and the reason does
    /// not always arrive after it.
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

/// Speaks HTTP/2 on a stream. The connection ends with the last request on it and the handle.
async fn begin<S>(stream: S) -> Result<SendRequest<Once>, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let executor = TokioExecutor::new();
    let (requests, connection) = Builder::new(executor.clone())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| causes(&error))?;
    executor.execute(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to etcd has ended");
        }
    });
    Ok(requests)
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
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let frame = frame.map_err(|error| causes(&error))?;
            match frame.into_data() {
                Ok(data) => self.buffer.extend_from_slice(&data),
                Err(frame) => {
                    return match frame.into_trailers().ok().and_then(|found| status_of(&found)) {
                        Some((0, _)) | None => Ok(None),
                        Some((code, message)) => Err(format!("it ended with {code}: {message}")),
                    };
                }
            }
        }
    }
}

/// Takes the first message of a buffer that has a whole one.
///
/// # Errors
/// A sentence where it is longer than `bytes_max`, or compressed.
pub(super) fn next_message(
    buffer: &mut BytesMut,
    bytes_max: usize,
) -> Result<Option<Bytes>, String> {
    let Some((&[kind, a, b, c, d], rest)) = buffer.split_first_chunk::<ENVELOPE>() else {
        return Ok(None);
    };
    if kind != 0 {
        return Err("its reply is compressed, or none of etcd's".to_owned());
    }
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > bytes_max {
        return Err(format!("it replies more than {bytes_max} bytes"));
    }
    if rest.len() < length {
        return Ok(None);
    }
    buffer.advance(ENVELOPE);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// The status that headers or trailers name, with its message.
pub(super) fn status_of(headers: &HeaderMap) -> Option<(u32, String)> {
    let code = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    let message = headers.get("grpc-message").map(HeaderValue::as_bytes).unwrap_or_default();
    let message = String::from_utf8_lossy(message);
    Some((code, percent_decode_str(&message).decode_utf8_lossy().into_owned()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_whole() {
        let mut buffer = BytesMut::from(&b"\0\0\0\0\x02ab\0\0\0\0\0\0\0"[..]);
        assert_eq!(next_message(&mut buffer, 2).unwrap().unwrap(), &b"ab"[..]);
        assert_eq!(next_message(&mut buffer, 2).unwrap().unwrap(), &b""[..]);
        assert_eq!(next_message(&mut buffer, 2), Ok(None));
        buffer.extend_from_slice(b"\0\0\x03");
        assert!(next_message(&mut buffer, 2).unwrap_err().contains("more than 2 bytes"));
        let mut compressed = BytesMut::from(&b"\x01\0\0\0\x01a"[..]);
        assert!(next_message(&mut compressed, 2).is_err());
    }

    #[test]
    fn a_status_has_a_message() {
        let mut headers = HeaderMap::new();
        assert_eq!(status_of(&headers), None);
        headers.insert("grpc-status", HeaderValue::from_static("14"));
        assert_eq!(status_of(&headers), Some((14, String::new())));
        headers.insert("grpc-message", HeaderValue::from_static("no%20leader%"));
        assert_eq!(status_of(&headers), Some((14, "no leader%".to_owned())));
        headers.insert("grpc-status", HeaderValue::from_static("x"));
        assert_eq!(status_of(&headers), None);
    }
}
