//! `/v1/terraform-states/{key}`: a state of the `http` backend of Terraform and OpenTofu.
//!
//! Terraform sends the id of its lock and no token. The [digest](fence_protocol::terraform) of the
//! id is a lease, and the lease of a mark presents the mark's token: lock-server sealed it here
//! before Terraform had the lock. Marks and refusals show the lease, and not the id.

use axum::extract::{Query, Request, State};
use axum::response::Response;
use fence_protocol::terraform::lease_of_lock_id;
use fence_protocol::{Code, FENCING_TOKEN};
use http::{HeaderMap, Uri};
use serde::Deserialize;
use service_kit::problem::Reject;

use super::{get, put, request};
use crate::doors::http::handler_state::HandlerState;
use crate::doors::http::headers;
use crate::guard::{Failure, RequestSummary};
use crate::rules::Intent;

/// The query that Terraform adds to the address of a state.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LockId {
    #[serde(rename = "ID")]
    id: String,
}

/// Reads a state. Terraform adds the id of its lock to the address of a push: an address with a
/// query of its own is refused here, when it is set up, and not at the first push.
pub(super) async fn pull(
    state: State<HandlerState>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    if uri.query().is_some_and(|query| !query.starts_with("ID=")) {
        let detail = "the address of a state must have no query: Terraform adds ?ID= to it";
        return Err(Reject::new(Code::InvalidRequest, detail).into());
    }
    get::get(state, uri, headers).await
}

/// Writes a state while the lock is with the lease that Terraform names.
pub(super) async fn push(
    State(shared): State<HandlerState>,
    request: Request,
) -> Result<Response, Failure> {
    let guard = &shared.guard;
    let key = request::key(request.uri())?;
    let fence = match request.uri().query() {
        None => guard.fence(&key, request.headers(), Intent::Write)?,
        Some(_) => {
            let Query(LockId { id }) = Query::try_from_uri(request.uri()).map_err(|_| {
                let detail = "the query must be ID=LOCK_ID alone";
                Reject::new(Code::InvalidRequest, detail)
            })?;
            if request.headers().contains_key(FENCING_TOKEN) {
                let detail = "a state is written under ID or under Fencing-Token, not under both";
                return Err(Reject::new(Code::InvalidRequest, detail).into());
            }
            guard.fence_of_lease(&key, lease_of_lock_id(&id)?).await?
        }
    };
    let text = format!("{} state {key}", request.method());
    let owner = headers::owner(request.headers())?;
    put::write(&shared, key, RequestSummary { fence, kind: "put", text, owner }, request).await
}
