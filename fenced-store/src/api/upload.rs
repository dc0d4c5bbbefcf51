//! The body of a write, within the limit of one object and of all bodies together.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use fence_protocol::Code;
use http::header::CONTENT_LENGTH;
use service_kit::problem::{ApiBytes, Reject};
use tokio::sync::OwnedSemaphorePermit;

use super::router::Shared;

/// The grain in which memory for bodies is handed out.
pub(super) const UNIT_BYTES: usize = 4096;
/// How long a write waits for memory.
const WAIT: Duration = Duration::from_secs(5);

/// A body that was received whole, and the memory that it takes until this is dropped.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) body: Bytes,
    _memory: OwnedSemaphorePermit,
}

/// How many units `bytes` take.
pub(super) fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX >> 4)
}

impl FromRequest<Shared> for Upload {
    type Rejection = Reject;

    async fn from_request(request: Request, shared: &Shared) -> Result<Self, Reject> {
        let limit = shared.max_object_bytes;
        let stated = request.headers().get(CONTENT_LENGTH);
        let stated = stated.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if stated.is_some_and(|bytes| bytes > limit) {
            return Err(too_large(limit));
        }
        let wanted = units(stated.unwrap_or(limit));
        let memory = Arc::clone(&shared.body_budget).acquire_many_owned(wanted);
        let memory =
            tokio::time::timeout(WAIT, memory).await.ok().and_then(Result::ok).ok_or_else(
                || {
                    let detail = "too many bodies are being received at the same time";
                    Reject::new(Code::LimitReached, detail).retry_after(1)
                },
            )?;
        let ApiBytes(body) = ApiBytes::from_request(request, shared).await?;
        if body.len() > limit {
            return Err(too_large(limit));
        }
        Ok(Self { body, _memory: memory })
    }
}

fn too_large(limit_bytes: usize) -> Reject {
    let detail = format!("the body is larger than the limit of {limit_bytes} bytes");
    Reject::new(Code::PayloadTooLarge, detail).with("limit_bytes", limit_bytes)
}
