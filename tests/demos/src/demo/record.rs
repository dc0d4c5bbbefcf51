//! What a demo is made of once it was told: plain data, for the JSON document and for the picture.
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
//! `status` and the facts' `late_status` and `new_status` are those of HTTP: where the workers speak
//! the Redis protocol there are none, and `late_code` is the word after the `-` of the refusal.
//! Times are milliseconds since the story began. `ok` says that every story ended as it should, and
//! the exit code is 0 exactly then.

use serde::Serialize;
use serde_json::Value;

/// A demo that was told.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Record {
    pub(super) demo: &'static str,
    pub(super) store: String,
    pub(super) title: &'static str,
    pub(super) explanation: &'static str,
    pub(super) ok: bool,
    pub(super) stories: Vec<Story>,
}

/// One telling.
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

/// Something that happened, as a reply or a file told it.
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

/// What kind of event: decides its colour.
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
    /// Somebody's update is gone, or a rightful write failed.
    Lost,
    /// What was promised held.
    Kept,
}

/// Something that lasted.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Span {
    pub(super) lane: String,
    pub(super) kind: SpanKind,
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
    pub(super) label: String,
}

/// What lasted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SpanKind {
    /// The lock server took the lease for live.
    Lease,
    /// The process was stopped.
    Stall,
    /// Somebody waited for an answer.
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
