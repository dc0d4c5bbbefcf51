//! `POST /v1/floor`: an operator sets the first token to admit, or lets the lock server state it.

use access_control::Caller;
use axum::Json;
use axum::extract::State;
use fence_protocol::wire::fence::{FloorReply, FloorRequest};
use fence_protocol::{Code, Token};
use service_kit::problem::{ApiJson, Reject};

use crate::credible;
use crate::doors::http::handler_state::HandlerState;
use crate::report::Reporter;

/// Refuses every token below the floor from now on, after a store has lost its marks. The reply has
/// the floor in force, which may be higher. Connections of the Redis port are ended; those with a
/// token above the floor can reconnect.
pub(super) async fn floor(
    State(shared): State<HandlerState>,
    caller: Caller,
    ApiJson(request): ApiJson<FloorRequest>,
) -> Result<Json<FloorReply>, Reject> {
    let guard = &shared.guard;
    let stated = match request.floor {
        Some(floor) => {
            check_credible(floor, request.force, guard.kit.clock.wall_ms())?;
            floor
        }
        None => issued(guard.reporter.as_ref()).await?,
    };
    caller.record("stated", stated);
    match guard.fences.set_floor(stated).await {
        Ok(Some(floor)) => {
            caller.record("floor", floor);
            tracing::warn!(%stated, %floor, "an operator set the first token to admit");
            Ok(Json(FloorReply { floor }))
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

/// Asks the lock servers of `--report-to` for a floor above every issued token.
async fn issued(reporter: Option<&Reporter>) -> Result<Token, Reject> {
    let Some(reporter) = reporter else {
        let detail = "floor is missing, and this guard knows no lock server to ask for it";
        let hint = "Send {\"floor\": N} with the N that POST /v1/floor of the lock server states, or \
                    start the guard with --report-to.";
        return Err(Reject::new(Code::InvalidRequest, detail).hint(hint));
    };
    reporter.servers.floor().await.map_err(|error| {
        let hint = "Start the lock server, or send {\"floor\": N}; a retry is harmless.";
        Reject::new(Code::StoreUnavailable, format!("no lock server states a floor: {error}"))
            .hint(hint)
    })
}

/// Refuses a floor near the maximum, which would refuse every holder from then on.
fn check_credible(floor: Token, force: bool, wall_ms: u64) -> Result<(), Reject> {
    let max = credible::floor_max(wall_ms);
    if force || floor.get() <= max {
        return Ok(());
    }
    let detail = format!(
        "floor {floor} is above {max}, more than a lock server whose clock is right issues within a \
         day"
    );
    let hint = "Take what POST /v1/floor of the lock server states. If the lock server issues tokens \
                that high, repeat the request with \"force\": true; a floor never falls.";
    Err(Reject::new(Code::InvalidRequest, detail).hint(hint))
}
