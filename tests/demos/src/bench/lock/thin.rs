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
use redis::Script;
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use service_kit::tasks::Tasks;
use tokio::net::TcpListener;

use super::clients::{ACQUIRE, RELEASE};
use crate::backing::connect;
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::emit;

/// Started by `bench lock`, never by people.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The Redis that keeps the locks
    #[arg(long)]
    redis: String,
    /// Prefix of its keys
    #[arg(long)]
    prefix: String,
}

struct Handler {
    redis: MultiplexedConnection,
    acquire: Script,
    release: Script,
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
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::internal(error.to_string()))?;
    runtime.block_on(serve(args))
}

async fn serve(Args { redis, prefix }: Args) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(code::UNAVAILABLE, error.to_string());
    let target = redis.parse().map_err(|error| Failure::usage(format!("{error}")))?;
    let redis = connect(&target).await?;
    let acquire = Script::new(ACQUIRE);
    let release = Script::new(RELEASE);
    let tokens = format!("{prefix}tokens");
    let handler = Arc::new(Handler { redis, acquire, release, prefix, tokens });
    let route = post(handle);
    let router = Router::new().route("/v1/locks/{lock}/{verb}", route).with_state(handler);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    emit(format!("bench-handler listening on http://{addr}\n").as_bytes())?;
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

async fn handle(
    State(handler): State<Arc<Handler>>,
    Path((lock, verb)): Path<(String, String)>,
    Json(Request { lease_id, ttl_ms }): Json<Request>,
) -> Result<Json<Reply>, StatusCode> {
    let script = if verb == "acquire" { &handler.acquire } else { &handler.release };
    let mut call = script.key(format!("{}{lock}", handler.prefix));
    call.key(&handler.tokens).arg(&lease_id).arg(ttl_ms);
    match call.invoke_async(&mut handler.redis.clone()).await {
        Ok(0) => Err(StatusCode::CONFLICT),
        Ok(token) => Ok(Json(Reply { lock, lease_id, token })),
        Err(_) => Err(StatusCode::SERVICE_UNAVAILABLE),
    }
}
