//! The proxy before a scripted upstream.

use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use fence_protocol::{FENCING_GUARANTEE, FENCING_MARK, FENCING_TOKEN, Problem};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use service_kit::Kit;
use service_kit::http::ApiRouter;
use service_kit::tls::TlsOptions;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::app;
use crate::doors::http_proxy::{LaneState, Upstream};
use crate::https::{Https, UpstreamHttp};
use crate::settings::{Backend, Settings};

mod lane_model;
mod methods;
mod operator;
mod origin_model;
mod replies;
mod reuse;
mod streams;

/// A request that reached the upstream. Dropping it breaks the connection.
struct Seen {
    text: String,
    /// Number of its connection.
    connection: usize,
    reply: oneshot::Sender<String>,
}

impl Seen {
    fn reply(self, status: &str) {
        let text = format!(
            "HTTP/1.1 {status}\r\ncontent-length: 2\r\nfencing-mark: 7\r\nkeep-alive: 5\r\n\r\nok"
        );
        self.raw(text);
    }

    /// Sends these bytes.
    fn raw(self, text: String) {
        self.reply.send(text).unwrap();
    }
}

struct World {
    state: TempDir,
    addr: std::net::SocketAddr,
    seen: mpsc::Receiver<Seen>,
    proxy: ApiRouter,
    api: ApiRouter,
    kit: Kit,
}

/// Returns the next request at the upstream; without one, the test fails rather than hangs.
async fn arrived(seen: &mut mpsc::Receiver<Seen>) -> Seen {
    let patience = Duration::from_secs(30);
    tokio::time::timeout(patience, seen.recv()).await.expect("nothing was forwarded").unwrap()
}

/// Awaits a condition, and fails after 30 s.
async fn until(condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.expect("it never came true");
}

/// In a reply: the upstream closes the connection behind it, without announcing it.
const CLOSE_AFTER: &str = "x-close-after: 1";

async fn talk(mut stream: TcpStream, connection: usize, seen: mpsc::Sender<Seen>) -> Option<()> {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if body.len() < length.map_or(0, |length| length.parse().unwrap()) {
            continue;
        }
        let (reply, answer) = oneshot::channel();
        let text = std::mem::take(&mut text);
        seen.send(Seen { text, connection, reply }).await.ok()?;
        let answer = answer.await.ok()?;
        stream.write_all(answer.as_bytes()).await.ok()?;
        if answer.contains(CLOSE_AFTER) {
            return None;
        }
    }
}

async fn upstream(kit: &Kit) -> (std::net::SocketAddr, mpsc::Receiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (sender, seen) = mpsc::channel(16);
    let tasks = kit.tasks.clone();
    kit.tasks.spawn(async move {
        for connection in 0.. {
            let Ok((stream, _)) = listener.accept().await else { break };
            tasks.spawn(talk(stream, connection, sender.clone()));
        }
    });
    (addr, seen)
}

/// Requests of all clients together.
const PLACES: usize = 16;

async fn app(addr: std::net::SocketAddr, state: &Path, lifetime_ms: u64, kit: &Kit) -> app::App {
    // Longer than any test: it never ends by itself.
    app_with(addr, state, lifetime_ms, Duration::from_secs(3600), kit).await
}

async fn app_with(
    addr: std::net::SocketAddr,
    state: &Path,
    lifetime_ms: u64,
    idle: Duration,
    kit: &Kit,
) -> app::App {
    let upstream = Upstream {
        listen: ([127, 0, 0, 1], 0).into(),
        url: format!("http://{addr}").parse().unwrap(),
        https: Https::new(TlsOptions::default(), false).unwrap(),
        max_request_lifetime: Duration::from_millis(lifetime_ms),
        state: LaneState::Folder(state.to_owned()),
        timeout: Duration::from_secs(20),
        idle,
        http: UpstreamHttp::H1,
        unknown_statuses: vec![StatusCode::SERVICE_UNAVAILABLE],
        drain_wait: Duration::from_secs(5),
        etag_probe: None,
    };
    let mut settings = Settings::new(Backend::Proxy(Box::new(upstream)), None);
    settings.listener.max_connections = PLACES;
    let rules =
        ["public/**=@open", "POST search/**=a,reads", "GET next/**=a,writes", "GET pages/**=@open"];
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    settings.rules = crate::rules::Rules::new(rules).unwrap();
    app::build(settings, kit).await.unwrap()
}

