//! `POST /v1/floor`: an operator sets the first token to admit.

use access_control::Caller;
use axum::Json;
use axum::extract::State;
use fence_protocol::Code;
use fence_protocol::wire::fence::FloorRequest;
use service_kit::problem::{ApiJson, Reject};

use super::handler_state::HandlerState;
use crate::credible;

/// Refuses every token below the floor from now on, after a store has lost its marks. The reply has
/// the floor in force, which may be higher. Connections of the Redis port are ended; those with a
/// token above the floor can reconnect.
pub(super) async fn floor(
    State(shared): State<HandlerState>,
    caller: Caller,
    ApiJson(request): ApiJson<FloorRequest>,
) -> Result<Json<FloorRequest>, Reject> {
    caller.record("stated", request.floor);
    check_credible(&request, shared.guard().kit.clock.wall_ms())?;
    match shared.guard().fences.set_floor(request.floor).await {
        Ok(Some(floor)) => {
            caller.record("floor", floor);
            tracing::warn!(stated = %request.floor, %floor, "an operator set the first token to admit");
            Ok(Json(FloorRequest { floor, force: false }))
        }
        Ok(None) => {
            let detail = "this guard's store does not lose its marks, so it has no floor";
            Err(Reject::new(Code::NotOffered, detail))
        }
        Err(error) => {
            let hint = "Start Redis, and check GET /v1/stores; a retry of the request is harmless.";
            Err(Reject::new(Code::StoreUnavailable, error.to_string()).hint(hint))
        }
    }
}

/// Refuses a floor near the maximum, which would refuse every holder from then on.
fn check_credible(request: &FloorRequest, wall_ms: u64) -> Result<(), Reject> {
    let max = credible::floor_max(wall_ms);
    if request.force || request.floor.get() <= max {
        return Ok(());
    }
    let detail = format!(
        "floor {} is above {max}, more than a lock server whose clock is right issues within a day",
        request.floor
    );
    let hint = "Take a fresh token of the lock server as the floor. If the lock server issues tokens \
                that high, repeat the request with \"force\": true; a floor never falls.";
    Err(Reject::new(Code::InvalidRequest, detail).hint(hint))
}
