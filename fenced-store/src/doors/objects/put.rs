//! `PUT /v1/objects/{key}`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use fence_protocol::{Code, Invalid};
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderMap, StatusCode};
use service_kit::ids;
use service_kit::problem::Reject;

use super::{reply, request};
use crate::doors::http::handler_state::HandlerState;
use crate::doors::http::headers;
use crate::doors::http::upload::Upload;
use crate::etag::ETag;
use crate::guard::{Failure, Guard, RequestSummary};
use crate::key::ObjectKey;
use crate::stores::contract::{Effect, First, Object, Once, Operation};

const DEFAULT_CONTENT_TYPE: &str = "application/octet-stream";
const MAX_CONTENT_TYPE_BYTES: usize = 256;
/// Size above which hashing would delay other requests.
const HASH_INLINE_BYTES: usize = 256 << 10;

/// Writes the whole object. The token is checked before the body is received, so that a refused
/// client need not send it.
pub(super) async fn put(
    State(shared): State<HandlerState>,
    request: Request,
) -> Result<Response, Failure> {
    let guard = &shared.guard;
    let key = request::key(request.uri())?;
    let headers = request.headers();
    let summary = request::summary(guard, &key, headers, "put", "PUT")?;
    write(&shared, key, summary, request).await
}

/// Writes the object once its fence is known.
pub(super) async fn write(
    shared: &HandlerState,
    key: ObjectKey,
    summary: RequestSummary,
    request: Request,
) -> Result<Response, Failure> {
    let guard = &shared.guard;
    let (head, body) = request.into_parts();
    let headers = &head.headers;
    let condition = headers::condition(headers)?;
    let content_type = content_type(headers)?;
    let name = request::name(headers)?;
    let (upload, _) = Upload::receive(headers, body, shared, shared.max_object_bytes).await?;
    let etag = tag(&upload.body).await?;
    let object = Object { etag: etag.clone(), content_type, body: upload.body.clone() };
    let operation = Operation::Put { key, object, condition };
    let once = match name {
        Some(name) => Some(once(guard, name, &operation).await?),
        None => None,
    };
    let applied = guard.apply(summary, operation, once).await?;
    let status = match applied.effect {
        Effect::Stored { created: true } => StatusCode::CREATED,
        _ => StatusCode::NO_CONTENT,
    };
    let etag = match &applied.repeated {
        Some(First::Stored { etag, .. }) => etag,
        _ => &etag,
    };
    Ok(reply::repeatable(&applied, (status, [(ETAG, etag.to_string())])))
}

fn content_type(headers: &HeaderMap) -> Result<String, Invalid> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(DEFAULT_CONTENT_TYPE.to_owned()) };
    match value.to_str() {
        Ok(text) if text.len() <= MAX_CONTENT_TYPE_BYTES => Ok(text.to_owned()),
        Ok(text) => Err(Invalid::new("Content-Type", text, "is longer than 256 bytes")),
        Err(_) => Err(Invalid::new("Content-Type", "…", "is not ASCII text")),
    }
}

async fn tag(body: &Bytes) -> Result<ETag, Reject> {
    let nonce = ids::random_hex(8);
    let shared = body.clone();
    hashed(body.len(), move || ETag::from_body(&shared, &nonce)).await
}

async fn once(guard: &Arc<Guard>, name: String, operation: &Operation) -> Result<Once, Reject> {
    let bytes = match operation {
        Operation::Put { object, .. } => object.body.len(),
        _ => 0,
    };
    let guard = Arc::clone(guard);
    let operation = operation.clone();
    hashed(bytes, move || guard.once(&name, &operation)).await
}

/// Runs `hash` over `bytes` bytes, on another thread if it takes long.
async fn hashed<T: Send + 'static>(
    bytes: usize,
    hash: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Reject> {
    if bytes <= HASH_INLINE_BYTES {
        return Ok(hash());
    }
    tokio::task::spawn_blocking(hash)
        .await
        .map_err(|error| Reject::new(Code::Internal, format!("hashing failed: {error}")))
}
