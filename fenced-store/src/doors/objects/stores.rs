//! `GET /v1/stores`.

use axum::Json;
use axum::extract::State;
use axum::response::Response;

use super::reply;
use crate::doors::http::handler_state::HandlerState;

/// Describes the store, its guarantee, and what observe mode let pass.
pub(super) async fn stores(State(shared): State<HandlerState>) -> Response {
    reply::fenced(None, Json(shared.guard.stores()))
}
