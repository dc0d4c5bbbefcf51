//! Export of spans: OTLP over HTTP, in its JSON form.
//!
//! Spans are for people: no request waits for them. They are batched and bounded; what finds no
//! room, or no collector, is dropped and counted.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, USER_AGENT};
use axum::http::{Request, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::Kit;
use crate::health::Status;
use crate::spans::{Exporter, SpanFigures, SpanRecord};

/// Spans that wait to be sent.
const QUEUE: usize = 4_096;
/// Spans of one request to the collector.
const BATCH: usize = 512;
/// Pause in which a batch fills.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time limit of a collector's reply.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the last batch at shutdown.
const LAST: Duration = Duration::from_secs(1);
/// Longest reply that is read, in bytes.
const REPLY_BYTES_MAX: usize = 64 * 1024;
/// Name of the readiness check.
const CHECK: &str = "traces";

/// Address of a collector: `http://HOST:PORT`, perhaps with a path before `/v1/traces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorUrl(String);

impl fmt::Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for CollectorUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let base = text.trim_end_matches('/');
        let base = base.strip_suffix("/v1/traces").unwrap_or(base);
        let is_good = base.parse::<Uri>().is_ok_and(|uri| {
            let authority = uri.authority().map(|authority| authority.as_str());
            uri.scheme_str() == Some("http")
                && authority.is_some_and(|authority| !authority.contains('@'))
                && uri.query().is_none()
        });
        if !is_good {
            let shown = crate::login::without_password(text);
            return Err(format!(
                "collector address \"{shown}\" must be http://HOST:PORT without credentials and \
                 query, for example http://127.0.0.1:4318"
            ));
        }
        Ok(Self(base.to_owned()))
    }
}

/// Sends the spans of sampled requests to a collector from now on.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn export(url: &CollectorUrl, kit: &Kit) {
    let (queue, waiting) = mpsc::channel(QUEUE);
    let figures = SpanFigures::new(&kit.metrics);
    if !kit.traces.set(Exporter { queue, figures: figures.clone() }) {
        return;
    }
    let http = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build_http();
    let uri = format!("{url}/v1/traces");
    let worker = Worker { http, uri, figures, kit: kit.clone() };
    kit.tasks.spawn(worker.run(waiting));
}

impl SpanRecord {
    fn json(&self) -> Value {
        // The values of the protocol: a server's span; unset, or an error.
        const SERVER: u8 = 2;
        let status = if self.status >= 500 { json!({ "code": 2 }) } else { json!({}) };
        json!({
            "traceId": self.own.trace_id(),
            "spanId": self.own.span_id(),
            "parentSpanId": self.parent.span_id(),
            "name": format!("{} {}", self.method, self.route),
            "kind": SERVER,
            "startTimeUnixNano": self.started.as_nanos().to_string(),
            "endTimeUnixNano": (self.started + self.took).as_nanos().to_string(),
            "attributes": [
                text("http.request.method", self.method),
                text("http.route", &self.route),
                { "key": "http.response.status_code",
                  "value": { "intValue": self.status.to_string() } },
            ],
            "status": status,
        })
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn body(service: &str, spans: &[SpanRecord]) -> Value {
    let spans: Vec<Value> = spans.iter().map(SpanRecord::json).collect();
    let version = env!("CARGO_PKG_VERSION");
    json!({ "resourceSpans": [{
        "resource": { "attributes": [
            text("service.name", service),
            text("service.version", version),
        ]},
        "scopeSpans": [{ "scope": { "name": "fencepost", "version": version }, "spans": spans }],
    }]})
}

struct Worker {
    http: Client<HttpConnector, Full<Bytes>>,
    uri: String,
    figures: SpanFigures,
    kit: Kit,
}

impl Worker {
    async fn run(self, mut queue: mpsc::Receiver<SpanRecord>) {
        let stop = self.kit.tasks.shutdown_token();
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                count = queue.recv_many(&mut batch, BATCH) => if count == 0 { return },
            }
            if batch.len() < BATCH {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    () = tokio::time::sleep(INTERVAL) => {}
                }
            }
            fill(&mut batch, &mut queue);
            self.send(&mut batch, TIMEOUT).await;
        }
        queue.close();
        fill(&mut batch, &mut queue);
        self.send(&mut batch, LAST).await;
        self.figures.dropped.inc_by(queue.len() as u64);
    }

    async fn send(&self, batch: &mut Vec<SpanRecord>, patience: Duration) {
        if batch.is_empty() {
            return;
        }
        let count = batch.len() as u64;
        let body = body(self.kit.service, batch).to_string();
        batch.clear();
        let sent = tokio::time::timeout(patience, self.post(body)).await;
        let late = |_| Err(format!("no reply within {} ms", patience.as_millis()));
        match sent.unwrap_or_else(late) {
            Ok(()) => {
                self.figures.exported.inc_by(count);
                self.kit.health.set(CHECK, Status::Ok);
            }
            Err(why) => {
                self.figures.dropped.inc_by(count);
                let text = format!("spans are dropped: the collector at {}: {why}", self.uri);
                self.kit.health.set(CHECK, Status::Warn(text));
            }
        }
    }

    async fn post(&self, body: String) -> Result<(), String> {
        let request = Request::post(&self.uri)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("fencepost/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| error.to_string())?;
        let reply = self.http.request(request).await.map_err(|error| error.to_string())?;
        let status = reply.status();
        // Read to the end, so that the connection can be used again.
        let _ = Limited::new(reply.into_body(), REPLY_BYTES_MAX).collect().await;
        if status.is_success() { Ok(()) } else { Err(format!("it replied {status}")) }
    }
}

fn fill(batch: &mut Vec<SpanRecord>, queue: &mut mpsc::Receiver<SpanRecord>) {
    while batch.len() < BATCH
        && let Ok(span) = queue.try_recv()
    {
        batch.push(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_where_they_are_given() {
        let shown = |text: &str| text.parse::<CollectorUrl>().map(|url| url.to_string());
        assert_eq!(shown("http://c:4318/").unwrap(), "http://c:4318");
        assert_eq!(shown("http://c:4318/v1/traces").unwrap(), "http://c:4318");
        assert_eq!(shown("http://c/otlp").unwrap(), "http://c/otlp");
        for bad in ["", "c:4318", "https://c", "http://u:hunter2@c", "http://c?x=1", "grpc://c"] {
            let error = shown(bad).unwrap_err();
            assert!(error.contains("http://HOST:PORT"), "{bad}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[tokio::test]
    async fn spans_beyond_the_queue_are_dropped_and_counted() {
        let kit = Kit::new("test");
        let (queue, _waiting) = mpsc::channel(2);
        let figures = SpanFigures::new(&kit.metrics);
        let exporter = Exporter { queue, figures };
        let own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap();
        let span = SpanRecord {
            own,
            parent: own,
            method: "GET",
            route: "/livez".to_owned(),
            status: 200,
            started: Duration::ZERO,
            took: Duration::ZERO,
        };
        (0..5).for_each(|_| exporter.export(span.clone()));
        let text = kit.metrics.encode();
        assert!(text.contains("\nfencepost_trace_spans_dropped_total 3\n"), "{text}");
    }
}
