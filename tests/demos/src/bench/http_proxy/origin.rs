//! An HTTP datastore in memory: what the proxies stand before.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::routing::put;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use service_kit::tasks::Tasks;
use tokio::net::TcpListener;

use fence_terminal::exit::{Failure, code};
use fence_terminal::output::emit;

type Objects = Arc<Mutex<HashMap<String, Bytes>>>;

/// Serves until it is killed, in the runtime that a program gets where it chooses none.
pub(crate) fn start() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::internal(error.to_string()))?;
    runtime.block_on(serve())
}

async fn serve() -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(code::UNAVAILABLE, error.to_string());
    let router = Router::new()
        .route("/{*path}", put(store).get(load))
        .layer(DefaultBodyLimit::disable())
        .with_state(Objects::default());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    emit(format!("bench-origin listening on http://{addr}\n").as_bytes())?;
    let tasks = Tasks::new();
    loop {
        let (stream, _) = listener.accept().await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let service = TowerToHyperService::new(router.clone());
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tasks.spawn(async move {
            // A client that leaves in the middle of a request has failed itself.
            let _ = connection.await;
        });
    }
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
