//! Record of a demo: plain data, for the JSON document and for the picture.
//!
//! # The JSON document of `--json`
//! One object on stdout, after the last story has ended:
//! ```text
//! {"demo": "gc-stall", "store": "embedded", "title": …, "explanation": …, "ok": true,
//!  "stories": [
//!    {"name": "unguarded" | "guarded", "title": …, "ok": true, "verdict": "one sentence",
//!     "facts": {…},        what the verdict was derived from; the struct of demo/verdict.rs
//!     "lanes": ["lock-server", "worker A", …],
//!     "events": [{"at_ms": 12, "lane": "worker A", "kind": "refused", "text": …,
//!                 "token"?: 4, "status"?: 412}, …],
//!     "spans":  [{"lane": …, "kind": "lease" | "stall" | "wait" | "flight", "from_ms", "to_ms", "label"}],
//!     "dots":   [{"lane": …, "at_ms": …}],
//!     "notes":  ["a sentence", …]}]}
//! ```
//! `status` and the facts' `late_status` and `new_status` are those of HTTP: where the workers
//! speak the Redis protocol there are none, and `late_code` is the word after the `-` of the
//! refusal. Times are milliseconds since the story began. `ok` says that every story ended as
//! expected, and the exit code is 0 exactly then.

use serde::Serialize;
use serde_json::Value;

/// Record of one demo.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Record {
    pub(super) demo: &'static str,
    pub(super) store: String,
    pub(super) title: &'static str,
    pub(super) explanation: &'static str,
    pub(super) ok: bool,
    pub(super) stories: Vec<Story>,
}

/// One run of a story, unguarded or guarded.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Story {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) ok: bool,
    pub(super) verdict: String,
    pub(super) facts: Value,
    pub(super) lanes: Vec<String>,
    pub(super) events: Vec<Event>,
    pub(super) spans: Vec<Span>,
    pub(super) dots: Vec<Dot>,
    pub(super) notes: Vec<String>,
}

impl Story {
    pub(super) fn new(name: &'static str, title: &'static str, lanes: &[&str]) -> Self {
        Self {
            name,
            title,
            ok: false,
            verdict: String::new(),
            facts: Value::Null,
            lanes: lanes.iter().map(|&lane| lane.to_owned()).collect(),
            events: Vec::new(),
            spans: Vec::new(),
            dots: Vec::new(),
            notes: Vec::new(),
        }
    }
}

/// An event, as a reply or a file showed it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Event {
    pub(super) at_ms: u64,
    pub(super) lane: String,
    pub(super) kind: Kind,
    pub(super) text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<u16>,
}

/// Kind of an event: decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// Nothing good or bad in itself.
    Step,
    /// A lease was granted.
    Granted,
    /// A lease ended, a process was stopped, something was delayed.
    Delay,
    /// A write was applied.
    Applied,
    /// A write was refused.
    Refused,
    /// An update is lost, or a rightful write failed.
    Lost,
    /// A guarantee held.
    Kept,
}

/// A period of time in a lane.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Span {
    pub(super) lane: String,
    pub(super) kind: SpanKind,
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
    pub(super) label: String,
}

/// Kind of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SpanKind {
    /// The lock server took the lease for live.
    Lease,
    /// The process was stopped.
    Stall,
    /// A worker waited for a reply.
    Wait,
    /// A write was on its way.
    Flight,
}

/// One of many small events that are counted and not numbered.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Dot {
    pub(super) lane: String,
    pub(super) at_ms: u64,
}
