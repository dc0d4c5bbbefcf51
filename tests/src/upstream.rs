//! A datastore that knows nothing of tokens: a slow HTTP server that notes the order in which it
//! applied what it was sent.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::wait::soon;

/// A write that took effect, in the order of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The path and query that the upstream was asked for.
    pub path: String,
    /// `PUT` or `DELETE`.
    pub method: Method,
    /// Body that was written.
    pub value: String,
    /// All headers as they arrived.
    pub headers: HeaderMap,
}

#[derive(Debug, Default)]
struct UpstreamState {
    objects: Mutex<BTreeMap<String, Bytes>>,
    log: Mutex<Vec<Applied>>,
    gates: Mutex<HashMap<String, Gate>>,
}

#[derive(Clone, Debug)]
struct Gate {
    arrived: Arc<watch::Sender<bool>>,
    open: watch::Receiver<bool>,
}

/// A write that the upstream holds before it applies it.
#[derive(Debug)]
pub struct Hold {
    arrived: watch::Receiver<bool>,
    open: watch::Sender<bool>,
}

impl Hold {
    /// Waits until the write is at the upstream.
    ///
    /// # Panics
    /// If it never comes.
    pub async fn arrived(&mut self) {
        let seen = soon("the write to reach the upstream", self.arrived.wait_for(|seen| *seen));
        assert!(*seen.await.expect("the upstream lives"));
    }

    /// Lets it be applied.
    pub fn release(&self) {
        self.open.send_replace(true);
    }
}

/// The upstream, for as long as it lives.
#[derive(Debug)]
pub struct Upstream {
    base: String,
    state: Arc<UpstreamState>,
    _accepting: AbortOnDropHandle<()>,
}

impl Upstream {
    /// Starts one.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let state = Arc::new(UpstreamState::default());
        let accepting = AbortOnDropHandle::new(tokio::spawn(accept(listener, state.clone())));
        Self { base, state, _accepting: accepting }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Holds the next write of exactly this body until it is let go.
    ///
    /// # Panics
    /// Never, unless another test thread died inside.
    pub fn hold(&self, body: &str) -> Hold {
        let (arrived, arrived_seen) = watch::channel(false);
        let (open, open_seen) = watch::channel(false);
        let gate = Gate { arrived: Arc::new(arrived), open: open_seen };
        self.state.gates.lock().unwrap().insert(body.to_owned(), gate);
        Hold { arrived: arrived_seen, open }
    }

    /// Every write in the order in which it took effect.
    ///
    /// # Panics
    /// Never, unless another test thread died inside.
    pub fn log(&self) -> Vec<Applied> {
        self.state.log.lock().unwrap().clone()
    }

    /// The values of [`Upstream::log`].
    pub fn values(&self) -> Vec<String> {
        self.log().into_iter().map(|applied| applied.value).collect()
    }
}

async fn accept(listener: TcpListener, state: Arc<UpstreamState>) {
    while let Ok((stream, _)) = listener.accept().await {
        let state = state.clone();
        let service = service_fn(move |request| answer(request, state.clone()));
        tokio::spawn(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}

type Answer = Result<Response<Full<Bytes>>, Infallible>;

async fn answer(request: Request<Incoming>, state: Arc<UpstreamState>) -> Answer {
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return Ok(empty(400));
    };
    let body = body.to_bytes();
    match parts.method {
        Method::GET | Method::HEAD => {
            let found = state.objects.lock().unwrap().get(&path).cloned();
            Ok(found.map_or_else(|| empty(404), |value| Response::new(Full::new(value))))
        }
        // A task of its own: a real datastore continues with a write whose sender has gone.
        method => {
            let write = Applied {
                path,
                method,
                value: String::from_utf8_lossy(&body).into_owned(),
                headers: parts.headers,
            };
            let applied = tokio::spawn(apply(write, body, state)).await;
            Ok(empty(if applied.is_ok() { 204 } else { 500 }))
        }
    }
}

async fn apply(write: Applied, body: Bytes, state: Arc<UpstreamState>) {
    let gate = state.gates.lock().unwrap().remove(&write.value);
    if let Some(mut gate) = gate {
        gate.arrived.send_replace(true);
        // A dropped `Hold` lets the write through, so that no test can hang on it.
        let _ = gate.open.wait_for(|open| *open).await;
    }
    let mut log = state.log.lock().unwrap();
    let mut objects = state.objects.lock().unwrap();
    match write.method {
        Method::DELETE => drop(objects.remove(&write.path)),
        _ => drop(objects.insert(write.path.clone(), body)),
    }
    log.push(write);
}

fn empty(status: u16) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() = http::StatusCode::from_u16(status).expect("a status");
    response
}
