//! A server on a port of its own, and a client that shows every byte.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use fence_protocol::{LockName, Namespace};
use futures_util::StreamExt as _;
use serde::Deserialize;
use service_kit::http::{Fold, HostNames, HttpOptions, RequestId};
use service_kit::listener::{DrainReport, Exposure, HttpThreads, ListenOptions};
use service_kit::problem::{ApiBytes, ApiJson, ApiPath, ApiQuery, Reject, body_error};
use service_kit::{Kit, http, listener, operational_routes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A test that waits longer than this hangs.
const HANG: Duration = Duration::from_secs(60);

/// HTTP threads of a server.
pub(crate) const THREADS: usize = 2;

/// Longer than any test: a limit that must not be the one that strikes.
pub(crate) const NEVER: Duration = Duration::from_secs(3600);

/// Short enough to wait for, and longer than a busy machine that pauses lets a head wait.
pub(crate) const SOON: Duration = Duration::from_secs(4);

pub(crate) const OPTIONS: HttpOptions = HttpOptions {
    max_body_bytes: 200_000,
    max_json_bytes: 1000,
    folds: &[Fold { prefix: "/locks/", verbs: &["acquire"] }],
    pages: &[],
};

/// Limits none of which strikes by itself.
pub(crate) fn patient() -> ListenOptions {
    ListenOptions {
        header_timeout: NEVER,
        body_timeout: NEVER,
        idle_timeout: NEVER,
        write_timeout: NEVER,
        drain_deadline: NEVER,
        ..ListenOptions::default()
    }
}

pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    pub(crate) kit: Kit,
    /// Lets one request at `/wait` go on.
    pub(crate) gate: Arc<Notify>,
    /// Notified whenever a request at `/wait` has arrived.
    pub(crate) arrived: Arc<Notify>,
    pub(crate) serving: JoinHandle<DrainReport>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    #[serde(default)]
    count: u32,
    #[serde(default)]
    note: serde_json::Value,
}

#[derive(Debug, Deserialize)]
struct Page {
    limit: u32,
}

fn routes(gate: Arc<Notify>, arrived: Arc<Notify>) -> Router {
    let wait = async move || {
        arrived.notify_one();
        gate.notified().await;
        "done"
    };
    let order = async |ApiJson(order): ApiJson<Order>| format!("{} {}", order.count, order.note);
    let locked = async |ApiPath(name): ApiPath<String>| {
        LockName::new(&name).map(|name| format!("lock {name}")).map_err(Reject::from)
    };
    Router::new()
        .route("/hello", get(async || "hello"))
        .route("/id", get(async |id: RequestId| id.as_str().to_owned()))
        .route("/wait", get(wait))
        .route("/panic", get(async || -> String { panic!("on purpose") }))
        .route("/order", post(order))
        .route("/bytes", post(async |ApiBytes(bytes): ApiBytes| bytes.len().to_string()))
        .route("/stream", post(count_streamed))
        .route("/page", get(async |ApiQuery(page): ApiQuery<Page>| page.limit.to_string()))
        .route("/locks/{lock}/acquire", post(locked))
        .route("/locks/{lock}", get(locked))
}

/// Reads the body as a stream, as a proxy does.
async fn count_streamed(body: Body) -> Result<String, Reject> {
    let mut stream = body.into_data_stream();
    let mut bytes = 0;
    while let Some(piece) = stream.next().await {
        bytes += piece.map_err(|error| body_error(&error))?.len();
    }
    Ok(bytes.to_string())
}

/// Starts a server; `more` are routes beside the usual ones.
pub(crate) async fn start_with(options: ListenOptions, more: Router) -> Server {
    start_kit(options, more, Kit::new("test-service")).await
}

