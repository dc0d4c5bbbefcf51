//! The drain lane before a datastore that knows nothing of tokens.

mod bytes;
mod conditions;
mod http2;
mod http2_upstream;
mod journal;
mod operators;
mod replies;

use fence_protocol::Code;
use fence_protocol::wire::fence::Guarantee;
use fence_tests::api::{Api, Reply};
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::raw_http::{exchange, status};
use fence_tests::servers::{DataDir, Server, Setup};
use fence_tests::upstream::Upstream;
use fence_tests::wait::{soon, until_true};
use http::Method;
use tokio::task::JoinHandle;

/// A lifetime that no test outlasts.
const LONG: &str = "60s";

/// A guard before an opaque upstream.
struct Lane {
    upstream: Upstream,
    state: DataDir,
    lifetime: &'static str,
    server: Server,
    api: Api,
}

impl Lane {
    async fn new(lifetime: &'static str) -> Self {
        let upstream = Upstream::start().await;
        let state = DataDir::new();
        let (server, api) = start(&upstream, &state, lifetime).await;
        Self { upstream, state, lifetime, server, api }
    }

    /// kill -9, and a new process on the same state.
    async fn crash(&mut self) {
        self.server.process.kill();
        (self.server, self.api) = start(&self.upstream, &self.state, self.lifetime).await;
    }

    async fn put(&self, path: &str, token: &str, body: &'static str) -> Reply {
        self.api.send(Method::PUT, path, &[("fencing-token", token)], body).await
    }

    fn put_later(&self, token: &str, body: &'static str) -> JoinHandle<Result<Reply, String>> {
        let api = self.api.clone();
        let token = token.to_owned();
        tokio::spawn(async move {
            let headers = [("fencing-token", token.as_str())];
            api.attempt(Method::PUT, "/doc", &headers, body.into()).await
        })
    }

    async fn mark(&self) -> Option<u64> {
        self.server.guard().fence("doc").await.mark.map(|token| token.get())
    }
}

async fn start(upstream: &Upstream, state: &DataDir, lifetime: &str) -> (Server, Api) {
    // A test that gives a short lifetime wants answers in short time, too.
    let (timeout, wait) = if lifetime == LONG { ("10s", "10s") } else { ("2s", "100ms") };
    let mut server = Setup::bare("fenced-store")
        .args(&["--unsigned", "--proxy-listen", "127.0.0.1:0"])
        .args(&["--upstream", upstream.base(), "--max-request-lifetime", lifetime])
        .args(&["--upstream-timeout", timeout, "--drain-wait", wait])
        .args(&["--state", fence_tests::key_file::text(&state.path())])
        .start()
        .await;
    let api = Api::new(&server.proxy().await);
    (server, api)
}

fn token(number: u64) -> String {
    unsigned(number, "doc", lease_id())
}

#[tokio::test]
async fn what_passes_is_what_was_sent() {
    let lane = Lane::new(LONG).await;
    let own = token(33);
    let headers = [
        ("fencing-token", own.as_str()),
        ("content-type", "text/x-thing"),
        ("x-own", "kept"),
        ("connection", "x-hop"),
        ("x-hop", "dropped"),
    ];
    let reply = lane.api.send(Method::PUT, "/doc?part=1", &headers, "one").await.expect(204);
    assert_eq!(reply.header("fencing-mark"), "33");
    assert_eq!(reply.header("fencing-guarantee"), Guarantee::Bounded.as_str());
    let log = lane.upstream.log();
    assert_eq!((log[0].path.as_str(), log[0].value.as_str()), ("/doc?part=1", "one"));
    assert_eq!(log[0].headers["content-type"], "text/x-thing");
    assert_eq!(log[0].headers["x-own"], "kept");
    assert!(!log[0].headers.contains_key("x-hop"), "a hop-by-hop header passed");
    let empty = format!(
        "PUT /doc?part=2 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nfencing-token: {own}\r\n\
         content-length: 0\r\n\r\n"
    );
    let reply = exchange(lane.api.base(), empty.as_bytes()).await;
    assert_eq!(status(&reply), Some(204), "{reply}");
    assert_eq!(lane.upstream.log()[1].headers["content-length"], "0");
    let found = lane.api.send(Method::GET, "/doc?part=1", &[("fencing-token", &own)], "").await;
    assert_eq!(found.expect(200).body.as_ref(), b"one");
}

