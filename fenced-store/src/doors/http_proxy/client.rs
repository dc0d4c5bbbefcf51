//! HTTP client for the upstream: no retries of what may have been sent, no redirects.
//!
//! A connection of HTTP/1 is driven by the task of its request, and rests in the pool of its thread
//! between two of them; one of HTTP/2 has a task, and many requests. The pool's library would need
//! a task and several wake-ups a request, and has no bound on how stale a connection may be that
//! fits writes.

mod connection;
mod exchange;
mod pool;
mod shared;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_rustls::MaybeHttpsStream;
use service_kit::tasks::Tasks;
use tower::{BoxError, ServiceExt as _};

use super::term::Term;
use super::upstream::Upstream;
use crate::https::{Connector, UpstreamHttp};
use crate::rules::{Intent, is_safe};

use self::connection::{Connection, ProbedIo};
use self::exchange::{Exchange, Unanswered};
use self::pool::Pool;
use self::shared::{Lease, SharedConnection};

/// Times that a request is sent at most, as long as it is certainly not processed.
const SENDS: u32 = 3;

/// Body of a request: received whole, or streamed.
pub(super) type UpstreamBody = Either<Full<Bytes>, Body>;

/// Failure of a request without a reply.
#[derive(Debug)]
pub(super) enum Lost {
    /// Nothing was sent: there is no connection, or it had ended before the request's turn.
    NotSent(String),
    /// Nothing was sent: the guard's term has ended.
    NotLeader,
    /// It was sent, in whole or in part.
    Unknown(String),
}

/// Body of a reply, with the connection or stream that it comes from. Dropping it before its end
/// closes the one or resets the other.
#[derive(Debug)]
pub(super) enum ReplyBody {
    /// HTTP/1.
    Connection(Box<Connection>, Incoming),
    /// HTTP/2.
    Stream(Box<Exchange>),
}

/// Attempt to send a request.
enum Sent {
    Replied(Response<ReplyBody>),
    /// Nothing was sent.
    Unsent(Request<UpstreamBody>),
}

/// Way to send a request.
enum Opened {
    /// New connection of HTTP/1.
    Alone(Box<Connection>),
    /// Place on a connection of HTTP/2.
    Shared(Lease),
}

/// Sender of requests to the upstream, in one term. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) upstream: Arc<Upstream>,
    connector: Connector,
    origin: Uri,
    /// The upstream chose HTTP/1 last, if it has the choice.
    chose_http1: Arc<AtomicBool>,
    pool: Arc<Pool>,
    term: Term,
}

impl Client {
    /// Makes a client. Connecting, with the TLS handshake, gets half of the time of a request, so
    /// that a failure to connect is never taken for a lost reply.
    pub(super) fn new(upstream: &Arc<Upstream>, term: Term, tasks: &Tasks) -> Self {
        let pool = Arc::new(Pool::new(upstream.idle));
        Pool::start_pruning(&pool, tasks);
        Self {
            connector: upstream.https.connector(upstream.timeout / 2, upstream.http),
            origin: upstream.url.base().parse().unwrap_or_default(),
            upstream: Arc::clone(upstream),
            chose_http1: Arc::default(),
            pool,
            term,
        }
    }

    /// Term in which requests may be sent.
    pub(super) fn term(&self) -> &Term {
        &self.term
    }

    /// Sends a request and awaits the head of the reply. The rest moves only while the body of the
    /// reply is polled.
    ///
    /// A connection that ended before the request's turn hands it back, and then another one is
    /// used: nothing was sent. So does one whose upstream states that it has not processed the
    /// request (HTTP/2), and a GET, HEAD or OPTIONS whose reused connection (HTTP/1) ended before a
    /// byte of the reply. Anything else that breaks before the reply is an unknown outcome.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection, or resets the stream; the upstream may still act
    /// on the request.
    pub(super) async fn send(
        &self,
        mut request: Request<UpstreamBody>,
        effect: Intent,
    ) -> Result<Response<ReplyBody>, Lost> {
        if !self.term.holds() {
            return Err(Lost::NotLeader);
        }
        if !self.may_share() {
            match self.send_warm(request, effect).await? {
                Sent::Replied(response) => return Ok(response),
                Sent::Unsent(unsent) => request = unsent,
            }
        }
        let mut refusal = String::new();
        for _ in 0..SENDS {
            // Boxed: it is large and rare, and every request would move room for it.
            let lease = match Box::pin(self.open()).await? {
                Opened::Alone(connection) => return self.send_first(connection, request).await,
                Opened::Shared(lease) => lease,
            };
            match exchange::send(lease, &self.origin, request).await {
                Ok((head, exchange)) => {
                    return checked(head.map(|()| ReplyBody::Stream(Box::new(exchange))));
                }
                Err(Unanswered::Unknown(error)) => return Err(Lost::Unknown(chain(&error))),
                Err(Unanswered::NotProcessed(error, unsent)) => {
                    refusal = format!("it did not process the request: {}", chain(&error));
                    let Some(unsent) = unsent else { break };
                    request = *unsent;
                }
            }
        }
        Err(Lost::NotSent(refusal))
    }

