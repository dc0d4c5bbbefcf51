//! `POST /v1/floor`: an operator states the first token to be admitted.

use axum::Json;
use axum::extract::State;
use fence_protocol::Code;
use fence_protocol::wire::fence::FloorRequest;
use service_kit::problem::{ApiJson, Reject};

use super::router::Shared;
use crate::store::StoreError;

/// Refuses every token below the floor from now on: what an operator does after a store has lost
/// its marks. Connections of the Redis port are ended, and come back as far as they may.
pub(super) async fn floor(
    State(shared): State<Shared>,
    ApiJson(request): ApiJson<FloorRequest>,
) -> Result<Json<FloorRequest>, Reject> {
    match shared.guard().fences.set_floor(request.floor).await {
        Ok(true) => {
            tracing::warn!(floor = %request.floor, "an operator stated the first token to be admitted");
            Ok(Json(request))
        }
        Ok(false) => {
            let detail = "this guard's store does not lose its marks, so it takes no floor";
            Err(Reject::new(Code::NotOffered, detail))
        }
        Err(StoreError::Unavailable(reason)) => Err(Reject::new(Code::StoreUnavailable, reason)),
        Err(error) => Err(Reject::new(Code::StoreUnavailable, error.to_string())),
    }
}
