//! An upstream of HTTP/2: which outcomes are known, and what requests share.

use std::net::SocketAddr;

use fence_protocol::Code;
use fence_tests::api::{Api, Reply};
use fence_tests::http2_frames::{END_STREAM, Http2Client, Http2Reply, code, kind, request};
use fence_tests::http2_origin::{Arrived, Http2Origin, OriginConnection};
use fence_tests::key_file::{lease_id, text, unsigned};
use fence_tests::servers::{DataDir, Server, Setup};
use fence_tests::tcp_queues;
use fence_tests::upstream::Upstream;
use fence_tests::wait::until_true;
use http::Method;
use tokio::task::JoinHandle;

/// A guard before an origin that the test plays.
struct Shared {
    origin: Http2Origin,
    server: Server,
    api: Api,
    address: SocketAddr,
    _state: DataDir,
}

impl Shared {
    async fn new(more: &[&str]) -> Self {
        let origin = Http2Origin::start().await;
        let state = DataDir::new();
        let (server, api) = guard(origin.base(), &state, more).await;
        let address = api.base().trim_start_matches("http://").parse().unwrap();
        Self { origin, server, api, address, _state: state }
    }

    fn put(&self, lock: &str, token: u64) -> JoinHandle<Result<Reply, String>> {
        let api = self.api.clone();
        let path = format!("/{lock}");
        let token = own(token, lock);
        tokio::spawn(async move {
            api.attempt(Method::PUT, &path, &[("fencing-token", &token)], "x".into()).await
        })
    }

    async fn quarantined(&self) -> u64 {
        self.server.metric("fencepost_fence_quarantined_lanes").await
    }

    /// One connection of a client, whose requests have one thread of the guard.
    async fn client(&self) -> Http2Client {
        Http2Client::connect(self.address, &[]).await
    }
}

async fn guard(upstream: &str, state: &DataDir, more: &[&str]) -> (Server, Api) {
    let mut server = Setup::bare("fenced-store")
        .args(&["--unsigned", "--proxy-listen", "127.0.0.1:0", "--max-request-lifetime", "60s"])
        .args(&["--upstream", upstream, "--upstream-http", "h2", "--state", text(&state.path())])
        .args(more)
        .start()
        .await;
    let api = Api::new(&server.proxy().await);
    (server, api)
}

async fn reply(sent: JoinHandle<Result<Reply, String>>) -> Reply {
    sent.await.unwrap().unwrap()
}

/// The one token of this number.
fn own(token: u64, lock: &str) -> String {
    unsigned(token, lock, format!("00000000-0000-4000-8000-{token:012}").parse().unwrap())
}

/// Sends a PUT of the lock's name on a stream.
async fn put(client: &mut Http2Client, stream: u32, lock: &str, token: u64) {
    let token = own(token, lock);
    let path = format!("/{lock}");
    let fields: Vec<_> =
        request("PUT", &path).into_iter().chain([("fencing-token", &*token)]).collect();
    client.head(stream, 0, &fields).await;
    client.send(kind::DATA, END_STREAM, stream, lock.as_bytes()).await;
}

fn arrived(stream: u32, body: &str) -> Arrived {
    Arrived { stream, body: body.to_owned() }
}

fn outcome(reply: &Http2Reply) -> String {
    let problem: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
    format!("{} {}", problem["code"].as_str().unwrap(), problem["outcome"].as_str().unwrap())
}

/// The guard has replied, and one stream of the connection is under way.
async fn with_two(guard: &Shared) -> (Http2Client, OriginConnection) {
    let mut client = guard.client().await;
    put(&mut client, 1, "a", 33).await;
    let mut origin = guard.origin.accept(&[]).await;
    assert_eq!(origin.request().await, arrived(1, "a"));
    put(&mut client, 3, "b", 33).await;
    assert_eq!(origin.request().await, arrived(3, "b"));
    (client, origin)
}

#[tokio::test]
async fn requests_share_a_connection_and_its_rest() {
    let guard = Shared::new(&["--upstream-idle", "1h"]).await;
    let (mut client, mut origin) = with_two(&guard).await;
    origin.reply(3).await;
    assert_eq!(client.reply(3).await.unwrap().status, 204);
    origin.reply(1).await;
    assert_eq!(client.reply(1).await.unwrap().status, 204);
    put(&mut client, 5, "a", 33).await;
    assert_eq!(origin.request().await, arrived(5, "a"), "it rested, and is used again");
    origin.reply(5).await;
    assert_eq!(client.reply(5).await.unwrap().status, 204);
}