#[tokio::test]
async fn refusals_never_reach_the_upstream() {
    let lane = Lane::new(LONG).await;
    lane.put("/doc", &token(34), "new").await.expect(204);
    lane.put("/doc", &token(33), "late").await.problem(Code::StaleToken);
    lane.put("/doc", &token(34), "twin").await.problem(Code::TokenCollision);
    lane.put("/doc", &unsigned(40, "other", lease_id()), "x").await.problem(Code::WrongLock);
    lane.api.send(Method::PUT, "/doc", &[], "x").await.problem(Code::TokenRequired);
    lane.put("/doc", "nonsense", "x").await.problem(Code::MalformedToken);
    for path in ["/%2e%2e/doc", "/a/../doc", "/a/%2e%2e/doc", "/%64%2f..%2fdoc", "//doc", "/a%00"] {
        // Written by hand: a well-behaved client would resolve a dotted path itself.
        let request = format!(
            "PUT {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nfencing-token: {}\r\n\
             content-length: 1\r\n\r\nx",
            token(50)
        );
        let reply = exchange(lane.api.base(), request.as_bytes()).await;
        assert!(matches!(status(&reply), Some(400..=499)), "{path}: {reply}");
    }
    assert_eq!(lane.upstream.values(), ["new"]);
    assert_eq!(lane.mark().await, Some(34));
}

/// Sends a write with this request line and these header lines.
async fn send_line(lane: &Lane, line: &str, header: &str) -> String {
    let request = format!(
        "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nfencing-token: {}\r\n\
         {header}content-length: 1\r\n\r\nx",
        token(50)
    );
    exchange(lane.api.base(), request.as_bytes()).await
}

/// The guard checks the lock of the path. Whatever could name another lock's resource is refused.
#[tokio::test]
async fn a_request_names_one_resource() {
    let lane = Lane::new(LONG).await;
    let send = async |line: &str, header: &str| send_line(&lane, line, header).await;
    for line in ["MOVE /doc", "COPY /doc", "BIND /doc", "REBIND /doc", "MERGE /doc"] {
        let reply = send(line, "destination: /other\r\n").await;
        assert_eq!(status(&reply), Some(405), "{line}: {reply}");
    }
    for header in [
        "destination: /other",
        "x-original-url: /other",
        "X-Original-Url: /other",
        "x_original_url: /other",
        "x-rewrite-url: /other",
        "x-amz-copy-source: /bucket/other",
        "x-amz-rename-source: /bucket/other",
        "x-ms-copy-source: http://127.0.0.1/other",
        "x-goog-copy-source: /bucket/other",
        "x-http-method-override: DELETE",
        "x-method-override: DELETE",
        "x-original-method: DELETE",
        "x-forwarded-method: DELETE",
        "x-forwarded-prefix: /other",
        "x-forwarded-uri: /other",
        "x-accel-redirect: /other",
        "x-sendfile: /other",
        "content-location: /other",
        "overwrite: T",
        "if: </other> (<urn:x>)",
    ] {
        let reply = send("PUT /doc", &format!("{header}\r\n")).await;
        assert_eq!(status(&reply), Some(400), "{header}: {reply}");
    }
    for (line, header) in [
        ("PROPFIND /doc", ""),
        ("PROPFIND /doc", "depth: infinity\r\n"),
        ("LOCK /doc", "depth: 0\r\ndepth: infinity\r\n"),
    ] {
        let reply = send(line, header).await;
        assert_eq!(status(&reply), Some(400), "{line} {header}: {reply}");
    }
    assert!(lane.upstream.log().is_empty(), "{:?}", lane.upstream.log());
}

#[tokio::test]
async fn a_path_has_one_spelling() {
    let lane = Lane::new(LONG).await;
    let send = async |line: &str, header: &str| send_line(&lane, line, header).await;
    let paths = [
        "/doc?X-Amz-Copy-Source=%2Fbucket%2Fother",
        "/doc;a=b",
        "/doc%3Ba=b",
        "/x%5C..%5Cdoc",
        "/doc/",
        "/doc/.",
        "http://other/doc",
        "other:80",
        "*",
        "/doc%255c..%255cother",
        "/%2564oc",
        "http://localhost//doc",
    ];
    for path in paths {
        let reply = send(&format!("PUT {path}"), "").await;
        assert!(matches!(status(&reply), Some(400..=499)), "{path}: {reply}");
    }
    let other = send("PUT /DOC", "").await;
    assert_eq!(status(&other), Some(403), "another name has another lock: {other}");
    assert!(lane.upstream.log().is_empty(), "{:?}", lane.upstream.log());

    // The name of a virtual host stays behind, and one spelling of the path is passed on.
    let reply = send("PUT http://localhost/%64oc", "forwarded: host=b\r\nx-host: b\r\n").await;
    assert_eq!(status(&reply), Some(204), "{reply}");
    let log = lane.upstream.log();
    assert_eq!(log[0].path, "/doc");
    assert!(!log[0].headers.contains_key("forwarded") && !log[0].headers.contains_key("x-host"));
    assert_eq!(log[0].headers["host"], lane.upstream.base().trim_start_matches("http://"));
}

