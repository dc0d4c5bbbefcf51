//! `POST /v1/floor`: the first token that guards may admit after they lost their marks.

use std::sync::Arc;

use access_control::Caller;
use axum::Json;
use axum::extract::State;
use fence_protocol::Code;
use fence_protocol::wire::fence::FloorReply;
use service_kit::problem::Reject;

use super::Service;

/// Makes a token that is above every one issued before the request, in every lock; later ones are
/// at least as high.
pub(super) async fn floor(
    State(service): State<Arc<Service>>,
    caller: Caller,
) -> Result<Json<FloorReply>, Reject> {
    let floor = service.store.floor().await.map_err(|refusal| {
        Reject::new(Code::StoreUnavailable, refusal.to_string())
            .retry_after(1)
            .hint("A retry of the request is harmless.")
    })?;
    caller.record("floor", floor);
    Ok(Json(FloorReply { floor }))
}
