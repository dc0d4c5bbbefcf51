//! Sending of one report to one lock server, or to the next if it does not reply.

use std::time::Duration;

use bytes::Bytes;
use fence_protocol::Problem;
use fence_protocol::wire::event::RefusalsReport;
use http::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use service_kit::tls::ServerUrl;
use service_kit::trace;

use super::ReportOptions;
use crate::https::Connector;

/// Time limit of a lock server's reply.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Time that an unused connection is kept; a server closes one after 75 s.
const IDLE: Duration = Duration::from_secs(60);
/// Maximum length of a reply, in bytes.
const REPLY_BYTES_MAX: usize = 16 * 1024;

/// Reason why a report was not accepted, a sentence.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// A retry of the same report would be refused again.
    Refused(String),
    /// A retry may succeed.
    Unreachable(String),
}

/// Sends reports.
#[derive(Debug)]
pub(super) struct Sender {
    options: ReportOptions,
    http: Client<Connector, Full<Bytes>>,
    /// Index of the server that replied last.
    at: usize,
}

impl Sender {
    pub(super) fn new(options: ReportOptions) -> Self {
        let http = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(options.https.connector(TIMEOUT));
        Self { options, http, at: 0 }
    }

    /// Sends to the server that replied last, then to the others in turn, until one replies. A
    /// report whose reply was lost is sent twice.
    pub(super) async fn send(
        &mut self,
        report: &RefusalsReport,
        trace: Option<&HeaderValue>,
    ) -> Result<(), Failed> {
        let body = Bytes::from(serde_json::to_vec(report).unwrap_or_default());
        let mut failures = Vec::new();
        for _ in 0..self.options.urls.len() {
            let url = &self.options.urls[self.at];
            let sent = tokio::time::timeout(TIMEOUT, self.once(url, body.clone(), trace)).await;
            let silence = || format!("{url} did not reply within {} s", TIMEOUT.as_secs());
            match sent.unwrap_or_else(|_| Err(Failed::Unreachable(silence()))) {
                Err(Failed::Unreachable(why)) => failures.push(why),
                answered => return answered,
            }
            self.at = (self.at + 1) % self.options.urls.len();
        }
        // In the order of the settings, so that the text is stable.
        failures.sort();
        Err(Failed::Unreachable(failures.join("; ")))
    }

    async fn once(
        &self,
        url: &ServerUrl,
        body: Bytes,
        trace: Option<&HeaderValue>,
    ) -> Result<(), Failed> {
        let unreachable = |error: &(dyn std::error::Error + 'static)| {
            let tls = self.options.https.explain(error, url.host());
            Failed::Unreachable(format!("{url}: {}", tls.unwrap_or_else(|| last(error))))
        };
        let mut request = Request::post(format!("{}/v1/refusals", url.base()))
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("fenced-store/", env!("CARGO_PKG_VERSION")));
        if let Some(auth) = &self.options.auth {
            request = request.header(AUTHORIZATION, auth);
        }
        if let Some(context) = trace {
            request = request.header(trace::HEADER, context);
        }
        let request = request.body(Full::new(body)).map_err(|error| unreachable(&error))?;
        let reply = self.http.request(request).await.map_err(|error| unreachable(&error))?;
        judge(url, reply).await
    }
}

async fn judge(url: &ServerUrl, reply: Response<Incoming>) -> Result<(), Failed> {
    let status = reply.status().as_u16();
    // Read to the end, so that the connection can be used again.
    let body = Limited::new(reply.into_body(), REPLY_BYTES_MAX).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    if status == 200 {
        return Ok(());
    }
    let problem = serde_json::from_slice::<Problem>(&body).ok();
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

/// Returns an error's root cause, which says most.
fn last(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}
