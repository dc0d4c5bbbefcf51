//! Body of a write, within the limit of one object and of all bodies together.

use axum::body::Body;
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use service_kit::problem::{Pieces, Reject, next_bytes, too_large};

use super::body_budget::Memory;
use super::handler_state::HandlerState;

/// A body, or its first part, and its memory until this is dropped.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) body: Bytes,
    /// Length of the whole body that the sender stated, in bytes.
    pub(crate) stated_bytes: Option<usize>,
    _memory: Memory,
}

impl Upload {
    /// Receives a body until it is complete or has more than `part_bytes`; then the rest is
    /// returned too. A body without a stated length is received whole, because it may turn out to
    /// be too large.
    ///
    /// # Errors
    /// 413 for a body above the limit of an object, 429 if there is no memory, and the errors of
    /// receiving.
    pub(crate) async fn receive(
        headers: &HeaderMap,
        mut body: Body,
        shared: &HandlerState,
        part_bytes: usize,
    ) -> Result<(Self, Option<Body>), Reject> {
        let limit = shared.max_object_bytes;
        let stated = headers.get(CONTENT_LENGTH);
        let stated_bytes = stated.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if stated_bytes.is_some_and(|bytes| bytes > limit) {
            return Err(too_large(limit));
        }
        let part_bytes = stated_bytes.map_or(limit, |_| part_bytes);
        let kept = stated_bytes.map(|bytes| bytes.min(part_bytes));
        let mut memory = shared.body_budget.begin(kept).await?;
        let mut pieces = Pieces::default();
        while pieces.len() <= part_bytes
            && let Some(data) = next_bytes(&mut body).await?
        {
            let received = pieces.len() + data.len();
            if received > limit {
                return Err(too_large(limit));
            }
            memory.cover(received).await?;
            pieces.push(data);
        }
        let rest = (pieces.len() > part_bytes).then_some(body);
        Ok((Self { body: pieces.finish(), stated_bytes, _memory: memory }, rest))
    }
}
