//! A thin HTTP handler around the two least scripts: what any service that gives tokens over HTTP
//! costs, and the base of a lock server that keeps leases in memory.

use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use service_kit::tasks::Tasks;
use tokio::net::TcpListener;

use super::clients::{ACQUIRE, RELEASE};
use crate::demo::backing::connect;
use crate::exit::{Failure, code};
use crate::output::emit;

/// Started by `bench lock`, never by people.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The Redis that keeps the locks
    #[arg(long)]
    redis: String,
    /// What its keys begin with
    #[arg(long)]
    prefix: String,
}

struct Handler {
    redis: MultiplexedConnection,
    acquire: redis::Script,
    release: redis::Script,
    prefix: String,
    tokens: String,
}

#[derive(Deserialize)]
struct Request {
    lease_id: String,
    #[serde(default)]
    ttl_ms: u64,
}

#[derive(Serialize)]
struct Reply {
    lock: String,
    lease_id: String,
    token: u64,
}

/// Serves until it is killed, in the runtime that a program gets where it chooses none.
pub(crate) fn start(args: Args) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("the runtime does not start: {error}")))?;
    runtime.block_on(serve(args))
}

async fn serve(args: Args) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(code::UNAVAILABLE, error.to_string());
    let target = args.redis.parse().map_err(|error| Failure::usage(format!("{error}")))?;
    let handler = Handler {
        redis: connect(&target).await?,
        acquire: redis::Script::new(ACQUIRE),
        release: redis::Script::new(RELEASE),
        tokens: format!("{}tokens", args.prefix),
        prefix: args.prefix,
    };
    let router = Router::new()
        .route("/v1/locks/{lock}/acquire", post(acquire))
        .route("/v1/locks/{lock}/release", post(release))
        .with_state(Arc::new(handler));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    emit(format!("bench-handler listening on http://{addr}\n").as_bytes())?;
    let tasks = Tasks::new();
    let mut http = http1::Builder::new();
    http.header_read_timeout(None);
    loop {
        let (stream, _) = listener.accept().await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let service = TowerToHyperService::new(router.clone());
        let connection = http.serve_connection(TokioIo::new(stream), service);
        tasks.spawn(async move {
            // A client that leaves in the middle of a request ends its own row.
            let _ = connection.await;
        });
    }
}

async fn acquire(
    State(handler): State<Arc<Handler>>,
    Path(lock): Path<String>,
    Json(request): Json<Request>,
) -> Result<Json<Reply>, StatusCode> {
    let mut call = handler.acquire.key(format!("{}{lock}", handler.prefix));
    call.key(&handler.tokens).arg(&request.lease_id).arg(request.ttl_ms);
    reply(&handler, &call, lock, request.lease_id, StatusCode::LOCKED).await
}

async fn release(
    State(handler): State<Arc<Handler>>,
    Path(lock): Path<String>,
    Json(request): Json<Request>,
) -> Result<Json<Reply>, StatusCode> {
    let mut call = handler.release.key(format!("{}{lock}", handler.prefix));
    call.arg(&request.lease_id);
    reply(&handler, &call, lock, request.lease_id, StatusCode::GONE).await
}

/// Reply with what the script returns, which is 0 where it `refused`.
async fn reply(
    handler: &Handler,
    call: &redis::ScriptInvocation<'_>,
    lock: String,
    lease_id: String,
    refused: StatusCode,
) -> Result<Json<Reply>, StatusCode> {
    let returned = call.invoke_async(&mut handler.redis.clone()).await;
    match returned.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)? {
        0 => Err(refused),
        token => Ok(Json(Reply { lock, lease_id, token })),
    }
}
