//! `GET /v1/objects/{key}` (and `HEAD`).

use axum::extract::State;
use axum::response::Response;
use fence_protocol::Code;
use http::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode, Uri};
use service_kit::problem::Reject;

use super::request;
use crate::doors::http::handler_state::HandlerState;
use crate::doors::http::{download, headers};
use crate::etag::Condition;
use crate::guard::Failure;
use crate::stores::contract::{Effect, Operation};

/// Reads the object. A read with a token raises the mark before the reply, also if there is no
/// object.
pub(super) async fn get(
    State(shared): State<HandlerState>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let guard = &shared.guard;
    let key = request::key(&uri)?;
    let summary = request::summary(guard, &key, &headers, "get", "GET")?;
    let condition = match headers.contains_key(IF_NONE_MATCH) {
        true => headers::condition(&headers)?,
        false => Condition::None,
    };
    let applied = guard.apply(summary, Operation::Get { key: key.clone() }, None).await?;
    let Effect::Found(object) = applied.effect else {
        let detail = format!("there is no object {key}");
        let hint = "Write it with PUT, or check the key.";
        let response = Reject::new(Code::NotFound, detail).hint(hint);
        return Ok(headers::fenced(applied.mark, response));
    };
    let tag = [(ETAG, object.etag.to_string())];
    if !condition.holds(Some(&object.etag)) {
        return Ok(headers::fenced(applied.mark, (StatusCode::NOT_MODIFIED, tag)));
    }
    let content_type = [(CONTENT_TYPE, object.content_type)];
    // A browser must not run stored content.
    let no_sniff = [("x-content-type-options", "nosniff")];
    let body = download::body(object.body, &shared.reply_budget).await?;
    Ok(headers::fenced(applied.mark, (tag, content_type, no_sniff, body)))
}
