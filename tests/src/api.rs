//! The HTTP contract of both services as plain requests: nothing of the SDK is used here, so that
//! the tests see what any client would.

mod transport;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use fence_protocol::wire::fence::{FenceReply, SealReply};
use fence_protocol::wire::lock::{LeaseReply, LockReply};
use fence_protocol::{Code, LeaseId, Problem};
use http::{HeaderMap, Method};
use http_body_util::BodyExt as _;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use service_kit::http::ApiRouter;

use self::transport::Transport;
use crate::openapi;

pub(crate) use self::transport::ReplyBody;

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The headers, as received; a name may occur twice.
    pub headers: HeaderMap,
    /// The body, whole; empty for HEAD.
    pub body: Bytes,
}

impl Reply {
    /// The body as a value of `T`.
    ///
    /// # Panics
    /// If the body is something else.
    pub fn read<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        self.read()
    }

    /// A header as text; empty where it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// Itself, when the status is `status`.
    ///
    /// # Panics
    /// When it is another.
    pub fn expect(self, status: u16) -> Self {
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{text}");
        self
    }

    /// The live lease of a 200 reply to acquire or renew.
    pub fn lease(self) -> LeaseReply {
        self.expect(200).read()
    }

    /// `true` if the store was too slow for the request, or for one before it. A store in which
    /// grants are paused, or that has no tokens left, is not.
    pub(crate) fn is_of_a_slow_store(&self) -> bool {
        if self.status != 503 {
            return self.status == 504;
        }
        let problem: Problem = self.read();
        let is_paused = problem.extension::<u64>("paused_ms").is_some();
        problem.code == Code::StoreUnavailable
            && !is_paused
            && !self.header("retry-after").is_empty()
    }

    /// The problem body of an error, after checking everything that every problem must have.
    ///
    /// # Panics
    /// If the reply is no well-formed problem of `code`.
    pub fn problem(&self, code: Code) -> Problem {
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, code.status(), "{text}");
        assert_eq!(self.header("content-type"), "application/problem+json", "{text}");
        assert!(!self.header("x-request-id").is_empty(), "no x-request-id: {text}");
        let problem: Problem = self.read();
        assert_eq!(problem.code, code, "{text}");
        assert_eq!(problem.kind, code.urn());
        assert_eq!(problem.status, self.status);
        assert!(!problem.detail.is_empty() && !problem.hint.is_empty(), "{text}");
        problem
    }
}

/// A connection pool to one server, or to several that take turns; or the way to the router of a
/// server in this process.
#[derive(Clone, Debug)]
pub struct Api {
    bases: Arc<[Base]>,
    turn: Arc<AtomicUsize>,
    transport: Transport,
}

/// Destination of requests: a server, its URL, or a client of it.
pub trait Endpoint {
    /// A client of its HTTP API.
    fn api(&self) -> Api;
}

impl Endpoint for str {
    fn api(&self) -> Api {
        Api::new(self)
    }
}

impl Endpoint for String {
    fn api(&self) -> Api {
        Api::new(self)
    }
}

impl Endpoint for Api {
    fn api(&self) -> Api {
        self.clone()
    }
}

/// One server, and how often it answered.
#[derive(Debug)]
struct Base {
    url: String,
    answers: AtomicU64,
}

/// Escaped in a path segment: everything but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes a lock name for a path.
pub fn encode(name: &str) -> String {
    utf8_percent_encode(name, RESERVED).to_string()
}

impl Api {
    /// Requests go to `base`, `http://127.0.0.1:PORT`.
    ///
    /// # Panics
    /// Never: the options are fixed.
    pub fn new(base: &str) -> Self {
        Self::round_robin(&[base])
    }

    /// Requests go to `base` by a client that the test has made.
    pub fn with(base: &str, client: reqwest::Client) -> Self {
        Self::over(&[base], Transport::Http(client))
    }

    /// Requests are answered by a router in this process, without a socket.
    pub fn in_process(router: ApiRouter) -> Self {
        Self::over(&["http://localhost"], Transport::InProcess(router))
    }

    fn over(bases: &[&str], transport: Transport) -> Self {
        let base = |url: &&str| Base { url: (*url).to_owned(), answers: AtomicU64::new(0) };
        Self { bases: bases.iter().map(base).collect(), turn: Arc::default(), transport }
    }

    /// Sends each request to the next of `bases`, for all senders and also to those that are down.
    /// Clones share the turn.
    ///
    /// # Panics
    /// If there are none.
    pub fn round_robin(bases: &[&str]) -> Self {
        assert!(!bases.is_empty(), "no server");
        service_kit::tls::install_crypto();
        let client = reqwest::Client::builder()
            .timeout(crate::wait::scaled(transport::REPLY_MAX))
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .expect("a client");
        Self::over(bases, Transport::Http(client))
    }

    /// `http://127.0.0.1:PORT` of the first server.
    pub fn base(&self) -> &str {
        &self.bases[0].url
    }

