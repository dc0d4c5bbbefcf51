//! `DELETE /v1/objects/{key}`.

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode, Uri};

use super::router::Shared;
use super::{reply, request};
use crate::service::Failure;
use crate::store::Operation;

/// Removes the object; its lock's mark stays. Removing what is not there is a success, so that a
/// repeated request is.
pub(super) async fn delete(
    State(shared): State<Shared>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let guard = &shared.guard;
    let key = request::key(&uri)?;
    let asked = request::asked(guard, &key, &headers, "delete", "DELETE")?;
    let condition = request::condition(&headers)?;
    let applied = guard.apply(asked, Operation::Delete { key, condition }).await?;
    Ok(reply::fenced(applied.mark, StatusCode::NO_CONTENT))
}
