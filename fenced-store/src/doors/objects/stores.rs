//! `GET /v1/stores`.

use axum::Json;
use axum::extract::State;
use axum::response::Response;

use super::handler_state::HandlerState;
use super::reply;

/// What this guard stands before, how far it can be trusted, and what was let pass.
pub(super) async fn stores(State(shared): State<HandlerState>) -> Response {
    reply::fenced(None, Json(shared.guard.stores()))
}
