//! Spans of requests, and their queue to the exporter.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fence_protocol::trace::TraceContext;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

use crate::metrics::Metrics;

/// The exporter of a service, once it has one. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    exporter: Arc<OnceLock<Exporter>>,
}

impl Traces {
    pub(crate) fn exporter(&self) -> Option<&Exporter> {
        self.exporter.get()
    }

    /// Sets the exporter; `false` if there is one.
    pub(crate) fn set(&self, exporter: Exporter) -> bool {
        self.exporter.set(exporter).is_ok()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SpanFigures {
    pub(crate) exported: Counter,
    pub(crate) dropped: Counter,
}

impl SpanFigures {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            exported: metrics.counter("trace_spans_exported", "Spans that the collector has taken"),
            dropped: metrics
                .counter("trace_spans_dropped", "Spans that found no room, or no collector"),
        }
    }
}

/// Queue to the task that sends spans.
#[derive(Clone, Debug)]
pub(crate) struct Exporter {
    pub(crate) queue: mpsc::Sender<SpanRecord>,
    pub(crate) figures: SpanFigures,
}

impl Exporter {
    /// Queues a span, or drops and counts it.
    pub(crate) fn export(&self, span: SpanRecord) {
        if self.queue.try_send(span).is_err() {
            self.figures.dropped.inc();
        }
    }
}

/// A request that was replied to.
#[derive(Clone, Debug)]
pub(crate) struct SpanRecord {
    pub(crate) own: TraceContext,
    pub(crate) parent: TraceContext,
    pub(crate) method: &'static str,
    pub(crate) route: String,
    pub(crate) status: u16,
    /// Since 1970.
    pub(crate) started: Duration,
    pub(crate) took: Duration,
}
