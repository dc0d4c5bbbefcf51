//! Bad input to fenced-store: one clear error each, and nothing is lost.

use fence_protocol::{Code, LeaseId};
use fence_tests::api::{Endpoint, Guard};
use fence_tests::in_process::InProcess;
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::raw_http::{exchange, status};
use fence_tests::servers::{Server, Setup};
use http::Method;

use super::memory;

/// A guard with an object and a mark; [`Witness::check`] shows that both are as they were.
struct Witness<S> {
    server: S,
    lease: LeaseId,
}

impl Witness<InProcess> {
    async fn new() -> Self {
        Self::at(memory().await).await
    }
}

impl Witness<Server> {
    async fn with_socket() -> Self {
        Self::at(Setup::fenced_store("memory:").start().await).await
    }
}

impl<S: Endpoint> Witness<S> {
    async fn at(server: S) -> Self {
        let lease = lease_id();
        Guard(server.api()).put("a", &unsigned(7, "a", lease), "kept").await.expect(201);
        Self { server, lease }
    }

    async fn check(self) {
        let guard = Guard(self.server.api());
        let fence = guard.fence("a").await;
        assert_eq!((fence.mark.map(|t| t.get()), fence.lease_id), (Some(7), Some(self.lease)));
        let found = guard.fenced_get("a", &unsigned(7, "a", self.lease)).await.expect(200);
        assert_eq!(found.body.as_ref(), b"kept");
    }
}

#[tokio::test]
async fn bad_tokens() {
    let witness = Witness::new().await;
    let guard = witness.server.guard();
    let tail = format!(";lock=\"a\";lease=\"{}\"", witness.lease);
    for (header, shown) in [
        (format!("0{tail}"), "from 1"),
        (format!("-8{tail}"), "from 1"),
        (format!("1000000000000000{tail}"), "malformed"),
        (format!("9.5{tail}"), "integer"),
        (format!("nine{tail}"), "integer"),
        (format!("\"9\"{tail}"), "integer"),
        (format!("9{tail}, 10{tail}"), "malformed"),
        (format!("9{tail};colour=\"red\""), "colour"),
        (format!("9{tail};lock=\"a\""), "repeats"),
        ("9".to_owned(), "lacks"),
        ("9;lock=\"a\"".to_owned(), "lacks"),
        ("9;lock=\"a\";lease=\"nope\"".to_owned(), "UUID"),
        (format!("9;lock=\"a/../b\";lease=\"{}\"", witness.lease), "segment"),
        (format!("9{tail};kid=\"k\""), "only one"),
        (format!("9{tail};x=\"{}\"", "y".repeat(2_000)), "longer"),
        (String::new(), "malformed"),
    ] {
        let detail = guard.put("a", &header, "x").await.problem(Code::MalformedToken).detail;
        assert!(detail.contains(shown), "{header}: {detail}");
    }
    witness.check().await;
}

#[tokio::test]
async fn two_token_headers() {
    let witness = Witness::new().await;
    let header = unsigned(9, "a", lease_id());
    let headers = [("fencing-token", header.as_str()); 2];
    let reply = witness.server.guard().with(Method::PUT, "a", &headers, "x").await;
    let detail = reply.problem(Code::MalformedToken).detail;
    assert!(detail.contains("more than one"), "{detail}");
    witness.check().await;
}

#[tokio::test]
async fn a_token_header_that_is_no_text() {
    let witness = Witness::with_socket().await;
    let mut request = b"PUT /v1/objects/a HTTP/1.1\r\nhost: localhost\r\nfencing-token: ".to_vec();
    request.extend([0xff, 0xfe]);
    request.extend(b"\r\ncontent-length: 1\r\n\r\nx");
    let reply = exchange(&witness.server.base, &request).await;
    assert_eq!(status(&reply), Some(400), "{reply}");
    witness.check().await;
}

#[tokio::test]
async fn bad_keys() {
    let witness = Witness::new().await;
    let guard = witness.server.guard();
    let long = "a".repeat(257);
    let token = unsigned(9, "a", lease_id());
    for key in [
        long.as_str(),
        "a//b",
        "a/",
        "/a",
        "a%2F%2Fb",
        "a%00b",
        "a%0Ab",
        "a%20b",
        "%ff",
        "a/%2e%2e/b",
        "a%2eb",
        "a%252eb",
    ] {
        // The router gets the path as it is; a well-behaved client would resolve a dotted one.
        let detail = guard.put(key, &token, "x").await.problem(Code::InvalidRequest).detail;
        assert!(detail.contains("object key"), "{key}: {detail}");
    }
    for key in ["..", "a/../a", "./a", "b/../a"] {
        let reply = guard.put(key, &token, "x").await;
        assert!(matches!(reply.status, 400 | 404), "{key}: {reply:?}");
    }
    witness.check().await;
}

#[tokio::test]
async fn bad_paths_and_methods() {
    let witness = Witness::new().await;
    let guard = witness.server.guard();
    let token = unsigned(9, "a", lease_id());
    let reply = guard.with(Method::POST, "a", &[("fencing-token", &token)], "x").await;
    reply.problem(Code::MethodNotAllowed);
    assert!(!reply.header("allow").is_empty());
    guard.0.get("/v1/nothing").await.problem(Code::NotFound);
    guard.0.get("/v1/fences/a%2F%2Fb").await.problem(Code::InvalidRequest);
    let nothing = guard.with(Method::PUT, "", &[("fencing-token", &token)], "x").await;
    assert!(matches!(nothing.status, 400 | 404), "{nothing:?}");
    witness.check().await;
}

#[tokio::test]
async fn a_body_that_breaks_off_writes_nothing() {
    let witness = Witness::with_socket().await;
    let token = unsigned(9, "a", lease_id());
    let mut stream = fence_tests::raw_http::connect(&witness.server.base).await;
    let head = format!(
        "PUT /v1/objects/a HTTP/1.1\r\nhost: localhost\r\nfencing-token: {token}\r\n\
         content-length: 1000\r\n\r\nhalf of it"
    );
    tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes()).await.unwrap();
    tokio::io::AsyncWriteExt::shutdown(&mut stream).await.unwrap();
    let reply = fence_tests::raw_http::read_reply(&mut stream).await;
    assert!(matches!(status(&reply), None | Some(400..=499)), "{reply}");
    witness.check().await;
}