/// Starts a server that has this kit.
pub(crate) async fn start_kit(options: ListenOptions, more: Router, kit: Kit) -> Server {
    let gate = Arc::new(Notify::new());
    let arrived = Arc::new(Notify::new());
    let router = routes(gate.clone(), arrived.clone()).merge(more).merge(operational_routes(
        &kit,
        &Namespace::default(),
        None,
    ));
    let router = http::finish(router, &kit, OPTIONS, &HostNames::default());
    let listener =
        listener::bind("127.0.0.1:0".parse().unwrap(), &Exposure::default()).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let count = NonZeroUsize::new(THREADS).unwrap();
    let threads = HttpThreads::start(count, &kit.tasks).await.unwrap();
    let tasks = kit.tasks.clone();
    let serving =
        async move { listener::serve_on(&threads, listener, router, options, tasks).await };
    // Not through the kit's tasks, which would await it while it awaits them.
    let serving = tokio::runtime::Handle::current().spawn(serving);
    Server { addr, kit, gate, arrived, serving }
}

pub(crate) async fn start(options: ListenOptions) -> Server {
    start_with(options, Router::new()).await
}

impl Server {
    pub(crate) async fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.addr).await.unwrap())
    }

    /// One request on a connection of its own.
    pub(crate) async fn request(&self, request: &str) -> Reply {
        self.connect().await.request(request).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.request(&get_request(path)).await
    }

    pub(crate) async fn post(&self, path: &str, headers: &str, body: &str) -> Reply {
        self.request(&post_request(path, headers, body)).await
    }
}

pub(crate) fn get_request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

pub(crate) fn post_request(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, unread: Vec::new() }
    }

    pub(crate) async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    pub(crate) async fn request(&mut self, request: &str) -> Reply {
        self.send(request).await;
        self.reply().await
    }

    /// The next reply on this connection.
    pub(crate) async fn reply(&mut self) -> Reply {
        loop {
            if let Some((reply, bytes)) = Reply::parse(&self.unread) {
                self.unread.drain(..bytes);
                return reply;
            }
            let seen = String::from_utf8_lossy(&self.unread).into_owned();
            assert!(self.read_more().await > 0, "closed before a whole reply came: {seen:?}");
        }
    }

    /// Waits until the server closes; what came before that is returned.
    pub(crate) async fn closed(&mut self) -> String {
        while self.read_more().await > 0 {}
        String::from_utf8(std::mem::take(&mut self.unread)).unwrap()
    }

    async fn read_more(&mut self) -> usize {
        let mut buffer = [0; 4096];
        let read = tokio::time::timeout(HANG, self.stream.read(&mut buffer));
        let bytes = read.await.expect("the server neither answered nor closed").unwrap_or(0);
        self.unread.extend_from_slice(&buffer[..bytes]);
        bytes
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Reply {
    /// A whole reply at the start of `bytes`, and its length.
    fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (head, rest) = text.split_once("\r\n\r\n")?;
        let status = head.get(9..12)?.parse().unwrap();
        let mut reply = Self { status, head: head.to_owned(), body: String::new() };
        let length = reply.header("content-length").map_or(0, |text| text.parse().unwrap());
        reply.body = rest.get(..length)?.to_owned();
        Some((reply, head.len() + 4 + length))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        fields.filter(|(field, _)| *field == name).map(|(_, value)| value).next()
    }

    /// The problem in the body, after checks that hold for every problem.
    pub(crate) fn problem(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!(problem["status"], self.status, "{problem}");
        assert_eq!(problem["request_id"].as_str(), self.header("x-request-id"), "{problem}");
        assert!(!problem["hint"].as_str().unwrap().is_empty(), "{problem}");
        problem
    }

    /// The problem's detail, after checking status and code.
    pub(crate) fn detail(&self, status: u16, code: &str) -> String {
        let problem = self.problem();
        assert_eq!((self.status, problem["code"].as_str().unwrap()), (status, code), "{problem}");
        problem["detail"].as_str().unwrap().to_owned()
    }
}

/// Fails instead of hanging.
pub(crate) async fn in_time<F: Future>(what: &str, future: F) -> F::Output {
    let result = tokio::time::timeout(HANG, future).await;
    result.unwrap_or_else(|_| panic!("{what} did not happen"))
}