    /// Sends a request on a connection of HTTP/1 that has carried others; hands it back if there is
    /// none, or if the one ended without a byte of a reply and the request changes nothing: the
    /// upstream closed it while the request was on its way (RFC 9110 section 9.2.2).
    async fn send_warm(
        &self,
        mut request: Request<UpstreamBody>,
        effect: Intent,
    ) -> Result<Sent, Lost> {
        while let Some(mut connection) = self.pool.take() {
            if !poll_fn(|cx| Poll::Ready(connection.is_usable(cx))).await {
                continue;
            }
            let again = if effect == Intent::Read { copy_of_a_read(&request) } else { None };
            if again.is_some() {
                connection.await_first_byte();
            }
            match connection.send(request).await {
                Ok(response) => match again.filter(|_| is_goodbye(response.status())) {
                    Some(again) => return Ok(Sent::Unsent(again)),
                    None => return replied(connection, response).map(Sent::Replied),
                },
                Err(mut error) => match (error.take_message(), again) {
                    (Some(unsent), _) => request = unsent,
                    (None, Some(again)) if connection.awaits_first_byte() => {
                        return Ok(Sent::Unsent(again));
                    }
                    _ => return Err(self.lost(&connection, error.error())),
                },
            }
        }
        Ok(Sent::Unsent(request))
    }

    /// Sends the first request on a connection of HTTP/1.
    async fn send_first(
        &self,
        mut connection: Box<Connection>,
        request: Request<UpstreamBody>,
    ) -> Result<Response<ReplyBody>, Lost> {
        match connection.send(request).await {
            Ok(response) => replied(connection, response),
            Err(error) if error.message().is_some() => Err(Lost::NotSent(chain(error.error()))),
            Err(error) => Err(self.lost(&connection, error.error())),
        }
    }

    /// Returns `true` if the upstream may speak HTTP/2.
    fn may_share(&self) -> bool {
        match self.upstream.http {
            UpstreamHttp::H1 => false,
            UpstreamHttp::H2 => true,
            UpstreamHttp::Auto => !self.chose_http1.load(Ordering::Relaxed),
        }
    }

    /// Takes a place on a connection that requests share, or makes a connection.
    async fn open(&self) -> Result<Opened, Lost> {
        if !self.may_share() || !self.pool.is_used() {
            return self.connect().await;
        }
        let lease = || poll_fn(|cx| Poll::Ready(self.pool.lease(cx)));
        if let Some(lease) = lease().await {
            return Ok(Opened::Shared(lease));
        }
        let connecting = self.pool.connecting();
        let turn = connecting.turn().await.map_err(Lost::NotSent)?;
        if let Some(lease) = lease().await {
            return Ok(Opened::Shared(lease));
        }
        let opened = self.connect().await;
        match &opened {
            Err(Lost::NotSent(error)) => turn.failed(error),
            Ok(Opened::Shared(lease)) => self.pool.put_shared(lease.connection()),
            Ok(Opened::Alone(_)) | Err(_) => {}
        }
        opened
    }

    fn lost(&self, connection: &Connection, error: &hyper::Error) -> Lost {
        match connection.has_sent() || self.term.holds() {
            true => Lost::Unknown(chain(error)),
            false => Lost::NotLeader,
        }
    }

    /// Keeps a connection whose reply was read to its end, if it can carry another request.
    pub(super) fn release(&self, mut connection: Box<Connection>, cx: &mut Context<'_>) {
        if self.pool.is_used() && self.term.holds() && connection.is_ready(cx) {
            self.pool.put(connection);
        }
    }

    /// Makes a connection, ready for requests, within the time limit.
    async fn connect(&self) -> Result<Opened, Lost> {
        let limit = self.upstream.timeout / 2;
        tokio::time::timeout(limit, self.begin()).await.unwrap_or_else(|_| {
            Err(Lost::NotSent(format!("no connection within {} ms", limit.as_millis())))
        })
    }

