//! `POST /v1/terraform-states/{key}`: a state of the `http` backend of Terraform and OpenTofu.
//!
//! Terraform sends the id of its lock, which is that of a lease, and no token. The lease of a mark
//! presents the token of the mark: lock-server sealed it here before Terraform had the lock.

use axum::extract::{Query, Request, State};
use axum::response::Response;
use fence_protocol::{Code, LeaseId};
use serde::Deserialize;
use service_kit::problem::Reject;

use super::handler_state::HandlerState;
use super::{put, request};
use crate::service::{Failure, RequestSummary};

/// The query that Terraform adds to the address of a state.
#[derive(Debug, Deserialize)]
struct LockId {
    #[serde(rename = "ID")]
    id: LeaseId,
}

/// Writes a state while the lock is with the lease that Terraform names.
pub(super) async fn push(
    State(shared): State<HandlerState>,
    request: Request,
) -> Result<Response, Failure> {
    let guard = &shared.guard;
    let key = request::key(request.uri())?;
    let fence = match request.uri().query() {
        None => guard.fence(&key, request.headers(), crate::fencing::Intent::Write)?,
        Some(_) => {
            let Query(LockId { id }) = Query::try_from_uri(request.uri()).map_err(|error| {
                let detail = format!("the query must be ID=LOCK_ID alone: {error}");
                Reject::new(Code::InvalidRequest, detail)
            })?;
            guard.fence_of_lease(&key, id).await?
        }
    };
    let text = format!("POST state {key}");
    let owner = request::owner(request.headers())?;
    put::write(&shared, key, RequestSummary { fence, kind: "put", text, owner }, request).await
}
