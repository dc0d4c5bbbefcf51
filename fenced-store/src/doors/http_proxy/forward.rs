//! One request to the upstream, and the meaning of its reply for the lane.

use std::fmt;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use fence_protocol::Code;
use fence_protocol::wire::fence::WriteOutcome as WireOutcome;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LANGUAGE,
    CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HOST, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_RANGE, IF_UNMODIFIED_SINCE, PRAGMA, RANGE, TRANSFER_ENCODING,
};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version};
use http_body::Body as _;
use http_body_util::{Either, Full};
use service_kit::problem::Reject;
use service_kit::tls::ServerUrl;
use service_kit::trace;
use tokio::time::error::Elapsed;
use tower::BoxError;

use super::body::StreamedReply;
use super::client::{Client, Lost, ReplyBody, UpstreamBody, chain, is_goodbye};
use super::conditions::probe::PROBED_BYTES;
use super::headers;
use super::path_key::PathKey;
use super::received::{ReceivedReply, ReplyLimits};
use super::upstream::{Upstream, is_unknown};
use crate::guard::UNKNOWN_HINT;
use crate::rules::{Intent, Resource};

/// A request that was checked.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) method: Method,
    pub(super) key: PathKey,
    pub(super) query: Option<String>,
    pub(super) headers: http::HeaderMap,
    pub(super) body: UpstreamBody,
}

impl Checked {
    /// Path and query: the name of the resource.
    pub(super) fn target(&self) -> String {
        match &self.query {
            Some(query) => format!("/{}?{query}", self.key),
            None => format!("/{}", self.key),
        }
    }

    /// Returns `true` if the body was received whole, so that it can be sent again, and is no
    /// larger than what the probe has shown of such writes.
    pub(super) fn is_repeatable(&self) -> bool {
        let Either::Left(body) = &self.body else { return false };
        body.size_hint().exact().is_some_and(|bytes| bytes <= PROBED_BYTES as u64)
    }

    /// Takes the request out, to send it. A body that was received whole stays here too.
    pub(super) fn take(&mut self) -> Self {
        let body = match &self.body {
            Either::Left(whole) => Either::Left(whole.clone()),
            Either::Right(_) => std::mem::replace(&mut self.body, Either::Left(Full::default())),
        };
        let Self { method, key, query, headers, .. } = self;
        Self {
            method: method.clone(),
            key: key.clone(),
            query: query.clone(),
            headers: headers.clone(),
            body,
        }
    }

    /// Makes the HEAD of the same resource, with the credentials of this request.
    pub(super) fn head(&self) -> Self {
        let mut headers = self.headers.clone();
        for name in OF_A_BODY_OR_CONDITION {
            headers.remove(name);
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        let body = Either::Left(Full::default());
        let key = self.key.clone();
        Self { method: Method::HEAD, key, query: self.query.clone(), headers, body }
    }

    /// Returns the resource, as rules see it.
    pub(super) fn resource(&self) -> Resource<'_> {
        Resource { key: self.key.bytes(), method: Some(&self.method) }
    }
}

/// Headers that a HEAD must not take from a write: they select another representation, or describe
/// the body.
const OF_A_BODY_OR_CONDITION: [HeaderName; 21] = [
    ACCEPT,
    ACCEPT_ENCODING,
    ACCEPT_LANGUAGE,
    CACHE_CONTROL,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    PRAGMA,
    RANGE,
    TRANSFER_ENCODING,
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("repr-digest"),
];

/// Method and resource of a request, for messages.
struct What {
    method: Method,
    key: PathKey,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.key)
    }
}

/// Sender of requests to the upstream.
#[derive(Clone, Debug)]
pub(super) struct Forwarder {
    pub(super) url: ServerUrl,
    /// Name of the upstream, for its Host header.
    pub(super) host: HeaderValue,
    pub(super) timeout: Duration,
    unknown_statuses: Vec<StatusCode>,
    pub(super) reply_limits: ReplyLimits,
}

/// Verdict of a request that has a reply, for the metrics.
pub(super) const APPLIED: &str = "applied";

