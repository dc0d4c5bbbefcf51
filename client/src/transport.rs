//! HTTP: one request, one reply, and a precise failure when there is no reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fence_protocol::wire::fence::WriteOutcome;
use fence_protocol::{
    Code, FENCING_GUARANTEE, IDEMPOTENCY_REPLAYED, Problem, TRACEPARENT, TraceContext,
};
use https_client::{ServerUrl, TlsOptions};
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{BearerToken, Error, ErrorKind};

/// Longest JSON body that is read, in bytes.
const JSON_BYTES_MAX: usize = 4 << 20;
/// Time-out of connecting to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Idle time-out of pooled connections. Shorter than the servers' (75 s), so that a request does
/// not use a connection that the server is closing.
const POOL_IDLE: Duration = Duration::from_secs(60);

/// Member of a problem, `true` if the guard's header says that the reply states the outcome of an
/// earlier request with the same idempotency key.
pub(crate) const REPLAYED: &str = "idempotency_replayed";
/// Member of a 404 that a guard sent: other servers know nothing of objects.
pub(crate) const OF_GUARD: &str = "of_guard";

/// Effect of a request: one that changes something and got no reply has an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Reads,
    Changes,
}

/// Reason why there is no successful reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No connection could be made, so the request was not sent.
    NotSent(String),
    /// The request was sent, and no readable reply arrived.
    NoReply(String),
    /// The server replied with an error, and with its `Retry-After`.
    Refused(Box<Problem>, Option<Duration>),
    /// The client could not build the request, or cannot use its reply.
    Unusable(Error),
}

impl Failure {
    /// Describes the failure, for logs.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::NotSent(why) => format!("cannot reach {why}"),
            Self::NoReply(why) => why.clone(),
            Self::Refused(problem, _) => problem.to_string(),
            Self::Unusable(error) => error.to_string(),
        }
    }

    /// The error of the server, if it replied with one.
    pub(crate) fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem, _) => Some(problem),
            _ => None,
        }
    }

    /// Time after which a retry is worthwhile, if the server said so.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(_, retry_after) => *retry_after,
            _ => None,
        }
    }

    /// True if another lease holds the lock, which is no fault of the server.
    pub(crate) fn is_held(&self) -> bool {
        self.problem().is_some_and(|problem| problem.code == Code::LockHeld)
    }

    /// Converts the failure to the error of a call with this effect; `what` names the call.
    pub(crate) fn into_error(self, what: &str, effect: Effect) -> Error {
        match self {
            Self::NotSent(why) => Error::new(ErrorKind::Unavailable, format!("{what}: {why}")),
            Self::NoReply(why) if effect == Effect::Reads => {
                Error::new(ErrorKind::Unavailable, format!("{what}: no reply: {why}"))
            }
            Self::NoReply(why) => Error::new(
                ErrorKind::OutcomeUnknown,
                format!("{what}: no reply, so the outcome is unknown: {why}"),
            ),
            Self::Refused(problem, retry_after) => {
                Error::from_problem(*problem, retry_after).context(what)
            }
            Self::Unusable(error) => error.context(what),
        }
    }
}

/// Successful reply, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Address of the server.
    base: String,
}

impl Reply {
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.body).map_err(|error| self.foreign(&error.to_string()))
    }

    /// Failure of a call to another program than a Fencepost server, or through one that replaces
    /// replies. A request to change something may have had an effect.
    pub(crate) fn foreign(&self, why: &str) -> Failure {
        let message = format!(
            "{} sent a reply that is not of a Fencepost server ({why}): {:?}. Check the address",
            self.base,
            start(&self.body)
        );
        let error = Error::new(ErrorKind::Invalid, message);
        Failure::Unusable(error.with_outcome(WriteOutcome::Unknown))
    }
}

/// Beginning of a body, for a message.
fn start(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned()
}

/// Address of one server, with the connections to it.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    http: reqwest::Client,
    url: ServerUrl,
    /// Explains errors of TLS.
    tls: TlsOptions,
    /// Requests that may have left a connection in the pool, of all endpoints with this address.
    pooled: Arc<AtomicUsize>,
}

