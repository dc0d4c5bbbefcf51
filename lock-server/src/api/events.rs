//! `GET /v1/events` and `POST /v1/refusals`.

use std::sync::Arc;

use access_control::{Caller, Verb};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use fence_protocol::wire::event::{
    Event, EventKind, REFUSALS_MAX, RefusalsReply, RefusalsReport, ReportedRefusal,
};
use fence_protocol::{Code, LockName};
use futures_util::StreamExt as _;
use futures_util::future::ready;
use serde::Deserialize;
use service_kit::problem::{ApiJson, ApiQuery, Reject, Result};

use super::{Service, error, inspect};
use crate::events::{EventId, Reader, Watched};

/// Header by which a client of server-sent events, such as a browser, resumes its stream.
const LAST_EVENT_ID: &str = "last-event-id";
/// Largest number of remembered events that a new stream begins with.
const RECENT_MAX: u64 = 1_000;

/// The query of the stream.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Watch {
    prefix: String,
    lock: Option<LockName>,
    recent: u64,
}

impl Watch {
    fn watched(self) -> Result<Watched> {
        if self.recent > RECENT_MAX {
            let text = format!("recent {} is out of range: 0 to {RECENT_MAX}", self.recent);
            return Err(error::invalid(text));
        }
        match self.lock {
            Some(_) if !self.prefix.is_empty() => {
                Err(error::invalid("prefix and lock exclude each other: name one of them"))
            }
            Some(lock) => Ok(Watched::Lock(lock)),
            None => inspect::check_prefix(&self.prefix).map(|()| Watched::Under(self.prefix)),
        }
    }
}

/// Streams the events of one lock, or of the locks under a prefix, from `Last-Event-ID` on, or
/// from now with those among the `recent` newest of all locks.
pub(super) async fn events(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiQuery(watch): ApiQuery<Watch>,
    headers: HeaderMap,
) -> Result<Response> {
    let recent = watch.recent;
    let watched = watch.watched()?;
    let seen = headers.get(LAST_EVENT_ID).map(|value| event_id(value.as_bytes())).transpose()?;
    if !service.events.is_on() {
        let detail = "this server keeps no events (--event-history 0)";
        return Err(Reject::new(Code::NotOffered, detail));
    }
    // Before the readers of all callers are counted: one caller must not use up the limit.
    let waiting = caller.stream()?;
    let reader = Reader::new(&service.events, watched.clone(), seen, recent).await;
    let Some(reader) = reader else {
        let detail = "the readers of events: the limit is reached (--max-event-readers)";
        return Err(Reject::new(Code::LimitReached, detail).retry_after(1));
    };
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    // A stream has no end of its own, so it ends where a change of the access file takes the right.
    let stream = reader.into_stream().take_while(move |_| {
        let _counts = &waiting;
        ready(caller.may_still(Verb::Read, watched.scope()))
    });
    Ok((headers, Body::from_stream(stream)).into_response())
}

fn event_id(bytes: &[u8]) -> Result<EventId> {
    let text = String::from_utf8_lossy(bytes);
    text.parse().map_err(|()| {
        let shown: String = text.chars().take(80).collect();
        error::invalid(format!("Last-Event-ID {shown:?} is none of this server's, like 1795-3"))
    })
}

/// Records refusals that a guard reports, for `fence explain` and the event stream.
pub(super) async fn refusals(
    State(service): State<Arc<Service>>,
    caller: Caller,
    ApiJson(report): ApiJson<RefusalsReport>,
) -> Result<Json<RefusalsReply>> {
    if !service.events.is_on() {
        let detail = "this server keeps no events (--event-history 0), so the report would be lost";
        return Err(Reject::new(Code::NotOffered, detail));
    }
    let taken = report.refusals.len();
    if taken > REFUSALS_MAX {
        let text = format!("{taken} refusals are too many for one report: at most {REFUSALS_MAX}");
        return Err(error::invalid(text));
    }
    if report.dropped > 0 {
        // The gap is sent to the readers of every lock.
        caller.may_all(Verb::Report)?;
    }
    for refusal in &report.refusals {
        caller.may(Verb::Report, refusal.lock.as_str())?;
    }
    for refusal in report.refusals {
        service.events.publish(refused(refusal));
    }
    if report.dropped > 0 {
        let mut gap = Event::new(EventKind::Gap).text("a guard could not report refusals");
        gap.missed = Some(report.dropped);
        service.events.publish(gap);
    }
    Ok(Json(RefusalsReply { taken }))
}

fn refused(refusal: ReportedRefusal) -> Event {
    let event = Event::new(EventKind::Refused).lock(&refusal.lock).lease(refusal.lease_id);
    // It is printed in logs and on terminals.
    let mut event = event.text(refusal.operation.replace(char::is_control, "\u{fffd}"));
    (event.token, event.mark, event.owner) =
        (Some(refusal.token), Some(refusal.mark), refusal.owner);
    event.late_ms = (refusal.ms_ago > 0).then_some(refusal.ms_ago);
    event
}
