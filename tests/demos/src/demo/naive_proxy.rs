//! What many a guard looks like: it compares the token with the highest one seen, and then forwards.
//!
//! Naive, and here for comparison only: between the comparison and the effect anything may happen.
//! It checks no signatures either.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::routing::any;
use fence_client::protocol::{FENCING_TOKEN, FencingToken, LockName, Token};
use service_kit::tasks::Tasks;

use crate::process::PATIENCE;
use fence_terminal::exit::Failure;

/// What the naive proxy is told when it is started.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    upstream: String,
}

/// At most this many locks.
const LOCKS_MAX: usize = 1000;

#[derive(Debug)]
struct Proxy {
    upstream: String,
    http: reqwest::Client,
    marks: Mutex<HashMap<LockName, Token>>,
}

/// Serves until the director is gone.
pub(crate) async fn serve(args: Args) -> Result<(), Failure> {
    let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build();
    let http = http.map_err(|error| Failure::internal(error.to_string()))?;
    let proxy = Arc::new(Proxy { upstream: args.upstream, http, marks: Mutex::default() });
    let router = Router::new().route("/{*key}", any(forward)).with_state(proxy);
    super::upstream::open("demo-naive-proxy", router, &Tasks::new()).await?.await;
    Ok(())
}

async fn forward(
    State(proxy): State<Arc<Proxy>>,
    method: Method,
    Path(key): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Bytes), StatusCode> {
    let token = headers.get(FENCING_TOKEN).and_then(|token| token.to_str().ok()?.parse().ok());
    let token: FencingToken = token.ok_or(StatusCode::PRECONDITION_REQUIRED)?;
    proxy.check(&token)?;
    // Here is the gap: the check is over, and the effect is still to come.
    let request = proxy.http.request(method, format!("{}/{key}", proxy.upstream)).body(body);
    let reply = request.send().await.map_err(|_| StatusCode::BAD_GATEWAY)?;
    let status = reply.status();
    let body = reply.bytes().await.map_err(|_| StatusCode::BAD_GATEWAY)?;
    Ok((status, body))
}

impl Proxy {
    fn check(&self, header: &FencingToken) -> Result<(), StatusCode> {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        if marks.len() >= LOCKS_MAX && !marks.contains_key(&header.lock) {
            return Err(StatusCode::SERVICE_UNAVAILABLE);
        }
        let mark = marks.entry(header.lock.clone()).or_insert(header.token);
        if header.token < *mark {
            return Err(StatusCode::PRECONDITION_FAILED);
        }
        *mark = header.token;
        Ok(())
    }
}
