//! A proxy that understands HTTP: it records requests, and causes faults of single requests and
//! replies.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::file::{Effect, FaultStep};

type Body = BoxBody<Bytes, hyper::Error>;

/// A request that came to the proxy.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its method.
    pub method: String,
    /// Its path and query, as they were sent.
    pub path: String,
    /// Its headers, names in lower case.
    pub headers: Value,
    /// Its body, if that is JSON.
    pub body: Value,
    /// The moment of its arrival.
    pub at: Instant,
}

#[derive(Debug)]
struct ProxyState {
    upstream: String,
    faults: Mutex<Vec<FaultStep>>,
    seen: Mutex<Vec<Seen>>,
    /// Number of heals; a change ends what is held.
    heals: watch::Sender<u64>,
    /// Closes the connections of its time.
    cut: watch::Sender<CancellationToken>,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// A proxy before one server, for as long as it lives.
#[derive(Debug)]
pub struct HttpProxy {
    address: SocketAddr,
    state: Arc<ProxyState>,
    _accepting: AbortOnDropHandle<()>,
}

impl HttpProxy {
    /// Stands before `upstream` (`127.0.0.1:PORT`).
    ///
    /// # Panics
    /// If no port is free.
    pub async fn before(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        // A connection a request: a pooled one to a server that was restarted would be a fault
        // that no scenario mentions.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        let state = Arc::new(ProxyState {
            upstream: upstream.to_owned(),
            faults: Mutex::default(),
            seen: Mutex::default(),
            heals: watch::Sender::new(0),
            cut: watch::Sender::new(CancellationToken::new()),
            client,
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&state)));
        Self { address, state, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Begins a fault; earlier ones come first.
    pub fn begin(&self, fault: FaultStep) {
        locked(&self.state.faults).push(fault);
    }

    /// Ends all faults, and lets through what is held.
    pub fn heal(&self) {
        locked(&self.state.faults).clear();
        self.state.heals.send_modify(|count| *count += 1);
    }

    /// Closes the connections that exist.
    pub fn cut(&self) {
        self.state.cut.send_replace(CancellationToken::new()).cancel();
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        locked(&self.state.seen).clone()
    }
}

impl Drop for HttpProxy {
    fn drop(&mut self) {
        self.cut();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, state: Arc<ProxyState>) {
    while let Ok((stream, _)) = listener.accept().await {
        let cut = state.cut.borrow().clone();
        let state = Arc::clone(&state);
        tokio::spawn(async move { cut.run_until_cancelled(serve(stream, state)).await });
    }
}

async fn serve(stream: TcpStream, state: Arc<ProxyState>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let state = Arc::clone(&state);
        async move { state.handle(request).await }
    });
    // An error of the service closes the connection without a reply.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

impl ProxyState {
    async fn handle(&self, request: Request<Incoming>) -> Result<Response<Body>, String> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let seen = Seen {
            method: head.method.to_string(),
            path: path.clone(),
            headers: shown(&head.headers),
            body: serde_json::from_slice(&body).unwrap_or_default(),
            at: Instant::now(),
        };
        let mut heals = self.heals.subscribe();
        let fault = self.fault_of(&seen);
        locked(&self.seen).push(seen);
        let forward = || self.forward(&head, &path, body.clone());
        let Some(fault) = fault else { return forward().await };
        match fault.effect {
            Effect::Refuse => Err("refused".to_owned()),
            Effect::DropReply => {
                let reply = forward().await?;
                let _ = reply.into_body().collect().await;
                Err("the reply is dropped".to_owned())
            }
            Effect::HoldReply => {
                let reply = forward().await;
                let _ = heals.changed().await;
                reply
            }
            Effect::Hold => {
                let _ = heals.changed().await;
                forward().await
            }
            Effect::Delay => {
                tokio::time::sleep(Duration::from_millis(fault.ms)).await;
                forward().await
            }
            Effect::Status => {
                if fault.applied {
                    let _ = forward().await?.into_body().collect().await;
                }
                own_reply(&fault)
            }
        }
    }

    /// The first fault that concerns a request; one of its times is used up.
    fn fault_of(&self, seen: &Seen) -> Option<FaultStep> {
        let mut faults = locked(&self.faults);
        let fault = faults.iter_mut().find(|fault| {
            fault.times != Some(0)
                && seen.path.contains(&fault.path)
                && fault.method.as_ref().is_none_or(|method| *method == seen.method)
        })?;
        fault.times = fault.times.map(|times| times - 1);
        Some(fault.clone())
    }

    async fn forward(
        &self,
        head: &http::request::Parts,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Body>, String> {
        let mut request = Request::builder()
            .method(head.method.clone())
            .uri(format!("http://{}{path}", self.upstream))
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        *request.headers_mut() = head.headers.clone();
        for name in [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING] {
            request.headers_mut().remove(name);
        }
        let reply = self.client.request(request).await.map_err(|error| error.to_string())?;
        let mut reply = reply.map(BodyExt::boxed);
        reply.headers_mut().remove(header::CONNECTION);
        Ok(reply)
    }
}

fn shown(headers: &HeaderMap) -> Value {
    let text = |(name, value): (&header::HeaderName, &header::HeaderValue)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.as_str().to_owned(), Value::String(value))
    };
    Value::Object(headers.iter().map(text).collect())
}

fn own_reply(fault: &FaultStep) -> Result<Response<Body>, String> {
    let (kind, text) = match &fault.body {
        Value::String(text) => ("text/html", text.clone()),
        Value::Null => ("text/plain", String::new()),
        problem => ("application/problem+json", problem.to_string()),
    };
    let status = StatusCode::from_u16(fault.status).map_err(|error| error.to_string())?;
    let mut reply = Response::builder().status(status);
    if !fault.headers.contains_key("content-type") {
        reply = reply.header(header::CONTENT_TYPE, kind);
    }
    for (name, value) in &fault.headers {
        reply = reply.header(name, value);
    }
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed();
    reply.body(body).map_err(|error| error.to_string())
}
