//! `GET /v1/fences/{lock}`.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use fence_protocol::Code;
use fence_protocol::wire::fence::FenceReply;
use http::Uri;
use service_kit::problem::Reject;

use super::request;
use crate::doors::http::handler_state::HandlerState;
use crate::doors::http::headers::fenced;
use crate::guard::{Failure, RequestSummary, failure};

/// Shows a lock's mark and the refusals of this process. A lock without a token so far is shown
/// without a mark: it may or may not exist.
pub(super) async fn show(
    State(shared): State<HandlerState>,
    uri: Uri,
) -> Result<Response, Failure> {
    let guard = &shared.guard;
    let Some(lock) = request::lock(&uri, "")? else {
        return Err(Reject::new(Code::NotFound, "the path names no lock").into());
    };
    let mark = guard.fences.show(&lock).await.map_err(|error| {
        let text = format!("show fence {lock}");
        failure(&RequestSummary { fence: None, kind: "show", text, owner: None }, Err(error))
    })?;
    let shown = FenceReply {
        mark: mark.map(|mark| mark.token),
        lease_id: mark.map(|mark| mark.lease),
        guarantee: guard.guarantee(),
        refused_total: guard.refused_total(&lock),
        last_refusals: guard.refusals.recent(&lock, guard.kit.clock.monotonic_ms()),
        lock,
    };
    Ok(fenced(shown.mark, Json(shown)))
}