/// Result of a forwarded request, for the lane and the client.
#[derive(Debug)]
pub(super) struct Forwarded {
    /// The operation has an unknown outcome: it may still take effect.
    pub(super) is_unknown: bool,
    /// Word for the metrics: `applied` (there was a reply), `not-sent` or `unknown`.
    pub(super) verdict: &'static str,
    /// The reply.
    pub(super) response: Response,
}

impl Forwarder {
    pub(super) fn new(upstream: &Upstream, reply_limits: ReplyLimits) -> Self {
        Self {
            host: HeaderValue::try_from(upstream.url.authority().as_str())
                .unwrap_or(HeaderValue::from_static("upstream")),
            url: upstream.url.clone(),
            timeout: upstream.timeout,
            unknown_statuses: upstream.unknown_statuses.clone(),
            reply_limits,
        }
    }

    /// Sends a HEAD, whose reply is whole when its head is.
    pub(super) async fn head(&self, client: &Client, request: Checked) -> Forwarded {
        let what = What { method: Method::HEAD, key: request.key.clone() };
        let mut forwarded = self.write(client, request).await;
        if forwarded.is_unknown {
            return self.unreachable(&what, "it has not replied");
        }
        // The length of a body that does not come.
        forwarded.response.headers_mut().remove(CONTENT_LENGTH);
        forwarded
    }

    /// Sends a request that may change something. Its reply is received whole before the operation
    /// ends: a slow client must not hold up the lane.
    ///
    /// A reply counts if the term holds after its last byte was read: the write has then taken
    /// effect before any other guard was granted the lead. Later, a stop may have lain before the
    /// write itself, so its outcome is unknown.
    pub(super) async fn write(&self, client: &Client, request: Checked) -> Forwarded {
        let what = What { method: request.method.clone(), key: request.key.clone() };
        let request = match self.request(request) {
            Ok(request) => request,
            Err(reject) => return not_sent(*reject),
        };
        let term = client.term();
        if !term.holds() {
            return not_leader(&what);
        }
        // Boxed: the futures around it are moved.
        let exchange = Box::pin(self.exchange(client, request));
        let exchange = term.run(tokio::time::timeout(self.timeout, exchange)).await;
        let is_unsent =
            |replied: &_| matches!(replied, Ok(Err(Lost::NotSent(_) | Lost::NotLeader)));
        match exchange {
            Some(replied) if term.holds() || is_unsent(&replied) => self.replied(&what, replied),
            _ => self.unknown(&what, "the guard's term ended before the reply was complete"),
        }
    }

    fn replied(
        &self,
        what: &What,
        replied: Result<Result<(http::response::Parts, ReceivedReply), Lost>, Elapsed>,
    ) -> Forwarded {
        match replied {
            Err(_) => self.unknown(what, &self.silence()),
            Ok(Err(Lost::NotLeader)) => not_leader(what),
            Ok(Err(Lost::NotSent(why))) => self.unreachable(what, &why),
            Ok(Err(Lost::Unknown(why))) => self.unknown(what, &why),
            Ok(Ok((head, body))) => self.answered(what, head, body),
        }
    }

    async fn exchange(
        &self,
        client: &Client,
        request: Request<UpstreamBody>,
    ) -> Result<(http::response::Parts, ReceivedReply), Lost> {
        let (head, mut body) = client.send(request, Intent::Write).await?.into_parts();
        if is_goodbye(head.status) && body.may_be_unasked() {
            return Err(Lost::Unknown("it replied 408 on a connection that had rested".to_owned()));
        }
        let mut received = ReceivedReply::new(&self.reply_limits);
        while !body.is_end_stream()
            && let Some(frame) = poll_fn(|cx| body.poll_frame(cx)).await
        {
            let broke_off = |error: BoxError| {
                Lost::Unknown(format!("its reply broke off: {}", chain(error.as_ref())))
            };
            if let Ok(data) = frame.map_err(broke_off)?.into_data() {
                received.push(data);
            }
        }
        release(client, body).await;
        Ok((head, received))
    }

    fn answered(
        &self,
        what: &What,
        head: http::response::Parts,
        received: ReceivedReply,
    ) -> Forwarded {
        if is_unknown(head.status) || self.unknown_statuses.contains(&head.status) {
            return self.unknown(what, &format!("it replied {}", head.status));
        }
        // 202: accepted, and not yet applied.
        let is_unknown = head.status == StatusCode::ACCEPTED;
        if received.is_cut() {
            tracing::warn!(
                %what, status = head.status.as_u16(), limit_bytes = self.reply_limits.bytes_max,
                "the reply to a write has no room in memory: its client gets a part"
            );
        }
        let response = relay(head, received.finish());
        Forwarded { is_unknown, verdict: APPLIED, response }
    }

