//! `GET /v1/principal`.

use access_control::Caller;
use axum::Json;
use fence_protocol::wire::principal::PrincipalReply;

/// Name and rights of the caller.
pub(super) async fn show(caller: Caller) -> Json<PrincipalReply> {
    let principal = caller.name().map(ToOwned::to_owned);
    Json(PrincipalReply { principal, rights: caller.rights() })
}
