//! A datastore that knows nothing of tokens: a small HTTP store that can be told to hold the next
//! write for a while before it applies it, as a slow disk or a long queue does.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use fence_client::clock;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use service_kit::listener::{self, ListenOptions};
use service_kit::tasks::Tasks;
use tokio::sync::{mpsc, watch};

use fence_terminal::exit::Failure;
use fence_terminal::output::emit;

/// What the director tells it; each order is answered with what has happened so far.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Order {
    /// Hold the next write.
    Hold,
    /// Apply what is held.
    LetGo,
    /// Only say what has happened.
    Tell,
}

/// Something that happened here, on the machine's clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) at_ms: u64,
    pub(super) what: What,
    pub(super) key: String,
    pub(super) document: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum What {
    /// A read was asked for and answered.
    Read,
    /// A write came in.
    Arrived,
    /// A write took effect.
    Applied,
}

/// At most this many entries are kept, and as many objects.
const ENTRIES_MAX: usize = 1000;

#[derive(Debug)]
struct Store {
    inner: Mutex<Inner>,
    gate: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Inner {
    objects: HashMap<String, Bytes>,
    log: Vec<Entry>,
    hold_next: bool,
}

impl Store {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn note(&mut self, what: What, key: &str, body: &[u8]) {
        if self.log.len() < ENTRIES_MAX {
            let document = serde_json::from_slice(body).unwrap_or_default();
            let (at_ms, key) = (clock::now().ms(), key.to_owned());
            self.log.push(Entry { at_ms, what, key, document });
        }
    }
}

/// Serves until the director is gone.
pub(crate) async fn serve(mut orders: mpsc::Receiver<String>) -> Result<(), Failure> {
    let store = Arc::new(Store { inner: Mutex::default(), gate: watch::Sender::new(true) });
    let router =
        Router::new().route("/{*key}", get(read).put(write)).with_state(Arc::clone(&store));
    let tasks = Tasks::new();
    let serving = open("demo-upstream", router, &tasks).await?;
    let obeying = async {
        while let Some(line) = orders.recv().await {
            let order = serde_json::from_str(&line)
                .map_err(|error| Failure::internal(format!("{line:?} is no order: {error}")))?;
            obey(&store, order)?;
        }
        Ok(())
    };
    tokio::select! {
        () = serving => Ok(()),
        obeyed = obeying => obeyed,
    }
}

/// Takes a port, says which, and serves.
pub(super) async fn open(
    name: &str,
    router: Router,
    tasks: &Tasks,
) -> Result<impl Future<Output = ()> + use<>, Failure> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let bound = listener::bind(any).await.map_err(|error| Failure::internal(error.to_string()))?;
    let addr = bound.local_addr().map_err(|error| Failure::internal(error.to_string()))?;
    emit(format!("{name} listening on http://{addr}\n").as_bytes())?;
    let serving = listener::serve(bound, router, ListenOptions::default(), tasks.clone());
    Ok(async move {
        serving.await;
    })
}

fn obey(store: &Store, order: Order) -> Result<(), Failure> {
    match order {
        Order::Hold => {
            store.gate.send_replace(false);
            store.inner().hold_next = true;
        }
        Order::LetGo => {
            store.gate.send_replace(true);
        }
        Order::Tell => {}
    }
    let mut line = serde_json::to_vec(&store.inner().log)
        .map_err(|error| Failure::internal(format!("no JSON: {error}")))?;
    line.push(b'\n');
    emit(&line)
}

async fn read(
    State(store): State<Arc<Store>>,
    Path(key): Path<String>,
) -> Result<Bytes, StatusCode> {
    let mut inner = store.inner();
    let body = inner.objects.get(&key).cloned();
    inner.note(What::Read, &key, body.as_deref().unwrap_or_default());
    body.ok_or(StatusCode::NOT_FOUND)
}

async fn write(
    State(store): State<Arc<Store>>,
    Path(key): Path<String>,
    body: Bytes,
) -> Result<StatusCode, StatusCode> {
    let held = {
        let mut inner = store.inner();
        inner.note(What::Arrived, &key, &body);
        std::mem::take(&mut inner.hold_next)
    };
    if held {
        let mut gate = store.gate.subscribe();
        gate.wait_for(|open| *open).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    }
    let mut inner = store.inner();
    if inner.objects.len() >= ENTRIES_MAX {
        return Err(StatusCode::INSUFFICIENT_STORAGE);
    }
    inner.note(What::Applied, &key, &body);
    inner.objects.insert(key, body);
    Ok(StatusCode::NO_CONTENT)
}