    /// Number of requests that each server has answered, in the order in which they were named.
    pub fn answers(&self) -> Vec<u64> {
        self.bases.iter().map(|base| base.answers.load(Ordering::Relaxed)).collect()
    }

    /// Sends a request; an error where no complete reply came back.
    ///
    /// # Errors
    /// What went wrong, as text.
    ///
    /// # Panics
    /// If the reply is not as the service's OpenAPI document says.
    pub async fn attempt(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Reply, String> {
        let base = &self.bases[self.turn.fetch_add(1, Ordering::Relaxed) % self.bases.len()];
        let reply = self.transport.send(&base.url, &method, path, headers, body).await?;
        let status = reply.status().as_u16();
        let (head, body) = reply.into_parts();
        let headers = head.headers;
        let body = body.collect().await?.to_bytes();
        base.answers.fetch_add(1, Ordering::Relaxed);
        let reply = Reply { status, headers, body };
        let kind = reply.header("content-type");
        if let Err(why) = openapi::check(&method, path, status, kind, &reply.body) {
            panic!("against the OpenAPI document: {why}: {reply:?}");
        }
        Ok(reply)
    }

    /// Sends a request.
    ///
    /// # Panics
    /// If no complete reply came back.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        let what = format!("{method} {path}");
        let outcome = self.attempt(method, path, headers, body.into()).await;
        outcome.unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// Sends a GET without a body; panics if there is no reply.
    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, &[], "").await
    }

    /// The body of a GET as it comes, which may have no end.
    ///
    /// # Panics
    /// If the reply is no stream of events.
    pub(crate) async fn stream(&self, path: &str, headers: &[(&str, &str)]) -> ReplyBody {
        let reply = self.transport.send(self.base(), &Method::GET, path, headers, Bytes::new());
        let reply = crate::wait::soon("the stream", reply).await.expect("an answer");
        assert_eq!(reply.status().as_u16(), 200, "{reply:?}");
        assert_eq!(reply.headers()["content-type"], "text/event-stream");
        reply.into_body()
    }

    /// Current value of a metric.
    ///
    /// # Panics
    /// If the server has no such metric.
    pub async fn metric(&self, name: &str) -> u64 {
        let body = self.get("/metrics").await.expect(200).body;
        let text = String::from_utf8_lossy(&body);
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().expect("a number")
    }

    /// POST with a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        let json = [("content-type", "application/json")];
        self.send(Method::POST, path, &json, body.to_string()).await
    }
}

/// lock-server's contract.
#[derive(Clone, Debug)]
pub struct Locks(pub Api);

impl Locks {
    /// Requests go to `base`.
    pub fn new(base: &str) -> Self {
        Self(Api::new(base))
    }

    /// Each request goes to the next of `bases`: what a balancer without health checks does.
    pub fn round_robin(bases: &[&str]) -> Self {
        Self(Api::round_robin(bases))
    }

    fn path(lock: &str, verb: &str) -> String {
        format!("/v1/locks/{}/{verb}", encode(lock))
    }

    /// `POST …/acquire` with this body.
    pub async fn acquire(&self, lock: &str, body: Value) -> Reply {
        self.0.post(&Self::path(lock, "acquire"), &body).await
    }

    /// `POST …/acquire`, or an error where no complete reply came back.
    ///
    /// # Errors
    /// What went wrong, as text.
    pub async fn try_acquire(&self, lock: &str, body: Value) -> Result<Reply, String> {
        self.try_post(lock, "acquire", body).await
    }

    /// Any verb, or an error where no complete reply came back.
    ///
    /// # Errors
    /// What went wrong, as text.
    pub async fn try_post(&self, lock: &str, verb: &str, body: Value) -> Result<Reply, String> {
        let json = [("content-type", "application/json")];
        let path = Self::path(lock, verb);
        self.0.attempt(Method::POST, &path, &json, body.to_string().into()).await
    }

    /// A grant for `ttl_ms` that must be had at once. Where the store took so long to reply that
    /// the outcome is unknown, or that its connection was given up, the request is retried with
    /// its id.
    ///
    /// # Panics
    /// If it is refused.
    pub async fn grant(&self, lock: &str, ttl_ms: u64) -> LeaseReply {
        let ask = json!({"ttl_ms": ttl_ms, "lease_id": crate::key_file::lease_id()});
        crate::wait::until("a grant of known outcome", || async {
            let reply = self.acquire(lock, ask.clone()).await;
            (!reply.is_of_a_slow_store()).then(|| reply.lease())
        })
        .await
    }

    /// A lease whose end is at most `ttl_ms` away when it is returned, or past. It is granted for
    /// long and renewed for less: a reply that reports a brief grant may come too late for it. A
    /// renewal is no event, so whatever goes by events still awaits the end of the long time.
    ///
    /// # Panics
    /// If it is refused.
    pub async fn brief(&self, lock: &str, ttl_ms: u64) -> LeaseReply {
        let lease = self.grant(lock, 60_000).await;
        let shorter = json!({"lease_id": lease.lease_id, "ttl_ms": ttl_ms});
        crate::wait::until("a renewal of known outcome", || async {
            let reply = self.0.post(&Self::path(lock, "renew"), &shorter).await;
            match reply.status {
                503 | 504 => None,
                410 => {
                    let problem = reply.problem(Code::LeaseLost);
                    let reason = problem.extension::<String>("reason");
                    assert_eq!(reason.as_deref(), Some("expired"), "{problem}");
                    Some(())
                }
                _ => {
                    reply.expect(200);
                    Some(())
                }
            }
        })
        .await;
        lease
    }