/// Settings of the connections to both servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections {
    /// Sent with every request.
    pub(crate) auth: Option<BearerToken>,
    /// Sent with every request that is part of no other trace.
    pub(crate) trace: Option<TraceContext>,
    /// Certificates, for servers over TLS.
    pub(crate) tls: TlsOptions,
    /// Plain HTTP to other machines is accepted.
    pub(crate) insecure_http: bool,
}

impl Connections {
    /// Endpoints at these addresses, which share a pool of connections. The HTTP client ignores
    /// proxies from the environment and redirects: a token is sent only to the servers that were
    /// configured.
    pub(crate) fn endpoints<const N: usize>(
        &self,
        addresses: [&str; N],
    ) -> Result<[Endpoint; N], Error> {
        let mut urls = Vec::new();
        for address in addresses {
            let url: ServerUrl = address.parse().map_err(Error::invalid)?;
            if !self.insecure_http {
                url.refuse_plain("ClientBuilder::insecure_http").map_err(Error::invalid)?;
            }
            urls.push(url);
        }
        let tls =
            self.tls.client_config(urls.iter().any(ServerUrl::is_https)).map_err(Error::invalid)?;
        let auth = self.auth.iter().map(|token| (AUTHORIZATION, token.header()));
        let trace = self.trace.and_then(trace_header);
        let http = reqwest::Client::builder()
            .user_agent(concat!("fence-client/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(POOL_IDLE)
            .default_headers(auth.chain(trace).collect())
            .tls_backend_preconfigured(tls)
            .build()
            .map_err(|error| Error::new(ErrorKind::Internal, causes(&error)))?;
        let mut endpoints: Vec<Endpoint> = Vec::new();
        for url in urls {
            let same = endpoints.iter().find(|other| other.url.authority() == url.authority());
            let pooled = same.map(|other| other.pooled.clone()).unwrap_or_default();
            endpoints.push(Endpoint { http: http.clone(), url, tls: self.tls.clone(), pooled });
        }
        let mut endpoints = endpoints.into_iter();
        Ok(addresses
            .map(|_| endpoints.next().unwrap_or_else(|| unreachable!("one endpoint an address"))))
    }
}

impl Endpoint {
    pub(crate) fn base(&self) -> &str {
        self.url.base()
    }

    /// Builds a request to `path`, which begins with a slash and is percent-encoded.
    pub(crate) fn request(&self, method: Method, path: &str, timeout: Duration) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url)).timeout(timeout)
    }

    /// Posts `body` as JSON and reads the reply as JSON.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        timeout: Duration,
    ) -> Result<T, Failure> {
        let request = self.request(Method::POST, path, timeout).json(body);
        self.send(request, JSON_BYTES_MAX).await?.json()
    }

    /// Gets JSON.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        timeout: Duration,
    ) -> Result<T, Failure> {
        let request = self.request(Method::GET, path, timeout);
        self.send(request, JSON_BYTES_MAX).await?.json()
    }

    /// Opens a stream of events, which may have no end; the caller bounds how long opening takes.
    pub(crate) async fn open_stream(
        &self,
        path: &str,
        last_event_id: Option<&str>,
    ) -> Result<Response, Failure> {
        const STREAM: &str = "text/event-stream";
        let mut request = self.http.get(format!("{}{path}", self.url)).header(ACCEPT, STREAM);
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let response = self.response(request).await?;
        if !response.status().is_success() {
            return Err(self.refusal(response, JSON_BYTES_MAX).await);
        }
        let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if kind.is_none_or(|kind| !kind.starts_with(STREAM)) {
            let kind = kind.unwrap_or("nothing").to_owned();
            let why = format!("{} replied with content type {kind}, not with events", self.url);
            return Err(Failure::NoReply(why));
        }
        Ok(response)
    }

    /// Sends a request and reads the whole reply; one longer than `bytes_max` is a failure.
    pub(crate) async fn send(
        &self,
        request: RequestBuilder,
        bytes_max: usize,
    ) -> Result<Reply, Failure> {
        let response = self.response(request).await?;
        if !response.status().is_success() {
            return Err(self.refusal(response, bytes_max).await);
        }
        let headers = response.headers().clone();
        let body = read(response, bytes_max).await?;
        Ok(Reply { headers, body, base: self.base().to_owned() })
    }

    /// Reads an error reply; one longer than `bytes_max` counts as no reply.
    async fn refusal(&self, response: Response, bytes_max: usize) -> Failure {
        let status = response.status();
        let headers = response.headers().clone();
        let body = match read(response, bytes_max).await {
            Ok(body) => body,
            Err(failure) => return failure,
        };
        let retry_after = headers
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.trim().parse().ok())
            .map(Duration::from_secs);
        let mut problem = problem(status.as_u16(), &body, self.base());
        if headers.get(IDEMPOTENCY_REPLAYED).is_some_and(|value| value == "true") {
            problem = problem.with(REPLAYED, true);
        }
        if status == StatusCode::NOT_FOUND && headers.contains_key(FENCING_GUARANTEE) {
            problem = problem.with(OF_GUARD, true);
        }
        Failure::Refused(Box::new(problem), retry_after)
    }

    /// Sends a request and awaits the head of its reply.
    async fn response(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let has_new_connection = self.pooled.fetch_add(1, Ordering::Relaxed) == 0;
        let sent = traced(request).send().await;
        sent.map_err(|error| {
            let failure = self.no_response(&error, has_new_connection);
            if matches!(failure, Failure::NotSent(_)) {
                self.pooled.fetch_sub(1, Ordering::Relaxed);
            }
            failure
        })
    }

    /// Classifies the lack of a reply. A refusal of the client's certificate precedes requests on a
    /// connection's first one alone: an alert on a used connection may follow what the server did.
    fn no_response(&self, error: &reqwest::Error, has_new_connection: bool) -> Failure {
        let url = &self.url;
        // The outermost text says only that a request was sent, and repeats the address.
        let cause = std::error::Error::source(error).unwrap_or(error);
        let tls = self.tls.explain(error, url.host());
        if error.is_builder() {
            let why = format!("{url}: {}", causes(cause));
            Failure::Unusable(Error::new(ErrorKind::Invalid, why))
        } else if let Some(why) = tls {
            let why = format!("{url}: {why}");
            let is_refused = has_new_connection && TlsOptions::is_client_refused(error);
            match is_unsent(error) || is_refused {
                true => Failure::NotSent(why),
                false => Failure::NoReply(why),
            }
        } else if is_unsent(error) {
            let why = causes(cause);
            Failure::NotSent(format!(
                "{url}: {why}. Check that the server runs and that the address is right"
            ))
        } else {
            Failure::NoReply(format!("{url}: {}", no_reply(&causes(cause), url)))
        }
    }
}

