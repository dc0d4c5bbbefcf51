//! `GET /v1/lanes` and `POST /v1/lanes/{lock}/quarantine`, before an HTTP datastore.

use access_control::Caller;
use axum::Json;
use axum::extract::State;
use fence_protocol::wire::lane::{LaneLine, LanePage, QuarantineRequest};
use fence_protocol::{Code, Invalid, LockName};
use http::Uri;
use service_kit::problem::{ApiJson, ApiQuery, Reject};

use super::list::{self, Query};
use super::request;
use crate::doors::http::handler_state::HandlerState;
use crate::guard::{Failure, RequestSummary, failure};
use crate::stores::contract::{QuarantineChange, StoreError};

/// Longest extension of one request: a day.
const EXTEND_MS_MAX: u64 = 86_400_000;

/// Lists the lanes in use, in the order of their names.
pub(super) async fn lanes(
    State(shared): State<HandlerState>,
    ApiQuery(query): ApiQuery<Query>,
) -> Result<Json<LanePage>, Failure> {
    let query = list::checked(query)?;
    let page = shared.guard.fences.lanes(&query).map_err(unserved)?;
    Ok(Json(page.ok_or_else(no_lanes)?))
}

/// Resolves or extends the quarantine of a lane.
pub(super) async fn quarantine(
    State(shared): State<HandlerState>,
    caller: Caller,
    uri: Uri,
    ApiJson(request): ApiJson<QuarantineRequest>,
) -> Result<Json<LaneLine>, Failure> {
    let Some(lock) = request::lane(&uri, "/quarantine")? else {
        let detail = format!("{} takes no POST", uri.path());
        let hint = "POST to /v1/lanes/{lock}/quarantine.";
        return Err(Reject::new(Code::NotFound, detail).hint(hint).into());
    };
    let reason = record(&caller, &request);
    check(&request)?;
    let changed = shared.guard.fences.change_quarantine(&lock, &request);
    let QuarantineChange { is_done, line } = changed.map_err(unserved)?.ok_or_else(no_lanes)?;
    if let Some(line) = line.as_ref().filter(|_| is_done) {
        let ms_left = line.quarantine.as_ref().map_or(0, |quarantine| quarantine.ms_left);
        caller.record("ms_left", ms_left);
        tracing::warn!(%lock, ms_left, reason, "an operator changed the lane's quarantine");
    }
    match line {
        Some(line) if is_done => Ok(Json(line)),
        line => Err(conflict(&lock, line, &request).into()),
    }
}

/// Adds the decision to the audit log, and returns its reason.
fn record(caller: &Caller, request: &QuarantineRequest) -> String {
    let reason = match request {
        QuarantineRequest::Resolve { none_can_take_effect, reason, .. } => {
            caller.record("action", "resolve");
            caller.record("none_can_take_effect", none_can_take_effect);
            reason
        }
        QuarantineRequest::Extend { extend_ms, reason, .. } => {
            caller.record("action", "extend");
            caller.record("extend_ms", extend_ms);
            reason
        }
    };
    caller.record("quarantine", request.quarantine());
    caller.record("reason", reason);
    reason.to_string()
}

fn check(request: &QuarantineRequest) -> Result<(), Invalid> {
    match request {
        QuarantineRequest::Extend { extend_ms, .. } if !(1..=EXTEND_MS_MAX).contains(extend_ms) => {
            Err(Invalid::new("extend_ms", extend_ms.to_string(), "must be from 1 to 86400000"))
        }
        QuarantineRequest::Resolve { none_can_take_effect: false, .. } => {
            let rule = "must be true: a quarantine whose writes can take effect is not resolved";
            Err(Invalid::new("none_can_take_effect", "false", rule))
        }
        _ => Ok(()),
    }
}

/// Refuses a request for lanes that another guard serves.
fn unserved(error: StoreError) -> Failure {
    let text = "look at lanes".to_owned();
    failure(&RequestSummary { fence: None, kind: "lanes", text, owner: None }, Err(error))
}

fn no_lanes() -> Reject {
    let detail = "this guard has no lanes: they exist before an HTTP datastore (--proxy-listen)";
    Reject::new(Code::NotOffered, detail)
}

/// Refuses a request whose quarantine has ended or grown since the caller read the list, or whose
/// writes another guard may still send. The refusal shows the quarantine.
fn conflict(lock: &LockName, line: Option<LaneLine>, request: &QuarantineRequest) -> Reject {
    let quarantine = line.and_then(|line| line.quarantine);
    let detail = match &quarantine {
        None => format!("the lane of lock {lock} is not quarantined"),
        Some(found) if found.id != request.quarantine() => {
            format!(
                "the lane of lock {lock} has the quarantine {}, not that of the request",
                found.id
            )
        }
        Some(found) => format!(
            "the guard that had the lane of lock {lock} before may send writes for {} ms more",
            found.unresolvable_ms
        ),
    };
    Reject::new(Code::QuarantineConflict, detail).with("lock", lock).with("quarantine", quarantine)
}
