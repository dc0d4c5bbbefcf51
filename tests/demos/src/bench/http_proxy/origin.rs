//! An HTTP datastore in memory: what the proxies stand before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::routing::put;

use crate::bench::server::serve_bare;
use fence_terminal::exit::Failure;

type Objects = Arc<Mutex<HashMap<String, Bytes>>>;

/// Serves until it is killed, in the runtime that a program gets where it chooses none.
pub(crate) fn start() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::internal(error.to_string()))?;
    runtime.block_on(serve())
}

async fn serve() -> Result<(), Failure> {
    let router = Router::new()
        .route("/{*path}", put(store).get(load))
        .layer(DefaultBodyLimit::disable())
        .with_state(Objects::default());
    serve_bare("bench-origin", router).await
}

async fn store(
    State(objects): State<Objects>,
    Path(path): Path<String>,
    body: Bytes,
) -> StatusCode {
    objects.lock().unwrap_or_else(PoisonError::into_inner).insert(path, body);
    StatusCode::NO_CONTENT
}

async fn load(
    State(objects): State<Objects>,
    Path(path): Path<String>,
) -> Result<Bytes, StatusCode> {
    let objects = objects.lock().unwrap_or_else(PoisonError::into_inner);
    objects.get(&path).cloned().ok_or(StatusCode::NOT_FOUND)
}