impl World {
    async fn new(lifetime_ms: u64) -> Self {
        Self::with_idle(lifetime_ms, Duration::from_secs(3600)).await
    }

    async fn with_idle(lifetime_ms: u64, idle: Duration) -> Self {
        let kit = Kit::new("test");
        let state = tempfile::tempdir().unwrap();
        let (addr, seen) = upstream(&kit).await;
        let app = app_with(addr, state.path(), lifetime_ms, idle, &kit).await;
        let proxy = app.proxy.unwrap().1;
        Self { state, addr, seen, proxy, api: app.router, kit }
    }

    fn send(&self, method: Method, path: &str, token: u64) -> JoinHandle<Answer> {
        self.kit.tasks.spawn(request_reply(self.proxy.clone(), request(method, path, token)))
    }

    async fn seen(&mut self) -> Seen {
        arrived(&mut self.seen).await
    }

    /// Waits until the lane's durable mark is `token`.
    async fn mark_is(&self, token: u64) {
        until(async || {
            let answer =
                request_reply(self.api.clone(), request(Method::GET, "/v1/fences/a", 0)).await;
            answer.text.contains(&format!("\"mark\":{token},"))
        })
        .await;
    }
}

#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: http::HeaderMap,
    text: String,
}

impl Answer {
    fn code(&self) -> String {
        serde_json::from_str::<Problem>(&self.text).unwrap().code.to_string()
    }
}

fn request(method: Method, path: &str, token: u64) -> Request<Body> {
    let body = if method.is_safe() { Body::empty() } else { Body::from("hi") };
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
    if token > 0 {
        let lease = format!("00000000-0000-4000-8000-{token:012}");
        request = request.header(FENCING_TOKEN, format!("{token};lock=\"a\";lease=\"{lease}\""));
    }
    request.body(body).unwrap()
}

async fn request_reply(router: ApiRouter, request: Request<Body>) -> Answer {
    let response = TowerToHyperService::new(router).call(request).await.unwrap();
    let (head, body) = response.into_parts();
    // The server polls no body that has ended before it began.
    let body = match http_body::Body::is_end_stream(&body) {
        true => bytes::Bytes::new(),
        false => body.collect().await.unwrap().to_bytes(),
    };
    let text = String::from_utf8_lossy(&body).into_owned();
    Answer { status: head.status, headers: head.headers, text }
}

#[tokio::test]
async fn a_reply_is_passed_on_with_mark_and_guarantee() {
    let mut world = World::new(60_000).await;
    let answer = world.send(Method::PUT, "/a?x=1", 33);
    let seen = world.seen().await;
    assert!(seen.text.starts_with("PUT /a?x=1 HTTP/1.1\r\n"), "{}", seen.text);
    assert!(seen.text.contains(&format!("host: {}\r\n", world.addr)), "{}", seen.text);
    assert!(seen.text.ends_with("\r\n\r\nhi"), "{}", seen.text);
    seen.reply("200 OK");
    let answer = answer.await.unwrap();
    assert_eq!((answer.status, answer.text.as_str()), (StatusCode::OK, "ok"));
    assert_eq!(answer.headers[FENCING_MARK], "33");
    assert_eq!(answer.headers[FENCING_GUARANTEE], "bounded");
    assert!(!answer.headers.contains_key("keep-alive"));
}