/// RFC 9113 section 8.7: REFUSED_STREAM, and a GOAWAY of a lower stream, say that nothing happened.
#[tokio::test]
async fn what_the_upstream_did_not_process_is_sent_again() {
    let guard = Shared::new(&[]).await;
    let (mut client, mut origin) = with_two(&guard).await;
    origin.reset(3, code::REFUSED_STREAM).await;
    assert_eq!(origin.request().await, arrived(5, "b"));
    origin.go_away(1).await;
    let mut next = guard.origin.accept(&[]).await;
    assert_eq!(next.request().await, arrived(1, "b"));
    next.reply(1).await;
    assert_eq!(client.reply(3).await.unwrap().status, 204);
    origin.reply(1).await;
    assert_eq!(client.reply(1).await.unwrap().status, 204, "the one that was processed continues");
    assert_eq!(guard.quarantined().await, 0);
}

#[tokio::test]
async fn what_the_upstream_never_processes_is_not_applied() {
    let guard = Shared::new(&[]).await;
    let sent = guard.put("a", 33);
    let mut origin = guard.origin.accept(&[]).await;
    for stream in [1, 3, 5] {
        assert_eq!(origin.request().await, arrived(stream, "x"));
        origin.reset(stream, code::REFUSED_STREAM).await;
    }
    let problem = reply(sent).await.problem(Code::UpstreamUnavailable);
    assert_eq!(problem.extensions["outcome"], "not-applied", "{problem}");
    assert!(problem.detail.contains("did not process"), "{problem}");
    assert_eq!(guard.quarantined().await, 0);
}

/// Anything else may have been applied: it is never sent again, and its lane waits.
#[tokio::test]
async fn any_other_reset_leaves_the_outcome_unknown() {
    let guard = Shared::new(&[]).await;
    let (mut client, mut origin) = with_two(&guard).await;
    let mut stream = 3;
    for (number, reason) in [code::NO_ERROR, code::CANCEL, 2, 11].into_iter().enumerate() {
        origin.reset(stream, reason).await;
        let seen = client.reply(stream).await.unwrap();
        assert_eq!(outcome(&seen), "outcome-unknown unknown", "{reason}");
        stream += 2;
        put(&mut client, stream, &format!("c{number}"), 33).await;
        assert_eq!(origin.request().await, arrived(stream, &format!("c{number}")));
    }
    // A reply has begun, so that the refusal contradicts it.
    origin.0.head(stream, 0, &[(":status", "200")]).await;
    origin.reset(stream, code::REFUSED_STREAM).await;
    assert_eq!(outcome(&client.reply(stream).await.unwrap()), "outcome-unknown unknown");
    origin.reply(1).await;
    assert_eq!(client.reply(1).await.unwrap().status, 204, "the others go on");
    assert_eq!(guard.quarantined().await, 5);
}

#[tokio::test]
async fn a_connection_that_breaks_leaves_all_outcomes_unknown() {
    let guard = Shared::new(&[]).await;
    let (mut client, mut origin) = with_two(&guard).await;
    // It says that both are processed.
    origin.go_away(3).await;
    drop(origin);
    for stream in [1, 3] {
        assert_eq!(outcome(&client.reply(stream).await.unwrap()), "outcome-unknown unknown");
    }
    assert_eq!(guard.quarantined().await, 2);
    put(&mut client, 5, "c", 33).await;
    let mut next = guard.origin.accept(&[]).await;
    assert_eq!(next.request().await, arrived(1, "c"), "nothing was sent twice");
}

#[tokio::test]
async fn a_late_reply_costs_its_stream_and_no_other() {
    let guard = Shared::new(&["--upstream-timeout", "4s"]).await;
    let mut client = guard.client().await;
    put(&mut client, 1, "a", 33).await;
    let mut origin = guard.origin.accept(&[]).await;
    assert_eq!(origin.request().await, arrived(1, "a"));
    assert_eq!(origin.is_reset(1).await, code::CANCEL);
    assert_eq!(outcome(&client.reply(1).await.unwrap()), "outcome-unknown unknown");
    // An upstream that is gone without a word would keep all further requests waiting.
    put(&mut client, 3, "b", 33).await;
    let mut next = guard.origin.accept(&[]).await;
    assert_eq!(next.request().await, arrived(1, "b"));
    next.reply(1).await;
    assert_eq!(client.reply(3).await.unwrap().status, 204);
}

