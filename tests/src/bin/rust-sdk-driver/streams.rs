//! Events, and what operators see and do.

use fence_client::StreamItem;
use fence_client::protocol::LockName;
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use crate::arguments::Arguments;
use crate::failure::{DriverResult, Failure};
use crate::state::DriverState;
use crate::write;

/// The op `events`.
pub(crate) async fn open(state: &DriverState, request: &Arguments) -> DriverResult {
    let name = request.text("stream")?;
    let prefix = request.text_or_none("prefix").unwrap_or_default();
    let mut stream = state.client_of(request)?.events(prefix).open().await?;
    let stream_name = name.clone();
    let reading = tokio::task::spawn_local(async move {
        loop {
            match stream.next().await {
                Ok(StreamItem::Event { event, .. }) => write(&json!({
                    "event": "item", "stream": name,
                    "kind": event.kind.as_str(), "lock": event.lock,
                })),
                Ok(_) => {}
                Err(error) => {
                    write(&json!({"event": "stream-failed", "message": error.to_string()}));
                    return;
                }
            }
        }
    });
    state.streams.borrow_mut().insert(stream_name, AbortOnDropHandle::new(reading));
    Ok(json!({}))
}

/// The op `events_close`.
pub(crate) fn close(state: &DriverState, request: &Arguments) -> DriverResult {
    let closed = state.streams.borrow_mut().remove(&request.text("stream")?);
    closed.map(|_| json!({})).ok_or_else(|| Failure::invalid("there is no such stream"))
}

/// The op `show`.
pub(crate) async fn show(state: &DriverState, request: &Arguments) -> DriverResult {
    let lock = LockName::new(&request.text("name")?)?;
    let shown = state.client_of(request)?.locks().show(&lock).await?;
    let owner = shown.holder.map(|holder| holder.info.owner);
    Ok(json!({"state": shown.state, "owner": owner}))
}

/// The op `revoke`.
pub(crate) async fn revoke(state: &DriverState, request: &Arguments) -> DriverResult {
    let lock = request.text("name")?;
    let reason = request.text("reason")?;
    state.client_of(request)?.locks().revoke(lock, reason).await?;
    Ok(json!({}))
}
