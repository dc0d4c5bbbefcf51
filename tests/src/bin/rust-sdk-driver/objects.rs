//! Objects behind the guard.

use serde_json::json;

use crate::arguments::Arguments;
use crate::failure::DriverResult;
use crate::held::with;
use crate::state::DriverState;

/// The op `put`.
pub(crate) async fn put(state: &DriverState, request: &Arguments) -> DriverResult {
    let held = state.lease_of(request)?;
    let key = request.text("key")?;
    let value = request.text("value")?;
    let applied = with!(held, lease => {
        let mut put = held.client.objects().put(lease, &key, value);
        if let Some(etag) = request.text_or_none("if_match") {
            put = put.if_match(&etag);
        }
        if request.is_set("if_absent") {
            put = put.if_absent();
        }
        if let Some(id) = request.text_or_none("op_id") {
            put = put.op_id(&id);
        }
        put.send().await?
    });
    Ok(json!({"etag": applied.etag}))
}

/// The op `get`.
pub(crate) async fn get(state: &DriverState, request: &Arguments) -> DriverResult {
    let held = state.lease_of(request)?;
    let key = request.text("key")?;
    let object = with!(held, lease => held.client.objects().get(lease, &key).await?);
    let value = object.as_ref().map(|object| String::from_utf8_lossy(&object.body).into_owned());
    Ok(json!({"value": value, "etag": object.and_then(|object| object.etag)}))
}

/// The op `delete`.
pub(crate) async fn delete(state: &DriverState, request: &Arguments) -> DriverResult {
    let held = state.lease_of(request)?;
    let key = request.text("key")?;
    with!(held, lease => held.client.objects().delete(lease, &key).await?);
    Ok(json!({}))
}
