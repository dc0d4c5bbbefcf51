//! Body of a write, within the limit of one object and of all bodies together.

use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use service_kit::problem::{Pieces, Reject, next_bytes, too_large};

use super::body_budget::Memory;
use super::handler_state::HandlerState;

/// A body that was received whole, and its memory until this is dropped.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) body: Bytes,
    _memory: Memory,
}

impl FromRequest<HandlerState> for Upload {
    type Rejection = Reject;

    async fn from_request(request: Request, shared: &HandlerState) -> Result<Self, Reject> {
        let limit = shared.max_object_bytes;
        let stated = request.headers().get(CONTENT_LENGTH);
        let stated = stated.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if stated.is_some_and(|bytes| bytes > limit) {
            return Err(too_large(limit));
        }
        let mut memory = shared.body_budget.begin(stated).await?;
        let mut body = request.into_body();
        let mut pieces = Pieces::default();
        while let Some(data) = next_bytes(&mut body).await? {
            let received = pieces.len() + data.len();
            if received > limit {
                return Err(too_large(limit));
            }
            memory.cover(received).await?;
            pieces.push(data);
        }
        Ok(Self { body: pieces.finish(), _memory: memory })
    }
}
