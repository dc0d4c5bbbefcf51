//! `POST /v1/fences/{lock}/seal`.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use fence_protocol::Code;
use fence_protocol::wire::fence::SealReply;
use http::{HeaderMap, Uri};
use service_kit::problem::Reject;

use super::request;
use crate::doors::http::handler_state::HandlerState;
use crate::doors::http::headers;
use crate::guard::{Failure, RequestSummary};

/// Raises the mark to the presented token: after the reply, nothing lower is applied.
pub(super) async fn seal(
    State(shared): State<HandlerState>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let guard = &shared.guard;
    let Some(lock) = request::lock(&uri, "/seal")? else {
        let detail = format!("{} takes no POST", uri.path());
        let hint = "POST to /v1/fences/{lock}/seal.";
        return Err(Reject::new(Code::NotFound, detail).hint(hint).into());
    };
    let fence = guard.fencing.to_lock(&lock, &headers)?;
    let owner = headers::owner(&headers)?;
    let text = format!("SEAL {lock}");
    let summary = RequestSummary { fence: Some(fence.clone()), kind: "seal", text, owner };
    let presented = fence.presented.token;
    // In observe mode the reply to a refused seal has the current mark.
    let mark = guard.seal(summary, fence).await?.mark.unwrap_or(presented);
    Ok(headers::fenced(Some(mark), Json(SealReply { lock, mark })))
}
