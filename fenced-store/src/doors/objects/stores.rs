//! `GET /v1/stores`.

use axum::Json;
use axum::extract::State;
use axum::response::Response;

use super::reply;
use super::router::Shared;

/// What this guard stands before, how far it can be trusted, and what was let pass.
pub(super) async fn stores(State(shared): State<Shared>) -> Response {
    reply::fenced(None, Json(shared.guard.stores()))
}
