//! `DELETE /v1/objects/{key}`.

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode, Uri};

use super::{reply, request};
use crate::doors::http::handler_state::HandlerState;
use crate::doors::http::headers;
use crate::guard::Failure;
use crate::stores::contract::Operation;

/// Removes the object; its lock's mark stays. Success if there is none, so that a retry is
/// idempotent.
pub(super) async fn delete(
    State(shared): State<HandlerState>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let guard = &shared.guard;
    let key = request::key(&uri)?;
    let summary = request::summary(guard, &key, &headers, "delete", "DELETE")?;
    let condition = headers::condition(&headers)?;
    let name = request::name(&headers)?;
    let operation = Operation::Delete { key, condition };
    let once = name.map(|name| guard.once(&name, &operation));
    let applied = guard.apply(summary, operation, once).await?;
    Ok(reply::repeatable(&applied, StatusCode::NO_CONTENT))
}