/// `true` if there was no connection, or it ended before the request was written.
fn is_unsent(error: &reqwest::Error) -> bool {
    let first: &dyn std::error::Error = error;
    let is_canceled = std::iter::successors(Some(first), |error| error.source())
        .filter_map(|error| error.downcast_ref::<hyper::Error>())
        .any(hyper::Error::is_canceled);
    error.is_connect() || is_canceled
}

tokio::task_local! {
    static TRACE: TraceContext;
}

/// Runs `work` as a part of a trace: the requests that it sends to the servers carry the trace's
/// header, in place of that of [`ClientBuilder::trace`](crate::ClientBuilder::trace). Work of the
/// SDK in the background, such as renewals, carries that of the builder.
///
/// # Cancel safety
/// That of `work`.
pub async fn in_trace<F: Future>(trace: TraceContext, work: F) -> F::Output {
    TRACE.scope(trace, work).await
}

/// The request with the header of the [trace](in_trace) that the caller runs in.
fn traced(request: RequestBuilder) -> RequestBuilder {
    match TRACE.try_get().ok().and_then(trace_header) {
        Some((name, value)) => request.header(name, value),
        None => request,
    }
}

fn trace_header(trace: TraceContext) -> Option<(HeaderName, HeaderValue)> {
    let value = HeaderValue::try_from(trace.to_string()).ok()?;
    Some((HeaderName::from_static(TRACEPARENT), value))
}

