//! A datastore that knows nothing of tokens, and a naive proxy before it: a small HTTP server in
//! the director, which can hold the next write before it applies it, as a slow disk or a long queue
//! does.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::routing::any;
use fence_client::clock;
use fence_client::protocol::{FENCING_TOKEN, FencingToken, Token};
use serde_json::Value;
use service_kit::listener::{self, Exposure, ListenOptions};
use service_kit::tasks::Tasks;
use tokio::sync::watch;

use fence_terminal::exit::Failure;

/// A running server; it serves until the program ends.
#[derive(Debug)]
pub(super) struct Datastore {
    url: String,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    contents: Mutex<Contents>,
    /// `false` while a write is held.
    gate: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Contents {
    objects: HashMap<String, Bytes>,
    hold_next: bool,
    /// Arrival of the held write on the machine's clock, in milliseconds, and its document.
    held: Option<(u64, Value)>,
    requests_since_held: usize,
    /// Highest token that the naive proxy has seen. The demo has one lock behind it.
    naive_mark: Option<Token>,
}

impl Datastore {
    /// Serves on a port of the system's choice.
    pub(super) async fn start() -> Result<Self, Failure> {
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let bound = listener::bind(any_port, &Exposure::default()).await.map_err(failed)?;
        let url = format!("http://{}", bound.local_addr().map_err(failed)?);
        let gate = watch::Sender::new(true);
        let shared = Arc::new(Shared { contents: Mutex::default(), gate });
        let router = Router::new()
            .route("/naive-proxy/{*key}", any(naive_proxy))
            .route("/{*key}", any(serve))
            .with_state(Arc::clone(&shared));
        let tasks = Tasks::new();
        let serving = listener::serve(bound, router, ListenOptions::default(), tasks.clone());
        tasks.spawn(serving);
        Ok(Self { url, shared })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Prefix of the keys behind the naive proxy.
    pub(super) fn naive_proxy(&self) -> String {
        format!("{}/naive-proxy/", self.url)
    }

    /// Holds the next write.
    pub(super) fn hold_next(&self) {
        self.shared.gate.send_replace(false);
        let mut contents = self.shared.contents();
        contents.hold_next = true;
        contents.held = None;
    }

    /// Arrival and document of the write that is held.
    pub(super) fn held(&self) -> Option<(u64, Value)> {
        self.shared.contents().held.clone()
    }

    /// Requests that arrived after the held write.
    pub(super) fn requests_since_held(&self) -> usize {
        self.shared.contents().requests_since_held
    }

    /// Applies the write that is held.
    pub(super) fn apply_held(&self) {
        self.shared.gate.send_replace(true);
    }
}

impl Shared {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::internal(format!("the datastore cannot start: {error}"))
}

/// Compares the token with the highest one seen, and then forwards: the design that this demo
/// refutes.
async fn naive_proxy(
    State(shared): State<Arc<Shared>>,
    method: Method,
    key: Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Bytes), StatusCode> {
    let header = headers.get(FENCING_TOKEN).and_then(|token| token.to_str().ok()?.parse().ok());
    let header: FencingToken = header.ok_or(StatusCode::PRECONDITION_REQUIRED)?;
    {
        let mut contents = shared.contents();
        if contents.naive_mark > Some(header.token) {
            return Err(StatusCode::PRECONDITION_FAILED);
        }
        contents.naive_mark = Some(header.token);
    }
    // Here is the gap: the check is over, and the effect is still to come.
    serve(State(shared), method, key, body).await
}

async fn serve(
    State(shared): State<Arc<Shared>>,
    method: Method,
    Path(key): Path<String>,
    body: Bytes,
) -> Result<(StatusCode, Bytes), StatusCode> {
    let held = {
        let mut contents = shared.contents();
        contents.requests_since_held += 1;
        if method == Method::GET {
            let object = contents.objects.get(&key).cloned();
            return object.map(|object| (StatusCode::OK, object)).ok_or(StatusCode::NOT_FOUND);
        }
        let held = std::mem::take(&mut contents.hold_next);
        if held {
            let document = serde_json::from_slice(&body).unwrap_or_default();
            contents.held = Some((clock::now().ms(), document));
            contents.requests_since_held = 0;
        }
        held
    };
    if held {
        let mut gate = shared.gate.subscribe();
        gate.wait_for(|open| *open).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    }
    shared.contents().objects.insert(key, body);
    Ok((StatusCode::NO_CONTENT, Bytes::new()))
}