    async fn begin(&self) -> Result<Opened, Lost> {
        let host = self.origin.host().unwrap_or_default();
        let connected = self.connector.clone().oneshot(self.origin.clone()).await;
        let stream = connected.map_err(|error| {
            let error = error.as_ref();
            Lost::NotSent(
                self.upstream.https.tls.explain(error, host).unwrap_or_else(|| chain(error)),
            )
        })?;
        let is_http2 = match &stream {
            MaybeHttpsStream::Http(_) => self.upstream.http == UpstreamHttp::H2,
            MaybeHttpsStream::Https(tls) => tls.inner().get_ref().1.alpn_protocol() == Some(b"h2"),
        };
        if !is_http2 && self.upstream.http == UpstreamHttp::H2 {
            let text = "it does not speak HTTP/2 over TLS (ALPN); set --upstream-http auto";
            return Err(Lost::NotSent(text.to_owned()));
        }
        self.chose_http1.store(!is_http2, Ordering::Relaxed);
        let unacknowledged = self.term.is_limited().then(|| self.upstream.unacknowledged());
        let (io, flags) = ProbedIo::new(stream, self.term.clone(), unacknowledged)
            .map_err(|error| Lost::NotSent(error.to_string()))?;
        if is_http2 {
            let lease = SharedConnection::begin(io, flags, self.term.clone()).await;
            return lease.map(Opened::Shared).map_err(Lost::NotSent);
        }
        let (sender, driver) =
            http1::handshake(io).await.map_err(|error| Lost::NotSent(chain(&error)))?;
        // It has kilobytes, which would be moved several times a request.
        Ok(Opened::Alone(Box::new(Connection::new(sender, driver, flags))))
    }
}

impl ReplyBody {
    /// Returns `true` if the reply may belong to no request: a server sends one before it closes a
    /// connection at rest.
    pub(super) fn may_be_unasked(&self) -> bool {
        matches!(self, Self::Connection(connection, _) if connection.is_reused())
    }

    /// Polls the next frame.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self {
            Self::Connection(connection, body) => {
                connection.poll_frame(body, cx).map(|frame| frame.map(|frame| Ok(frame?)))
            }
            Self::Stream(exchange) => {
                exchange.poll_frame(cx).map(|frame| frame.map(|frame| Ok(frame?)))
            }
        }
    }

    /// Returns `true` if there is no further byte.
    pub(super) fn is_end_stream(&self) -> bool {
        match self {
            Self::Connection(_, body) => body.is_end_stream(),
            Self::Stream(exchange) => exchange.is_end_stream(),
        }
    }

    /// Bytes that are left.
    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Connection(_, body) => body.size_hint(),
            Self::Stream(_) => SizeHint::default(),
        }
    }

    /// Keeps the connection, after the last byte.
    pub(super) fn release(self, client: &Client, cx: &mut Context<'_>) {
        if let Self::Connection(connection, _) = self {
            client.release(connection, cx);
        }
    }
}

/// Returns a copy of a GET, HEAD or OPTIONS whose body is here whole.
fn copy_of_a_read(request: &Request<UpstreamBody>) -> Option<Request<UpstreamBody>> {
    let Either::Left(body) = request.body() else { return None };
    is_safe(request.method()).then(|| {
        let mut copy = Request::new(Either::Left(body.clone()));
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.version_mut() = request.version();
        *copy.headers_mut() = request.headers().clone();
        copy
    })
}

/// Returns `true` for a status that servers send to a connection at rest before they close it: then
/// it is no reply.
pub(super) fn is_goodbye(status: StatusCode) -> bool {
    status == StatusCode::REQUEST_TIMEOUT
}

fn replied(
    connection: Box<Connection>,
    response: Response<Incoming>,
) -> Result<Response<ReplyBody>, Lost> {
    checked(response.map(|body| ReplyBody::Connection(connection, body)))
}

/// Checks the head of a reply, and leaves one length in it at most. The HTTP library does not check
/// the length in a reply to HEAD, and hands over a 101, which no request asks for.
///
/// # Errors
/// [`Lost::Unknown`] if it is no reply.
fn checked<B>(mut response: Response<B>) -> Result<Response<B>, Lost> {
    if response.status().is_informational() {
        return Err(Lost::Unknown(format!("it replied {}", response.status())));
    }
    let headers = response.headers_mut();
    if headers.contains_key(TRANSFER_ENCODING) {
        // It overrides the length (RFC 9112 section 6.3).
        headers.remove(CONTENT_LENGTH);
    }
    if let Some(length) = stated_length(headers)? {
        let mut stated = headers.get_all(CONTENT_LENGTH).iter();
        let is_listed = stated.next().is_some_and(|value| value.as_bytes().contains(&b','));
        if is_listed || stated.next().is_some() {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
    }
    Ok(response)
}

/// Returns the length that a head states, in bytes; one that is repeated is one (RFC 9110 section
/// 8.6).
///
/// # Errors
/// [`Lost::Unknown`] if there are two, or one is no number.
fn stated_length(headers: &HeaderMap) -> Result<Option<u64>, Lost> {
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        for text in value.to_str().unwrap_or_default().split(',').map(str::trim) {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            let stated = text.parse::<u64>().ok().filter(|_| is_number);
            if stated.is_none() || length.or(stated) != stated {
                return Err(Lost::Unknown("its reply has an invalid Content-Length".to_owned()));
            }
            length = stated;
        }
    }
    Ok(length)
}

/// Formats an error with its causes, in one line.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