/// A plain request to a port that speaks TLS, or is no HTTP server's, ends so: by a reply that is
/// no HTTP, or by none, as of a Redis.
fn no_reply(why: &str, url: &ServerUrl) -> String {
    let may_be_no_http = ["invalid HTTP", "connection closed before message completed"];
    if !url.is_https() && may_be_no_http.iter().any(|text| why.contains(text)) {
        return format!(
            "{why} (no HTTP came back: if this port speaks TLS, write https://; if it is that of a \
             store such as Redis, give the address of the Fencepost server)"
        );
    }
    why.to_owned()
}

async fn read(mut response: Response, bytes_max: usize) -> Result<Bytes, Failure> {
    let mut body = BytesMut::new();
    loop {
        match response.chunk().await {
            Ok(None) => return Ok(body.freeze()),
            Ok(Some(chunk)) if body.len() + chunk.len() > bytes_max => {
                return Err(Failure::NoReply(format!(
                    "the reply is longer than {bytes_max} bytes"
                )));
            }
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Err(error) => return Err(Failure::NoReply(causes(&error))),
        }
    }
}

/// Parses the problem of an error reply. A body that is no problem (from a proxy, or another
/// program on that port) becomes one made from the status.
fn problem(status: u16, body: &[u8], base: &str) -> Problem {
    serde_json::from_slice::<Problem>(body).unwrap_or_else(|_| {
        let detail = format!("{base} replied {status} without a problem body: {:?}", start(body));
        let mut problem = Problem::new(Code::Unknown, detail)
            .hint("Check that the address is that of a Fencepost server.");
        problem.status = status;
        problem
    })
}

/// Formats an error with its causes, in one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // hyper and reqwest often repeat the text of their source.
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_to_another_machine_has_to_be_accepted() {
        let mut connections = Connections::default();
        let addresses = ["http://127.0.0.1:7420/", "http://10.0.0.5/fence"];
        let error = connections.endpoints(addresses).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("http://10.0.0.5/fence is plain HTTP"), "{error}");
        connections.insecure_http = true;
        let [local, other] = connections.endpoints(addresses).unwrap();
        assert_eq!(
            (local.base(), other.base()),
            ("http://127.0.0.1:7420", "http://10.0.0.5/fence")
        );
    }

    #[test]
    fn a_foreign_error_page_becomes_a_problem() {
        let problem = problem(502, b"<html>bad gateway</html>", "http://x");
        assert_eq!(problem.status, 502);
        assert!(problem.detail.contains("bad gateway"), "{}", problem.detail);
        let error = Error::from_problem(problem, None);
        assert_eq!(*error.kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn no_reply_to_a_change_is_an_unknown_outcome_and_to_a_read_is_not() {
        let silent = || Failure::NoReply("timeout".to_owned());
        assert_eq!(*silent().into_error("put", Effect::Changes).kind(), ErrorKind::OutcomeUnknown);
        assert_eq!(*silent().into_error("get", Effect::Reads).kind(), ErrorKind::Unavailable);
        let unsent = Failure::NotSent("refused".to_owned());
        assert_eq!(*unsent.into_error("put", Effect::Changes).kind(), ErrorKind::Unavailable);
    }

    #[tokio::test]
    async fn a_refused_connection_is_known_to_be_unsent() {
        // No process listens there.
        let [endpoint] = Connections::default().endpoints(["http://127.0.0.1:1"]).unwrap();
        let result: Result<(), _> = endpoint.get("/livez", Duration::from_secs(5)).await;
        assert!(matches!(result, Err(Failure::NotSent(_))), "{result:?}");
    }
}