/// The heart of it: 33 is on the wire while 34 arrives. 34 waits until 33 has landed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_write_waits_for_the_older_in_flight() {
    let lane = Lane::new(LONG).await;
    let old_token = token(33);
    let mut hold = lane.upstream.hold("33");
    let old = lane.put_later(&old_token, "33");
    hold.arrived().await;
    let new = lane.put_later(&token(34), "34");
    until_true("the mark to be 34", || async { lane.mark().await == Some(34) }).await;
    // The mark is up, so the old holder is out, though its first write is still on the wire.
    lane.put("/doc", &old_token, "33 again").await.problem(Code::StaleToken);
    assert!(lane.upstream.values().is_empty(), "34 overtook 33");
    hold.release();
    soon("33", old).await.unwrap().unwrap().expect(204);
    let mut second = soon("34", new).await.unwrap().unwrap();
    if second.status == 503 {
        second.problem(Code::Draining);
        second = lane.put("/doc", &token(35), "34").await;
    }
    second.expect(204);
    assert_eq!(lane.upstream.values(), ["33", "34"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_of_one_token_run_side_by_side() {
    let lane = Lane::new(LONG).await;
    let own = token(33);
    let mut hold = lane.upstream.hold("slow");
    let slow = lane.put_later(&own, "slow");
    hold.arrived().await;
    lane.put("/doc", &own, "fast").await.expect(204);
    hold.release();
    soon("the slow write", slow).await.unwrap().unwrap().expect(204);
    assert_eq!(lane.upstream.values(), ["fast", "slow"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_cancels_nothing() {
    let lane = Lane::new(LONG).await;
    let mut hold = lane.upstream.hold("33");
    let old = lane.put_later(&token(33), "33");
    hold.arrived().await;
    old.abort();
    let new = lane.put_later(&token(34), "34");
    until_true("the mark to be 34", || async { lane.mark().await == Some(34) }).await;
    assert!(lane.upstream.values().is_empty(), "34 did not wait for the abandoned 33");
    hold.release();
    let second = soon("34", new).await.unwrap().unwrap();
    if second.status != 204 {
        second.problem(Code::Draining);
        lane.put("/doc", &token(35), "34").await.expect(204);
    }
    assert_eq!(lane.upstream.values(), ["33", "34"]);
}

/// A write that got no answer in its time has an unknown outcome: nothing newer until it cannot
/// land any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_of_unknown_outcome_quarantines_the_lane() {
    let lane = Lane::new("10s").await;
    let mut hold = lane.upstream.hold("33");
    let old = lane.put_later(&token(33), "33");
    hold.arrived().await;
    let reply = soon("the lifetime of 33 to end", old).await.unwrap().unwrap();
    let problem = reply.problem(Code::OutcomeUnknown);
    assert!(!problem.hint.contains("lease_id") || !problem.retryable, "{problem:?}");
    assert!(lane.upstream.values().is_empty());
    let newer = token(34);
    let first = lane.put("/doc", &newer, "34").await;
    first.problem(Code::Quarantined);
    assert!(!first.header("retry-after").is_empty());
    until_true("the quarantine to end", || async {
        let reply = lane.put("/doc", &newer, "34").await;
        reply.status == 204
    })
    .await;
    assert_eq!(lane.upstream.values(), ["34"]);
}

/// The guard dies with a write on the wire: its successor knows that the write may still land.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_with_a_write_in_flight_quarantines_the_lane() {
    let mut lane = Lane::new("10s").await;
    let mut hold = lane.upstream.hold("33");
    let old = lane.put_later(&token(33), "33");
    hold.arrived().await;
    lane.crash().await;
    assert!(soon("the cut connection", old).await.unwrap().is_err());
    assert_eq!(lane.mark().await, Some(33), "the mark was not durable");
    let newer = token(34);
    let first = lane.put("/doc", &newer, "34").await;
    first.problem(Code::Quarantined);
    assert!(!first.header("retry-after").is_empty());
    hold.release();
    until_true("the quarantine to end", || async {
        lane.put("/doc", &newer, "34").await.status == 204
    })
    .await;
    assert_eq!(lane.upstream.values(), ["33", "34"]);
    lane.put("/doc", &token(33), "late").await.problem(Code::StaleToken);
}

/// Kill -9 right after a reply costs a quarantine, because the lane is still open on disk; an
/// orderly end closes it, and so does a rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_at_rest_is_closed_for_good() {
    let mut lane = Lane::new(LONG).await;
    lane.put("/doc", &token(33), "33").await.expect(204);
    lane.server.process.terminate();
    lane.server.process.ended().await;
    (lane.server, lane.api) = start(&lane.upstream, &lane.state, lane.lifetime).await;
    lane.put("/doc", &token(34), "34").await.expect(204);
    until_true("the lane to be closed on disk", || async {
        lane.server.metric("fencepost_fence_open_lanes").await == 0
    })
    .await;
    lane.crash().await;
    lane.put("/doc", &token(35), "35").await.expect(204);
    let mut landed = vec!["33", "34", "35"];
    for number in 36..=38 {
        lane.crash().await;
        let reply = lane.put("/doc", &token(number), "36").await;
        // Where the kill was late, the lane had come to rest before it.
        if reply.status != 204 || number == 38 {
            reply.problem(Code::Quarantined);
            break;
        }
        landed.push("36");
    }
    assert_eq!(lane.upstream.values(), landed);
}

#[tokio::test]
async fn marks_survive_a_crash() {
    let mut lane = Lane::new("4s").await;
    lane.put("/doc", &token(34), "new").await.expect(204);
    lane.crash().await;
    lane.put("/doc", &token(33), "late").await.problem(Code::StaleToken);
    assert_eq!(lane.upstream.values(), ["new"]);
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_said_so() {
    let state = DataDir::new();
    let port = fence_tests::ports::unused();
    let mut server = Setup::bare("fenced-store")
        .args(&["--unsigned", "--proxy-listen", "127.0.0.1:0"])
        .args(&["--upstream", &format!("http://127.0.0.1:{port}")])
        .args(&["--max-request-lifetime", "10s"])
        .args(&["--state", fence_tests::key_file::text(&state.path())])
        .start()
        .await;
    let api = Api::new(&server.proxy().await);
    let own = token(33);
    let headers = [("fencing-token", own.as_str())];
    let send = || api.send(Method::PUT, "/doc", &headers, "x");
    let refused = soon("an answer", send()).await;
    refused.problem(Code::UpstreamUnavailable);
    // Nothing was sent, so no outcome is unknown.
    send().await.problem(Code::UpstreamUnavailable);
}

#[tokio::test]
async fn one_guard_a_state_folder() {
    let lane = Lane::new("1s").await;
    let output = Setup::bare("fenced-store")
        .args(&["--unsigned", "--proxy-listen", "127.0.0.1:0"])
        .args(&["--upstream", lane.upstream.base(), "--max-request-lifetime", "1s"])
        .args(&["--state", fence_tests::key_file::text(&lane.state.path())])
        .refused()
        .await;
    assert!(output.stderr.contains("use"), "{}", output.stderr);
}

#[tokio::test]
async fn a_lifetime_must_be_stated() {
    let state = DataDir::new();
    let output = Setup::bare("fenced-store")
        .args(&["--unsigned", "--proxy-listen", "127.0.0.1:0"])
        .args(&["--upstream", "http://127.0.0.1:9"])
        .args(&["--state", fence_tests::key_file::text(&state.path())])
        .refused()
        .await;
    assert_eq!(output.code, 64, "{output:?}");
    assert!(output.stderr.contains("max-request-lifetime"), "{}", output.stderr);
}

/// While a slow write holds its lane up, other lanes move.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_do_not_touch_each_other() {
    let lane = Lane::new(LONG).await;
    let mut hold = lane.upstream.hold("slow");
    let slow = lane.put_later(&token(33), "slow");
    hold.arrived().await;
    let waiting = lane.put_later(&token(34), "next");
    let other = unsigned(34, "other", lease_id());
    soon("another lane to move", lane.put("/other", &other, "free")).await.expect(204);
    hold.release();
    soon("the slow write", slow).await.unwrap().unwrap().expect(204);
    drop(soon("the next write", waiting).await.unwrap());
}