#[tokio::test]
async fn a_write_waits_for_the_older_one_on_the_same_connection() {
    let guard = Shared::new(&[]).await;
    let (mut client, mut origin) = with_two(&guard).await;
    put(&mut client, 5, "a", 34).await;
    put(&mut client, 7, "c", 33).await;
    assert_eq!(origin.request().await, arrived(5, "c"), "the newer token waits in its lane");
    put(&mut client, 9, "a", 33).await;
    let stale: serde_json::Value =
        serde_json::from_str(&client.reply(9).await.unwrap().body).unwrap();
    assert_eq!(stale["code"], "stale-token", "{stale}");
    origin.reply(1).await;
    assert_eq!(origin.request().await, arrived(7, "a"));
    origin.reply(7).await;
    assert_eq!(client.reply(5).await.unwrap().status, 204);
}

#[tokio::test]
async fn the_upstream_limits_its_streams() {
    let guard = Shared::new(&[]).await;
    let mut client = guard.client().await;
    put(&mut client, 1, "a", 33).await;
    // SETTINGS_MAX_CONCURRENT_STREAMS.
    let mut one = guard.origin.accept(&[(3, 1)]).await;
    assert_eq!(one.request().await, arrived(1, "a"));
    put(&mut client, 3, "b", 33).await;
    let mut other = guard.origin.accept(&[(3, 1)]).await;
    assert_eq!(other.request().await, arrived(1, "b"));
}

/// One reply that its client does not read takes no other's window.
#[tokio::test]
async fn a_reply_that_is_read_slowly_holds_up_no_other() {
    let guard = Shared::new(&["--rule", "slow/**=@open", "--rule", "{id}={id}"]).await;
    // The client's windows are closed.
    let mut client = Http2Client::connect(guard.address, &[(4, 0)]).await;
    client.request(1, "GET", "/slow/0").await;
    let mut origin = guard.origin.accept(&[]).await;
    for number in 0..20 {
        if number > 0 {
            client.request(2 * number + 1, "GET", &format!("/slow/{number}")).await;
        }
        let stream = origin.request().await.stream;
        origin.0.head(stream, 0, &[(":status", "200")]).await;
        for _ in 0..3 {
            origin.0.send(kind::DATA, 0, stream, &[b'x'; 16_384]).await;
        }
    }
    put(&mut client, 99, "a", 33).await;
    let written = origin.request().await;
    origin.reply(written.stream).await;
    assert_eq!(client.reply(99).await.unwrap().status, 204);
}

#[tokio::test]
async fn a_connection_that_was_closed_at_rest_carries_no_request() {
    let guard = Shared::new(&[]).await;
    let mut client = guard.client().await;
    for stream in [1, 3, 5] {
        put(&mut client, stream, "a", 33).await;
        let mut origin = guard.origin.accept(&[]).await;
        assert_eq!(origin.request().await, arrived(1, "a"));
        origin.reply(1).await;
        assert_eq!(client.reply(stream).await.unwrap().status, 204);
        drop(origin);
        // A busy kernel may deliver it after the next request, which crosses it then.
        let port: u16 = guard.origin.base().rsplit(':').next().unwrap().parse().unwrap();
        until_true("the end of the connection", || async { tcp_queues::have_ended(port) }).await;
    }
}

#[tokio::test]
async fn without_idle_time_every_request_has_its_own_connection() {
    let guard = Shared::new(&["--upstream-idle", "0s"]).await;
    let mut client = guard.client().await;
    put(&mut client, 1, "a", 33).await;
    let mut one = guard.origin.accept(&[]).await;
    assert_eq!(one.request().await, arrived(1, "a"));
    put(&mut client, 3, "b", 33).await;
    let mut other = guard.origin.accept(&[]).await;
    assert_eq!(other.request().await, arrived(1, "b"));
    other.reply(1).await;
    assert_eq!(client.reply(3).await.unwrap().status, 204);
    assert_eq!(other.frame().await.map(|frame| frame.kind), Some(kind::GOAWAY), "it is closed");
}

/// It gets no request that it would read as something else.
#[tokio::test]
async fn an_upstream_without_http2_gets_nothing() {
    let upstream = Upstream::start().await;
    let state = DataDir::new();
    let (server, api) = guard(upstream.base(), &state, &[]).await;
    let token = unsigned(33, "doc", lease_id());
    let sent = api.send(Method::PUT, "/doc", &[("fencing-token", &token)], "x").await;
    let problem = sent.problem(Code::UpstreamUnavailable);
    assert!(problem.detail.contains("--upstream-http h1"), "{problem}");
    assert_eq!(server.metric("fencepost_fence_quarantined_lanes").await, 0);
    assert!(upstream.log().is_empty());
}
