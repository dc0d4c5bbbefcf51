//! One request to the upstream, and the meaning of its reply for the lane.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use fence_protocol::Code;
use fence_protocol::wire::fence::WriteOutcome as WireOutcome;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LANGUAGE,
    CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HOST, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_RANGE, IF_UNMODIFIED_SINCE, PRAGMA, RANGE, TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version};
use http_body::Body as _;
use http_body_util::{Either, Full};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use service_kit::problem::Reject;
use service_kit::{clock, trace};
use tower::BoxError;

use super::body::{ReceivedReply, ReplyLimits, StreamedReply};
use super::client::{Client, Lost, ReplyBody, UpstreamBody, chain, is_goodbye};
use super::conditions::probe::PROBED_BYTES;
use super::headers;
use super::lane::Kind;
use super::leadership::ServedTerm;
use super::path_key::PathKey;
use super::upstream::{Upstream, is_unknown};
use crate::counters::Counters;
use crate::guard::UNKNOWN_HINT;
use crate::rules::{Intent, Resource};

/// A request that was checked.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) method: Method,
    pub(super) key: PathKey,
    pub(super) query: Option<String>,
    pub(super) headers: HeaderMap,
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
        self.with(self.method.clone(), self.headers.clone(), body)
    }

    /// Makes the HEAD of the same resource, with the credentials of this request.
    pub(super) fn head(&self) -> Self {
        let mut headers = self.headers.clone();
        for name in OF_A_BODY_OR_CONDITION {
            headers.remove(name);
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        self.with(Method::HEAD, headers, Either::Left(Full::default()))
    }

    /// Makes another request for the same resource.
    fn with(&self, method: Method, headers: HeaderMap, body: UpstreamBody) -> Self {
        Self { method, key: self.key.clone(), query: self.query.clone(), headers, body }
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
    pub(super) upstream: Arc<Upstream>,
    /// Name of the upstream, for its Host header.
    host: HeaderValue,
    reply_limits: ReplyLimits,
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
    pub(super) fn new(upstream: &Arc<Upstream>, reply_limits: ReplyLimits) -> Self {
        let host = HeaderValue::try_from(upstream.url.authority().as_str())
            .unwrap_or(HeaderValue::from_static("upstream"));
        Self { upstream: Arc::clone(upstream), host, reply_limits }
    }

    /// Sends a HEAD, whose reply is whole when its head is.
    pub(super) async fn head(&self, client: &Client, request: Checked) -> Forwarded {
        let what = What { method: Method::HEAD, key: request.key.clone() };
        let mut forwarded = self.send(client, request, Intent::Write).await;
        if forwarded.is_unknown {
            return self.unreachable(&what, "it has not replied");
        }
        // The length of a body that does not come.
        forwarded.response.headers_mut().remove(CONTENT_LENGTH);
        forwarded
    }

    /// Sends a request of this effect.
    pub(super) async fn send(
        &self,
        client: &Client,
        request: Checked,
        effect: Intent,
    ) -> Forwarded {
        let what = What { method: request.method.clone(), key: request.key.clone() };
        let request = match self.request(request) {
            Ok(request) => request,
            Err(reject) => return not_sent(*reject),
        };
        // Boxed: the futures around them are moved.
        let forwarded = match effect {
            Intent::Read => self.read(client, Box::pin(client.send(request, effect))).await,
            Intent::Write => {
                self.write(&what, client, Box::pin(self.exchange(client, request))).await
            }
        };
        forwarded.unwrap_or_else(|lost| match lost {
            Lost::NotLeader => not_leader(&what),
            Lost::Unknown(why) if effect == Intent::Write => self.unknown(&what, &why),
            Lost::NotSent(why) | Lost::Unknown(why) => self.unreachable(&what, &why),
        })
    }

    /// Awaits the exchange of a request that may change something. Its reply is received whole
    /// before the operation ends: a slow client must not hold up the lane.
    ///
    /// A reply counts if the term holds after its last byte was read: the write has then taken
    /// effect before any other guard was granted the lead. Later, a stop may have lain before the
    /// write itself, so its outcome is unknown.
    async fn write(
        &self,
        what: &What,
        client: &Client,
        exchange: impl Future<Output = Result<(http::response::Parts, ReceivedReply), Lost>>,
    ) -> Result<Forwarded, Lost> {
        let term = client.term();
        if !term.holds() {
            return Err(Lost::NotLeader);
        }
        let is_unsent = |replied: &_| matches!(replied, Err(Lost::NotSent(_) | Lost::NotLeader));
        match term.run(self.in_time(exchange)).await {
            Some(replied) if term.holds() || is_unsent(&replied) => {
                replied.map(|(head, body)| self.answered(what, head, body))
            }
            _ => {
                let why = "the guard's term ended before the reply was complete";
                Err(Lost::Unknown(why.to_owned()))
            }
        }
    }

    /// Awaits a reply within the time limit.
    async fn in_time<T>(&self, reply: impl Future<Output = Result<T, Lost>>) -> Result<T, Lost> {
        let silence =
            || Lost::Unknown(format!("no reply within {} ms", self.upstream.timeout.as_millis()));
        tokio::time::timeout(self.upstream.timeout, reply).await.unwrap_or_else(|_| Err(silence()))
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
        if is_unknown(head.status) || self.upstream.unknown_statuses.contains(&head.status) {
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

    /// Awaits the reply to a request that changes nothing, and streams it.
    async fn read(
        &self,
        client: &Client,
        reply: impl Future<Output = Result<http::Response<ReplyBody>, Lost>>,
    ) -> Result<Forwarded, Lost> {
        let reply = client.term().run(self.in_time(reply)).await;
        let reply = reply.filter(|_| client.term().holds()).ok_or(Lost::NotLeader)?;
        let (head, body) = reply?.into_parts();
        // An empty body is never polled.
        let body = if body.is_end_stream() {
            release(client, body).await;
            Body::empty()
        } else {
            Body::new(StreamedReply::new(body, client.clone()))
        };
        Ok(Forwarded { is_unknown: false, verdict: APPLIED, response: relay(head, body) })
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

    fn unknown(&self, what: &What, why: &str) -> Forwarded {
        let detail = format!("{what} was sent to {}, and {why}", self.upstream.url);
        let reject = Reject::new(Code::OutcomeUnknown, detail)
            .with("outcome", WireOutcome::Unknown)
            .hint(UNKNOWN_HINT);
        Forwarded { is_unknown: true, verdict: "unknown", response: reject.into_response() }
    }

    fn unreachable(&self, what: &What, why: &str) -> Forwarded {
        let detail = format!("{what} could not be forwarded to {}: {why}", self.upstream.url);
        not_sent(
            Reject::new(Code::UpstreamUnavailable, detail).with("outcome", WireOutcome::NotApplied),
        )
    }
}

/// Sender of the proxy's requests, which counts and times them.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) forwarder: Forwarder,
    pub(super) counters: Counters,
    /// Metrics of most requests: they need no look-up by labels.
    forward_seconds: Histogram,
    applied: Counter,
}

impl Sender {
    pub(super) fn new(forwarder: Forwarder, counters: &Counters) -> Self {
        let forward_seconds = counters.times("forward");
        let applied = counters.operation("forward", APPLIED);
        Self { forwarder, counters: counters.clone(), forward_seconds, applied }
    }

    /// Sends a request in a term.
    pub(super) async fn send(&self, term: &ServedTerm, request: Checked, kind: Kind) -> Forwarded {
        let counters = &self.counters;
        counters.in_flight.inc();
        let begun = clock::now();
        let effect = if kind.is_write() { Intent::Write } else { Intent::Read };
        let forwarded = self.forwarder.send(&term.client, request, effect).await;
        counters.in_flight.dec();
        self.forward_seconds.observe(begun.elapsed().as_secs_f64());
        match forwarded.verdict {
            APPLIED => drop(self.applied.inc()),
            verdict => counters.count("forward", verdict),
        }
        forwarded
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