    /// Sends a request that changes nothing, and streams the reply.
    pub(super) async fn read(&self, client: &Client, request: Checked) -> Forwarded {
        let what = What { method: request.method.clone(), key: request.key.clone() };
        let request = match self.request(request) {
            Ok(request) => request,
            Err(reject) => return not_sent(*reject),
        };
        let reply =
            tokio::time::timeout(self.timeout, Box::pin(client.send(request, Intent::Read)));
        let reply = client.term().run(reply).await;
        let Some(reply) = reply.filter(|_| client.term().holds()) else {
            return not_leader(&what);
        };
        let lost = match reply {
            Ok(Ok(response)) => {
                let (head, body) = response.into_parts();
                // An empty body is never polled.
                let body = if body.is_end_stream() {
                    release(client, body).await;
                    Body::empty()
                } else {
                    Body::new(StreamedReply::new(body, client.clone(), self.timeout))
                };
                let response = relay(head, body);
                return Forwarded { is_unknown: false, verdict: APPLIED, response };
            }
            Ok(Err(Lost::NotLeader)) => return not_leader(&what),
            Ok(Err(Lost::NotSent(why) | Lost::Unknown(why))) => why,
            Err(_) => self.silence(),
        };
        self.unreachable(&what, &lost)
    }

    /// Makes the upstream's request: the canonical path, the query unchanged, the upstream's name.
    fn request(&self, checked: Checked) -> Result<Request<UpstreamBody>, Box<Reject>> {
        let refuse = |error: String| Box::new(Reject::new(Code::InvalidRequest, error));
        let uri = Uri::builder()
            .path_and_query(checked.target())
            .build()
            .map_err(|error| refuse(format!("the path cannot be forwarded: {error}")))?;
        let mut request = Request::new(checked.body);
        *request.method_mut() = checked.method;
        *request.uri_mut() = uri;
        *request.version_mut() = Version::HTTP_11;
        *request.headers_mut() = checked.headers;
        headers::clean_request(request.headers_mut());
        request.headers_mut().insert(HOST, self.host.clone());
        if let Some(context) = trace::header() {
            request.headers_mut().insert(trace::HEADER, context);
        }
        Ok(request)
    }

    fn silence(&self) -> String {
        format!("no reply within {} ms", self.timeout.as_millis())
    }

    fn unknown(&self, what: &What, why: &str) -> Forwarded {
        let detail = format!("{what} was sent to {}, and {why}", self.url);
        let reject = Reject::new(Code::OutcomeUnknown, detail)
            .with("outcome", WireOutcome::Unknown)
            .hint(UNKNOWN_HINT);
        Forwarded { is_unknown: true, verdict: "unknown", response: reject.into_response() }
    }

    fn unreachable(&self, what: &What, why: &str) -> Forwarded {
        let detail = format!("{what} could not be forwarded to {}: {why}", self.url);
        not_sent(
            Reject::new(Code::UpstreamUnavailable, detail).with("outcome", WireOutcome::NotApplied),
        )
    }
}

async fn release(client: &Client, body: ReplyBody) {
    let mut body = Some(body);
    poll_fn(|cx| {
        if let Some(body) = body.take() {
            body.release(client, cx);
        }
        Poll::Ready(())
    })
    .await;
}

fn not_leader(what: &What) -> Forwarded {
    let detail = format!("{what} was not forwarded: this guard's term has ended");
    not_sent(
        Reject::new(Code::NotLeader, detail)
            .with("outcome", WireOutcome::NotApplied)
            .retry_after(1),
    )
}

fn not_sent(reject: Reject) -> Forwarded {
    Forwarded { is_unknown: false, verdict: "not-sent", response: reject.into_response() }
}

fn relay(mut head: http::response::Parts, body: Body) -> Response {
    headers::clean_response(&mut head.headers);
    head.version = Version::HTTP_11;
    head.extensions = http::Extensions::new();
    Response::from_parts(head, body)
}