#[tokio::test]
async fn a_higher_token_waits_for_the_lower_write_and_refuses_the_next_one() {
    let mut world = World::new(60_000).await;
    let lower = world.send(Method::PUT, "/a", 33);
    let on_the_wire = world.seen().await;
    let higher = world.send(Method::GET, "/a", 34);
    world.mark_is(34).await;
    let late = world.send(Method::PUT, "/a", 33).await.unwrap();
    assert_eq!(
        (late.status, late.code().as_str()),
        (StatusCode::PRECONDITION_FAILED, "stale-token")
    );
    assert!(world.seen.try_recv().is_err(), "34 was forwarded while 33 was on the wire");
    on_the_wire.reply("204 No Content");
    assert_eq!(lower.await.unwrap().status, StatusCode::NO_CONTENT);
    let forwarded = world.seen().await;
    assert!(forwarded.text.starts_with("GET /a"), "{}", forwarded.text);
    forwarded.reply("200 OK");
    assert_eq!(higher.await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn a_seal_is_answered_after_the_drain() {
    let mut world = World::new(60_000).await;
    let lower = world.send(Method::PUT, "/a", 33);
    let on_the_wire = world.seen().await;
    let seal = request(Method::POST, "/v1/fences/a/seal", 34);
    let seal = world.kit.tasks.spawn(request_reply(world.api.clone(), seal));
    world.mark_is(34).await;
    assert!(!seal.is_finished(), "sealed while 33 was on the wire");
    on_the_wire.reply("200 OK");
    assert_eq!(lower.await.unwrap().status, StatusCode::OK);
    assert_eq!(seal.await.unwrap().text, "{\"lock\":\"a\",\"mark\":34}");
}

#[tokio::test]
async fn a_broken_write_is_unknown_and_quarantines_the_lane() {
    let mut world = World::new(60_000).await;
    let lower = world.send(Method::PUT, "/a", 33);
    drop(world.seen().await);
    let lower = lower.await.unwrap();
    assert_eq!(
        (lower.status, lower.code().as_str()),
        (StatusCode::GATEWAY_TIMEOUT, "outcome-unknown")
    );
    // The lifetime is longer than any wait, so the reply is immediate.
    for (method, token) in [(Method::PUT, 33), (Method::GET, 34), (Method::PUT, 34)] {
        let answer = world.send(method, "/a", token).await.unwrap();
        assert_eq!(answer.code(), "quarantined", "{token}");
        assert!(answer.headers.contains_key("retry-after"));
    }
    assert!(world.seen.try_recv().is_err());
}

#[tokio::test]
async fn a_quarantine_ends_when_the_lifetime_has_passed() {
    let mut world = World::new(300).await;
    let begun_ms = world.kit.clock.monotonic_ms();
    let lower = world.send(Method::PUT, "/a", 33);
    drop(world.seen().await);
    assert_eq!(lower.await.unwrap().status, StatusCode::GATEWAY_TIMEOUT);
    let higher = world.send(Method::PUT, "/a", 34);
    world.seen().await.reply("200 OK");
    assert!(world.kit.clock.monotonic_ms() - begun_ms >= 300, "forwarded within the lifetime");
    assert_eq!(higher.await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn accepted_and_gateway_errors_quarantine_the_lane() {
    for (status, expected) in [
        ("202 Accepted", StatusCode::ACCEPTED),
        ("502 Bad Gateway", StatusCode::GATEWAY_TIMEOUT),
        ("504 Gateway Timeout", StatusCode::GATEWAY_TIMEOUT),
    ] {
        let mut world = World::new(60_000).await;
        let lower = world.send(Method::PUT, "/a", 33);
        world.seen().await.reply(status);
        assert_eq!(lower.await.unwrap().status, expected, "{status}");
        let higher = world.send(Method::PUT, "/a", 34).await.unwrap();
        assert_eq!(higher.code(), "quarantined", "{status}");
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_cancels_nothing() {
    let mut world = World::new(60_000).await;
    let lower = world.send(Method::PUT, "/a", 33);
    let on_the_wire = world.seen().await;
    lower.abort();
    assert!(lower.await.unwrap_err().is_cancelled());
    let higher = world.send(Method::PUT, "/a", 34);
    world.mark_is(34).await;
    assert!(world.seen.try_recv().is_err(), "34 was forwarded while 33 was on the wire");
    on_the_wire.reply("200 OK");
    world.seen().await.reply("200 OK");
    assert_eq!(higher.await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn a_crash_leaves_an_unknown_outcome_in_flight() {
    let mut world = World::new(60_000).await;
    let _lower = world.send(Method::PUT, "/a", 33);
    let _on_the_wire = world.seen().await;
    // A new process would find the disk as it is now.
    let found = tempfile::tempdir().unwrap();
    std::fs::copy(world.state.path().join("lanes.redb"), found.path().join("lanes.redb")).unwrap();
    let kit = Kit::new("test");
    let reborn = app(world.addr, found.path(), 60_000, &kit).await.proxy.unwrap().1;
    let answer = request_reply(reborn.clone(), request(Method::PUT, "/a", 34)).await;
    assert_eq!(answer.code(), "quarantined");
    let answer = request_reply(reborn, request(Method::PUT, "/a", 32)).await;
    assert_eq!(answer.code(), "stale-token", "the mark survived");
}

#[tokio::test]
async fn an_orderly_end_leaves_no_unknown_outcome() {
    let mut world = World::new(60_000).await;
    let write = world.send(Method::PUT, "/a", 33);
    world.seen().await.reply("200 OK");
    assert_eq!(write.await.unwrap().status, StatusCode::OK);
    let World { state, addr, mut seen, proxy, api, kit } = world;
    kit.tasks.begin_shutdown();
    drop((proxy, api));
    let kit = Kit::new("test");
    // The first process holds the file until its background tasks end.
    until(async || redb::Database::open(state.path().join("lanes.redb")).is_ok()).await;
    let reborn = app(addr, state.path(), 60_000, &kit).await.proxy.unwrap().1;
    let higher = kit.tasks.spawn(request_reply(reborn, request(Method::PUT, "/a", 34)));
    arrived(&mut seen).await.reply("200 OK");
    assert_eq!(higher.await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn a_refused_connection_is_a_known_outcome() {
    let kit = Kit::new("test");
    let state = tempfile::tempdir().unwrap();
    // No process listens there.
    let addr = ([127, 0, 0, 1], 1).into();
    let proxy = app(addr, state.path(), 60_000, &kit).await.proxy.unwrap().1;
    for token in [33, 34] {
        let answer = request_reply(proxy.clone(), request(Method::PUT, "/a", token)).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (StatusCode::BAD_GATEWAY, "upstream-unavailable")
        );
    }
}

#[tokio::test]
async fn what_needs_no_token_passes_and_what_does_not_belong_is_refused() {
    let mut world = World::new(60_000).await;
    let open = world.send(Method::PUT, "/public/x", 0);
    world.seen().await.reply("200 OK");
    assert_eq!(open.await.unwrap().status, StatusCode::OK);
    for (path, token, status) in [
        ("/a", 0, 428),
        ("/b", 33, 403),
        ("/a/../b", 33, 400),
        ("//a", 33, 400),
        ("/a/%2e%2e/b", 33, 400),
        ("/", 33, 400),
    ] {
        let answer = world.send(Method::PUT, path, token).await.unwrap();
        assert_eq!(answer.status.as_u16(), status, "{path}");
    }
    let mut tricky = request(Method::GET, "/a", 33);
    tricky.headers_mut().insert("connection", "fencing-token".parse().unwrap());
    assert_eq!(request_reply(world.proxy.clone(), tricky).await.status, StatusCode::BAD_REQUEST);
    assert!(world.seen.try_recv().is_err());
}
