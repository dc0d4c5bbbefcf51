//! The trace of the request that is being handled (W3C Trace Context): its id is on log lines, and
//! it is passed on to the servers that the request involves.
//!
//! A trace begins at a caller: a request without `traceparent`, or with one that cannot be read,
//! has none, and costs nothing here.

use std::cell::Cell;
use std::future::poll_fn;
use std::num::NonZeroU64;
use std::pin::pin;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use fence_protocol::trace::{TRACEPARENT, TraceContext};
use tracing::Span;
use tracing::span::EnteredSpan;

use crate::spans::{Exporter, SpanRecord};
use crate::{clock, ids};

/// `traceparent`.
pub const HEADER: HeaderName = HeaderName::from_static(TRACEPARENT);

thread_local! {
    static CURRENT: Cell<Option<TraceContext>> = const { Cell::new(None) };
}

/// Header of requests that are sent on behalf of the one being handled; `None` where that has no
/// trace.
pub fn header() -> Option<HeaderValue> {
    HeaderValue::try_from(CURRENT.get()?.to_string()).ok()
}

/// Runs `work`, perhaps in another task, as a part of the request that is being handled now.
///
/// # Cancel safety
/// That of `work`.
pub fn carry<F: Future>(work: F) -> impl Future<Output = F::Output> {
    Carrier::current().run(work)
}

/// The trace of a request, for work that is done later.
#[derive(Clone, Debug)]
pub struct Carrier {
    trace: Option<TraceContext>,
    span: Span,
}

impl Carrier {
    /// That of the request that is being handled now, if it has one.
    pub fn current() -> Self {
        let trace = CURRENT.get();
        Self { trace, span: trace.map_or_else(Span::none, |_| Span::current()) }
    }

    /// Runs `work` as a part of the request.
    ///
    /// # Cancel safety
    /// That of `work`.
    pub async fn run<F: Future>(self, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(move |cx| {
            let _entered = self.trace.map(|trace| Entered::new(trace, &self.span));
            work.as_mut().poll(cx)
        })
        .await
    }
}

/// The trace of the current thread until this is dropped.
pub(crate) struct Entered {
    before: Option<TraceContext>,
    _span: EnteredSpan,
}

impl Entered {
    fn new(trace: TraceContext, span: &Span) -> Self {
        Self { before: CURRENT.replace(Some(trace)), _span: span.clone().entered() }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// The trace of one request.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    /// The caller's span.
    parent: TraceContext,
    /// The span that is passed on: this request's own if it is exported, else the caller's.
    own: TraceContext,
    /// Of the log.
    span: Span,
    started: Duration,
    exporter: Option<Exporter>,
}

impl RequestTrace {
    /// The trace that the headers name; `None` where they name none, or more than one.
    pub(crate) fn read(
        headers: &HeaderMap,
        request_id: &str,
        exporter: Option<&Exporter>,
    ) -> Option<Box<Self>> {
        let mut values = headers.get_all(HEADER).iter();
        let parent: TraceContext = values.next()?.to_str().ok()?.parse().ok()?;
        if values.next().is_some() {
            return None;
        }
        let exporter = exporter.filter(|_| parent.is_sampled()).cloned();
        let own = exporter.as_ref().map_or(parent, |_| parent.with_span(span_id()));
        let trace_id = parent.trace_id();
        let span = tracing::error_span!("request", trace_id, request_id);
        Some(Box::new(Self { parent, own, span, started: clock::since_1970(), exporter }))
    }

    /// Exports no span of this request.
    pub(crate) fn keep(&mut self) {
        self.exporter = None;
    }

    /// Makes it the trace of this thread.
    pub(crate) fn enter(&self) -> Entered {
        Entered::new(self.own, &self.span)
    }

    /// Logs the end of the request, and exports its span unless the caller was refused.
    pub(crate) fn ended(&self, method: &'static str, route: &str, status: u16, took: Duration) {
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        tracing::debug!(parent: &self.span, method, route, status, took_ms, "replied");
        if let Some(exporter) = self.exporter.as_ref().filter(|_| !is_refused_caller(status)) {
            exporter.export(SpanRecord {
                own: self.own,
                parent: self.parent,
                method,
                route: route.to_owned(),
                status,
                started: self.started,
                took,
            });
        }
    }
}

/// `true` for statuses that a caller gets without a bearer token or a fencing token that is valid:
/// whether to export a span is the decision of callers who have one.
fn is_refused_caller(status: u16) -> bool {
    matches!(status, 401 | 403 | 405 | 421 | 428)
}

fn span_id() -> NonZeroU64 {
    // Sixteen hexadecimal digits are always a number.
    let random = u64::from_str_radix(&ids::random_hex(8), 16).unwrap_or_default();
    NonZeroU64::new(random).unwrap_or(NonZeroU64::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(values: &[&'static str]) -> HeaderMap {
        values.iter().map(|value| (HEADER, HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn only_one_readable_header_is_a_trace() {
        assert!(RequestTrace::read(&headers(&[GOOD]), "1", None).is_some());
        assert!(RequestTrace::read(&headers(&[]), "1", None).is_none());
        assert!(RequestTrace::read(&headers(&["00-1-2-3"]), "1", None).is_none());
        let mut twice = headers(&[GOOD]);
        twice.append(HEADER, HeaderValue::from_static(GOOD));
        assert!(RequestTrace::read(&twice, "1", None).is_none());
    }

    #[tokio::test]
    async fn a_trace_is_carried_into_another_task_and_ends_with_the_poll() {
        let trace = RequestTrace::read(&headers(&[GOOD]), "1", None).unwrap();
        let entered = trace.enter();
        let carried = carry(async {
            tokio::task::yield_now().await;
            header()
        });
        assert_eq!(header().unwrap(), GOOD);
        drop(entered);
        assert_eq!(header(), None);
        assert_eq!(carried.await.unwrap(), GOOD);
        assert_eq!(header(), None);
    }
}