    /// `POST …/renew`.
    pub async fn renew(&self, lock: &str, lease: LeaseId) -> Reply {
        self.0.post(&Self::path(lock, "renew"), &json!({ "lease_id": lease })).await
    }

    /// `POST …/release`.
    pub async fn release(&self, lock: &str, lease: LeaseId) -> Reply {
        self.0.post(&Self::path(lock, "release"), &json!({ "lease_id": lease })).await
    }

    /// Releases a lease that lives, again while the store takes too long to reply.
    ///
    /// # Panics
    /// If it is refused.
    pub async fn let_go(&self, lock: &str, lease: LeaseId) {
        let mut is_repeat = false;
        crate::wait::until("a release of known outcome", || {
            let was_tried = std::mem::replace(&mut is_repeat, true);
            async move {
                let reply = self.release(lock, lease).await;
                match reply.status {
                    503 | 504 => None,
                    // The request before it was carried out, and its reply came too late.
                    410 if was_tried => Some(()),
                    _ => {
                        reply.expect(200);
                        Some(())
                    }
                }
            }
        })
        .await;
    }

    /// `POST …/revoke`.
    pub async fn revoke(&self, lock: &str, reason: &str) -> Reply {
        self.0.post(&Self::path(lock, "revoke"), &json!({ "reason": reason })).await
    }

    /// `GET /v1/locks/{lock}`, again where the store took too long to reply.
    pub async fn show(&self, lock: &str) -> LockReply {
        let path = format!("/v1/locks/{}", encode(lock));
        crate::wait::until("the state of a lock", || async {
            let reply = self.0.get(&path).await;
            (!reply.is_of_a_slow_store()).then(|| reply.expect(200).read())
        })
        .await
    }

    /// Waits until one waits for the lock: the request `waiting`, unless it has its reply already,
    /// because the lease before it ended early.
    pub async fn queued<T>(&self, lock: &str, waiting: &tokio::task::JoinHandle<T>) {
        crate::wait::until_true(&format!("a waiter for {lock}"), || async {
            waiting.is_finished() || self.show(lock).await.queue_length == 1
        })
        .await;
    }

    /// Waits until `count` wait for the lock.
    pub async fn queue_of(&self, lock: &str, count: usize) -> LockReply {
        crate::wait::until(&format!("{count} waiters for {lock}"), || async {
            let state = self.show(lock).await;
            (state.queue_length == count).then_some(state)
        })
        .await
    }
}

/// fenced-store's contract.
#[derive(Clone, Debug)]
pub struct Guard(pub Api);

impl Guard {
    /// Requests go to `base`.
    pub fn new(base: &str) -> Self {
        Self(Api::new(base))
    }

    /// `PUT /v1/objects/{key}` with a token header.
    pub async fn put(&self, key: &str, fencing: &str, body: impl Into<Bytes>) -> Reply {
        self.with(Method::PUT, key, &[("fencing-token", fencing)], body).await
    }

    /// `GET /v1/objects/{key}` with a token header.
    pub async fn fenced_get(&self, key: &str, fencing: &str) -> Reply {
        self.with(Method::GET, key, &[("fencing-token", fencing)], "").await
    }

    /// `GET /v1/objects/{key}` without a token.
    pub async fn get(&self, key: &str) -> Reply {
        self.with(Method::GET, key, &[], "").await
    }

    /// `DELETE /v1/objects/{key}` with a token header.
    pub async fn delete(&self, key: &str, fencing: &str) -> Reply {
        self.with(Method::DELETE, key, &[("fencing-token", fencing)], "").await
    }

    /// Any method on an object with any headers.
    pub async fn with(
        &self,
        method: Method,
        key: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        self.0.send(method, &format!("/v1/objects/{key}"), headers, body).await
    }

    /// `POST /v1/fences/{lock}/seal` with a token header.
    pub async fn seal(&self, lock: &str, fencing: &str) -> Reply {
        let path = format!("/v1/fences/{}/seal", encode(lock));
        self.0.send(Method::POST, &path, &[("fencing-token", fencing)], "").await
    }

    /// The mark after a seal that must succeed.
    pub async fn sealed(&self, lock: &str, fencing: &str) -> SealReply {
        self.seal(lock, fencing).await.expect(200).read()
    }

    /// `GET /v1/fences/{lock}`.
    pub async fn fence(&self, lock: &str) -> FenceReply {
        self.0.get(&format!("/v1/fences/{}", encode(lock))).await.expect(200).read()
    }
}
