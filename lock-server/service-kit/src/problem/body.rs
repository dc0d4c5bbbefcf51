//! Reading a request's body within its limits.

use std::error::Error;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::Extensions;
use bytes::{Bytes, BytesMut};
use fence_protocol::Code;
use http_body::Body as _;
use http_body_util::{BodyExt as _, LengthLimitError};

use super::Reject;
use crate::http::{HttpOptions, RequestContext};
use crate::listener::BodyTooSlow;

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

/// What an error while reading a body is: too slow (408), too large (413), or broken off (400).
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

pub(super) fn limits(extensions: &Extensions) -> HttpOptions {
    extensions.get::<RequestContext>().map_or_else(HttpOptions::default, |context| context.options)
}

pub(crate) fn too_large(limit_bytes: usize) -> Reject {
    let detail = format!("the body is larger than the limit of {limit_bytes} bytes");
    Reject::new(Code::PayloadTooLarge, detail).with("limit_bytes", limit_bytes)
}

/// The whole body. One that came in one piece, as nearly every one does, is not copied.
pub(super) async fn read(mut body: Body, limit_bytes: usize) -> Result<Bytes, Reject> {
    let mut whole = Bytes::new();
    let mut pieces = BytesMut::new();
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else {
            break;
        };
        let Ok(data) = frame.map_err(|error| body_error(&error))?.into_data() else {
            continue;
        };
        if whole.len() + pieces.len() + data.len() > limit_bytes {
            return Err(too_large(limit_bytes));
        }
        if whole.is_empty() && pieces.is_empty() {
            whole = data;
        } else {
            pieces.extend_from_slice(&std::mem::take(&mut whole));
            pieces.extend_from_slice(&data);
        }
    }
    Ok(if pieces.is_empty() { whole } else { pieces.freeze() })
}
