//! Reading a request's body within its limits.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::Extensions;
use bytes::{Bytes, BytesMut};
use fence_protocol::Code;
use http_body::Body as _;
use http_body_util::{BodyExt as _, LengthLimitError};

use super::Reject;
use crate::request::{BodyLimits, RequestContext};

/// The whole body, at most as large as the router allows; refusals are problems (408, 413, 400).
#[derive(Clone, Debug)]
pub struct ApiBytes(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for ApiBytes {
    type Rejection = Reject;

    async fn from_request(request: Request, _: &S) -> Result<Self, Reject> {
        let limit = limits(request.extensions()).max_body_bytes;
        read(request.into_body(), limit).await.map(Self)
    }
}

/// A body did not arrive in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyTooSlow {
    /// Bytes that had arrived.
    pub received_bytes: u64,
    /// By how much a sender may be behind the minimum rate.
    pub allowed: Duration,
}

impl fmt::Display for BodyTooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.received_bytes;
        let ms = self.allowed.as_millis();
        write!(
            f,
            "only {bytes} bytes of the body arrived, more than {ms} ms behind the minimum rate"
        )
    }
}

impl Error for BodyTooSlow {}

/// Maps an error while reading a body: too slow (408), too large (413), or broken off (400).
///
/// For handlers that read the body as a stream.
pub fn body_error(error: &(dyn Error + 'static)) -> Reject {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(slow) = error.downcast_ref::<BodyTooSlow>() {
            return Reject::new(Code::RequestTimeout, slow.to_string());
        }
        if error.is::<LengthLimitError>() {
            return Reject::new(Code::PayloadTooLarge, "the body is larger than this server takes");
        }
        cause = error.source();
    }
    Reject::new(Code::InvalidRequest, format!("the body could not be read: {error}"))
}

pub(super) fn limits(extensions: &Extensions) -> BodyLimits {
    extensions.get::<RequestContext>().map_or_else(BodyLimits::default, |context| context.limits)
}

/// The refusal of a body that is larger than `limit_bytes`.
pub fn too_large(limit_bytes: usize) -> Reject {
    let detail = format!("the body is larger than the limit of {limit_bytes} bytes");
    Reject::new(Code::PayloadTooLarge, detail).with("limit_bytes", limit_bytes)
}

/// The pieces of a body, put together. One that came in one piece, as nearly every one does, is not
/// copied.
#[derive(Debug, Default)]
pub struct Pieces {
    whole: Bytes,
    pieces: BytesMut,
}

impl Pieces {
    /// Bytes that have arrived.
    pub fn len(&self) -> usize {
        self.whole.len() + self.pieces.len()
    }

    /// True if nothing has arrived.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds what arrived next.
    pub fn push(&mut self, data: Bytes) {
        if self.is_empty() {
            self.whole = data;
        } else {
            self.pieces.extend_from_slice(&std::mem::take(&mut self.whole));
            self.pieces.extend_from_slice(&data);
        }
    }

    /// Everything that arrived.
    pub fn finish(self) -> Bytes {
        if self.pieces.is_empty() { self.whole } else { self.pieces.freeze() }
    }
}

/// The next bytes of a body; `None` at its end.
///
/// # Errors
/// As [`body_error`].
pub async fn next_bytes(body: &mut Body) -> Result<Option<Bytes>, Reject> {
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        if let Ok(data) = frame.map_err(|error| body_error(&error))?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

pub(super) async fn read(mut body: Body, limit_bytes: usize) -> Result<Bytes, Reject> {
    let mut pieces = Pieces::default();
    while let Some(data) = next_bytes(&mut body).await? {
        if pieces.len() + data.len() > limit_bytes {
            return Err(too_large(limit_bytes));
        }
        pieces.push(data);
    }
    Ok(pieces.finish())
}
