//! `GET /v1/fences`.

use access_control::{Caller, Verb};
use axum::Json;
use axum::extract::State;
use fence_protocol::wire::fence::{FenceLine, FencePage};
use fence_protocol::{Invalid, LockName};
use serde::Deserialize;
use service_kit::problem::ApiQuery;

use crate::doors::http::handler_state::HandlerState;
use crate::guard::{Failure, RequestSummary, failure};
use crate::stores::contract::FenceQuery;

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

/// Query of a page of fences or lanes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    #[serde(default)]
    prefix: String,
    after: Option<LockName>,
    limit: Option<usize>,
}

/// Lists fences in the order of their names.
pub(super) async fn list(
    State(shared): State<HandlerState>,
    caller: Caller,
    ApiQuery(query): ApiQuery<Query>,
) -> Result<Json<FencePage>, Failure> {
    let guard = &shared.guard;
    let query = checked(query)?;
    let failed = |error| {
        let text = "list fences".to_owned();
        failure(&RequestSummary { fence: None, kind: "list", text, owner: None }, Err(error))
    };
    // The highest mark concerns the whole namespace: only callers who may read it all get it.
    let highest_mark = match caller.may_all(Verb::Read) {
        Ok(()) => guard.fences.highest_mark().await.map_err(failed)?,
        Err(_) => None,
    };
    let page = guard.fences.list(query).await.map_err(failed)?;
    let last = page.fences.last().map(|(lock, _)| lock.clone());
    let next_after = if page.more { last } else { None };
    let fences = page.fences.into_iter().map(|(lock, mark)| FenceLine {
        refused_total: guard.refused_total(&lock),
        lock,
        mark: mark.token,
        lease_id: mark.lease,
    });
    Ok(Json(FencePage { fences: fences.collect(), next_after, highest_mark }))
}

/// Checks the query of a page.
///
/// # Errors
/// [`Invalid`] with the parameter.
pub(super) fn checked(query: Query) -> Result<FenceQuery, Invalid> {
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Invalid::new("limit", limit.to_string(), "must be from 1 to 1000"));
    }
    if query.prefix.len() > LockName::MAX_BYTES {
        return Err(Invalid::new("prefix", query.prefix, "is longer than 256 bytes"));
    }
    Ok(FenceQuery { prefix: query.prefix, after: query.after, limit })
}
