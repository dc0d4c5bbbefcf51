//! `GET /v1/stores`.

use axum::Json;
use axum::extract::State;
use fence_protocol::wire::fence::StoresReply;

use crate::doors::http::handler_state::HandlerState;

/// Describes the store, its guarantee, and what observe mode let pass.
pub(super) async fn stores(State(shared): State<HandlerState>) -> Json<StoresReply> {
    Json(shared.guard.stores())
}
