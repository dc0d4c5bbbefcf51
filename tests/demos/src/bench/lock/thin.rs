//! A thin HTTP handler around the two least scripts: what any service that gives tokens over HTTP
//! costs, and the base of a lock server that keeps leases in memory.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use redis::Script;
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};

use super::clients::{ACQUIRE, RELEASE};
use crate::backing::connect;
use crate::bench::server::serve_bare;
use fence_terminal::exit::Failure;

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
    let target = redis.parse().map_err(|error| Failure::usage(format!("{error}")))?;
    let redis = connect(&target).await?;
    let acquire = Script::new(ACQUIRE);
    let release = Script::new(RELEASE);
    let tokens = format!("{prefix}tokens");
    let handler = Arc::new(Handler { redis, acquire, release, prefix, tokens });
    let route = post(handle);
    let router = Router::new().route("/v1/locks/{lock}/{verb}", route).with_state(handler);
    serve_bare("bench-handler", router).await
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
