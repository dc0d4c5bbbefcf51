//! One request to the upstream, and the meaning of its reply for the lane.

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use fence_protocol::Code;
use fence_protocol::wire::fence::WriteOutcome as WireOutcome;
use futures_util::stream::try_unfold;
use http::header::HOST;
use http::{HeaderValue, Method, Request, StatusCode, Uri, Version};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use service_kit::problem::Reject;
use service_kit::tls::ServerUrl;
use service_kit::trace;

use super::client::{Client, Lost, chain};
use super::headers;
use crate::key::ObjectKey;
use crate::service::UNKNOWN_HINT;

/// A request that was received whole and checked.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) method: Method,
    pub(super) key: ObjectKey,
    pub(super) query: Option<String>,
    pub(super) headers: http::HeaderMap,
    pub(super) body: Bytes,
}

/// Sender of requests to the upstream.
#[derive(Clone, Debug)]
pub(super) struct Forwarder {
    pub(super) client: Client,
    pub(super) url: ServerUrl,
    pub(super) timeout: Duration,
    pub(super) max_reply_bytes: usize,
}

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

/// Returns `true` for methods that change nothing (RFC 9110).
pub(super) fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

impl Forwarder {
    /// Sends a request that may change something. Its reply is received whole before the operation
    /// ends: a slow client must not hold up the lane.
    pub(super) async fn write(&self, request: Checked) -> Forwarded {
        let what = format!("{} {}", request.method, request.key);
        let request = match self.request(request) {
            Ok(request) => request,
            Err(reject) => return not_sent(*reject),
        };
        let exchange = async {
            let response = self.client.send(request, true).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, self.max_reply_bytes).collect().await;
            Ok((head, body.map(|body| body.to_bytes()).map_err(|error| error.to_string())))
        };
        match tokio::time::timeout(self.timeout, exchange).await {
            Err(_) => {
                self.unknown(&what, &format!("no reply within {} ms", self.timeout.as_millis()))
            }
            Ok(Err(Lost::NotSent(why))) => self.unreachable(&what, &why),
            Ok(Err(Lost::Unknown(why))) => self.unknown(&what, &why),
            Ok(Ok((_, Err(why)))) => self.unknown(&what, &format!("its reply broke off: {why}")),
            Ok(Ok((head, Ok(body)))) => self.answered(&what, head, body),
        }
    }

    fn answered(&self, what: &str, head: http::response::Parts, body: Bytes) -> Forwarded {
        // A gateway replied; the request may still be on its way behind it.
        if matches!(head.status, StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT)
            || head.status.is_informational()
        {
            return self.unknown(what, &format!("it replied {}", head.status));
        }
        // 202: accepted, and not yet applied.
        let is_unknown = head.status == StatusCode::ACCEPTED;
        let response = relay(head, Body::from(body));
        Forwarded { is_unknown, verdict: "applied", response }
    }

    /// Sends a request that changes nothing, and streams the reply.
    pub(super) async fn read(&self, request: Checked) -> Forwarded {
        let what = format!("{} {}", request.method, request.key);
        let request = match self.request(request) {
            Ok(request) => request,
            Err(reject) => return not_sent(*reject),
        };
        let reply = tokio::time::timeout(self.timeout, self.client.send(request, false)).await;
        let lost = match reply {
            Ok(Ok(response)) => {
                let (head, body) = response.into_parts();
                let response = relay(head, self.streamed(body));
                return Forwarded { is_unknown: false, verdict: "applied", response };
            }
            Ok(Err(Lost::NotSent(why) | Lost::Unknown(why))) => why,
            Err(_) => format!("no reply within {} ms", self.timeout.as_millis()),
        };
        self.unreachable(&what, &lost)
    }

    /// Streams a body, and ends it if the upstream pauses for too long.
    fn streamed(&self, body: Incoming) -> Body {
        let timeout = self.timeout;
        Body::from_stream(try_unfold(body, move |mut body| async move {
            loop {
                let frame = tokio::time::timeout(timeout, body.frame())
                    .await
                    .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))?;
                let Some(frame) = frame else { return Ok(None) };
                let frame = frame.map_err(|error| std::io::Error::other(chain(&error)))?;
                if let Ok(data) = frame.into_data() {
                    return Ok::<_, std::io::Error>(Some((data, body)));
                }
            }
        }))
    }

    /// Makes the upstream's request: the canonical path, the query unchanged, the upstream's name.
    fn request(&self, checked: Checked) -> Result<Request<Full<Bytes>>, Box<Reject>> {
        let refuse = |error: String| Box::new(Reject::new(Code::InvalidRequest, error));
        let path = match &checked.query {
            Some(query) => format!("/{}?{query}", checked.key),
            None => format!("/{}", checked.key),
        };
        let uri = Uri::builder()
            .scheme(self.url.scheme())
            .authority(self.url.authority().clone())
            .path_and_query(path)
            .build()
            .map_err(|error| refuse(format!("the path cannot be forwarded: {error}")))?;
        let host = HeaderValue::try_from(self.url.authority().as_str())
            .map_err(|error| refuse(format!("the upstream's name cannot be sent: {error}")))?;
        let mut request = Request::new(Full::new(checked.body));
        *request.method_mut() = checked.method;
        *request.uri_mut() = uri;
        *request.version_mut() = Version::HTTP_11;
        *request.headers_mut() = checked.headers;
        headers::clean_request(request.headers_mut());
        request.headers_mut().insert(HOST, host);
        if let Some(context) = trace::header() {
            request.headers_mut().insert(trace::HEADER, context);
        }
        Ok(request)
    }

    fn unknown(&self, what: &str, why: &str) -> Forwarded {
        let detail = format!("{what} was sent to {}, and {why}", self.url);
        let reject = Reject::new(Code::OutcomeUnknown, detail)
            .with("outcome", WireOutcome::Unknown)
            .hint(UNKNOWN_HINT);
        Forwarded { is_unknown: true, verdict: "unknown", response: reject.into_response() }
    }

    fn unreachable(&self, what: &str, why: &str) -> Forwarded {
        let detail = format!("{what} could not be forwarded to {}: {why}", self.url);
        not_sent(
            Reject::new(Code::UpstreamUnavailable, detail).with("outcome", WireOutcome::NotApplied),
        )
    }
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
