//! `POST /v1/floor`: an operator states the first token to be admitted.

use axum::Json;
use axum::extract::State;
use fence_protocol::Code;
use fence_protocol::wire::fence::FloorRequest;
use service_kit::access::Caller;
use service_kit::problem::{ApiJson, Reject};

use super::router::Shared;

/// Refuses every token below the floor from now on: what an operator does after a store has lost
/// its marks. The reply has the floor in force, which may be a higher one. Connections of the Redis port are ended, and come back as far as they may.
pub(super) async fn floor(
    State(shared): State<Shared>,
    caller: Caller,
    ApiJson(request): ApiJson<FloorRequest>,
) -> Result<Json<FloorRequest>, Reject> {
    caller.note("stated", request.floor);
    match shared.guard().fences.set_floor(request.floor).await {
        Ok(Some(floor)) => {
            caller.note("floor", floor);
            tracing::warn!(stated = %request.floor, %floor, "an operator stated the first token to be admitted");
            Ok(Json(FloorRequest { floor }))
        }
        Ok(None) => {
            let detail = "this guard's store does not lose its marks, so it takes no floor";
            Err(Reject::new(Code::NotOffered, detail))
        }
        Err(error) => {
            let hint =
                "Start Redis, and look at GET /v1/stores; repeating the request is harmless.";
            Err(Reject::new(Code::StoreUnavailable, error.to_string()).hint(hint))
        }
    }
}
