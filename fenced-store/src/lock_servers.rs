//! Calls of lock servers: of the first that replies.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use fence_protocol::wire::fence::FloorReply;
use fence_protocol::{Problem, Token};
use http::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Request};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use service_kit::tls::{ServerUrl, reason};
use service_kit::trace;

use crate::https::{Connector, Https, UpstreamHttp};

/// Time limit of a lock server's reply.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);
/// Time that an unused connection is kept; a server closes one after 75 s.
const IDLE: Duration = Duration::from_secs(60);
/// Maximum length of a reply, in bytes.
const REPLY_BYTES_MAX: usize = 16 * 1024;

/// Lock servers of one namespace, and the credential for them.
#[derive(Clone, Debug)]
pub struct LockServers {
    /// Servers; if the first does not reply, the next is called.
    pub urls: Vec<ServerUrl>,
    /// `Authorization` header, for servers with an access file.
    pub auth: Option<HeaderValue>,
    /// Certificates, for servers over TLS.
    pub https: Https,
}

/// Reason why a call failed, a sentence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// A retry of the same call would be refused again.
    Refused(String),
    /// A retry may succeed.
    Unreachable(String),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Refused(why) | Self::Unreachable(why)) = self;
        f.write_str(why)
    }
}

impl LockServers {
    /// The first token that may be admitted after marks were lost: above every token that was
    /// issued before the call.
    ///
    /// # Errors
    /// [`Failed`]; a retry is harmless.
    pub(crate) async fn floor(&self) -> Result<Token, Failed> {
        let judge = |url: &ServerUrl, status, body: &[u8]| {
            let reply: Result<FloorReply, _> = serde_json::from_slice(judge(url, status, body)?);
            reply.map(|reply| reply.floor).map_err(|error| {
                Failed::Unreachable(format!("{url} replies to POST /v1/floor: {error}"))
            })
        };
        Caller::new(self.clone()).post("/v1/floor", Bytes::new(), None, TIMEOUT, judge).await
    }
}

/// Sender of calls.
#[derive(Debug)]
pub(crate) struct Caller {
    servers: LockServers,
    http: Client<Connector, Full<Bytes>>,
    /// Index of the server that replied last.
    at: usize,
}

impl Caller {
    pub(crate) fn new(servers: LockServers) -> Self {
        let http = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(servers.https.connector(TIMEOUT, UpstreamHttp::H1));
        Self { servers, http, at: 0 }
    }

    /// Posts JSON to the server that replied last, then to the others in turn, until `judge` gives
    /// another result than [`Failed::Unreachable`]. Each has `timeout` to reply. A call whose reply
    /// was lost is sent twice.
    ///
    /// # Errors
    /// As `judge`, or [`Failed::Unreachable`] if no server replied.
    pub(crate) async fn post<T>(
        &mut self,
        path: &str,
        body: Bytes,
        trace: Option<&HeaderValue>,
        timeout: Duration,
        judge: impl Fn(&ServerUrl, u16, &[u8]) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        let mut failures = Vec::new();
        for _ in 0..self.servers.urls.len() {
            let url = &self.servers.urls[self.at];
            let sent = tokio::time::timeout(timeout, self.once(url, path, body.clone(), trace));
            let silence = || format!("{url} did not reply within {} ms", timeout.as_millis());
            let replied = sent.await.unwrap_or_else(|_| Err(Failed::Unreachable(silence())));
            match replied.and_then(|(status, body)| judge(url, status, &body)) {
                Err(Failed::Unreachable(why)) => failures.push(why),
                answered => return answered,
            }
            self.at = (self.at + 1) % self.servers.urls.len();
        }
        // In the order of the settings, so that the text is stable.
        failures.sort();
        Err(Failed::Unreachable(failures.join("; ")))
    }

    async fn once(
        &self,
        url: &ServerUrl,
        path: &str,
        body: Bytes,
        trace: Option<&HeaderValue>,
    ) -> Result<(u16, Bytes), Failed> {
        let unreachable = |error: &(dyn std::error::Error + 'static)| {
            let why = reason(&self.servers.https.tls, error, url.host());
            Failed::Unreachable(format!("{url}: {why}"))
        };
        let mut request = Request::post(format!("{}{path}", url.base()))
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("fenced-store/", env!("CARGO_PKG_VERSION")));
        if let Some(auth) = &self.servers.auth {
            request = request.header(AUTHORIZATION, auth);
        }
        if let Some(context) = trace {
            request = request.header(trace::HEADER, context);
        }
        let request = request.body(Full::new(body)).map_err(|error| unreachable(&error))?;
        let reply = self.http.request(request).await.map_err(|error| unreachable(&error))?;
        let status = reply.status().as_u16();
        // Read to the end, so that the connection can be used again.
        let body = Limited::new(reply.into_body(), REPLY_BYTES_MAX).collect().await;
        Ok((status, body.map(|body| body.to_bytes()).unwrap_or_default()))
    }
}

/// The body of a reply with 200 to a guard that has the right "report *".
pub(crate) fn judge<'b>(url: &ServerUrl, status: u16, body: &'b [u8]) -> Result<&'b [u8], Failed> {
    if status == 200 {
        return Ok(body);
    }
    let problem = serde_json::from_slice::<Problem>(body).ok();
    let detail = problem.map_or_else(|| "is it a lock server?".to_owned(), |known| known.detail);
    let detail: String = detail.chars().take(200).collect();
    Err(verdict(status, format!("{url} answers {status}: {detail}")))
}

/// Classifies a refusal: final, or to be retried later.
fn verdict(status: u16, text: String) -> Failed {
    match status {
        400 | 413 | 501 => Failed::Refused(text),
        401 => Failed::Unreachable(format!(
            "{text} (name a bearer token by --report-auth-file that has the right \"report *\" there)"
        )),
        403 => Failed::Refused(format!(
            "{text} (the guard's bearer token needs the right \"report *\" there)"
        )),
        _ => Failed::Unreachable(text),
    }
}
