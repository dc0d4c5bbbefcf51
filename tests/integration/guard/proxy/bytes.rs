//! Requests that two readers could take differently: the guard's reading is the one that is
//! forwarded, or nothing is.

use super::*;

/// Sends a PUT of `/doc` with these header lines and body, and behind it a second request.
async fn send(lane: &Lane, version: &str, headers: &str, body: &str) -> String {
    let token = token(50);
    let hidden = "PUT /hidden HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx";
    let request = format!(
        "PUT /doc {version}\r\nhost: localhost\r\nfencing-token: {token}\r\n{headers}\r\n{body}{hidden}"
    );
    exchange(lane.api.base(), request.as_bytes()).await
}

#[tokio::test]
async fn ambiguous_requests_are_refused_or_mean_one_thing() {
    let lane = Lane::new(LONG).await;
    let chunked = "transfer-encoding: chunked\r\n";
    for (headers, body) in [
        ("content-length: 1\r\ncontent-length: 2\r\n", "x"),
        ("content-length: +1\r\n", "x"),
        ("content-length: -1\r\n", "x"),
        ("content-length: 0x1\r\n", "x"),
        ("content-length : 1\r\n", "x"),
        ("content-length: 1\r\n transfer-encoding: chunked\r\n", "x"),
        ("x-folded: a\r\n\tb\r\ncontent-length: 1\r\n", "x"),
        ("x-nul: a\0b\r\ncontent-length: 1\r\n", "x"),
        ("x-cr: a\rb\r\ncontent-length: 1\r\n", "x"),
        ("transfer-encoding: gzip, chunked\r\n", "1\r\nx\r\n0\r\n\r\n"),
        ("transfer-encoding: chunked, identity\r\n", "1\r\nx\r\n0\r\n\r\n"),
        ("transfer-encoding: xchunked\r\n", "1\r\nx\r\n0\r\n\r\n"),
        ("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", "1\r\nx\r\n0\r\n\r\n"),
        (chunked, "zz\r\nx\r\n0\r\n\r\n"),
        (chunked, "-1\r\nx\r\n0\r\n\r\n"),
        (chunked, "fffffffffffffffff1\r\nx\r\n0\r\n\r\n"),
        (chunked, "1\r\nxy\r\n0\r\n\r\n"),
        ("upgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 1\r\n", "x"),
    ] {
        let reply = send(&lane, "HTTP/1.1", headers, body).await;
        assert!(matches!(status(&reply), None | Some(400..=499)), "{headers:?} {body:?}: {reply}");
    }
    let reply = send(&lane, "HTTP/1.0", chunked, "1\r\nx\r\n0\r\n\r\n").await;
    assert!(matches!(status(&reply), None | Some(400..=499)), "HTTP/1.0, chunked: {reply}");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let reply = exchange(lane.api.base(), preface).await;
    assert!(matches!(status(&reply), None | Some(400..=499)), "HTTP/2: {reply}");
    assert!(lane.upstream.log().is_empty(), "{:?}", lane.upstream.log());
}

/// The chunks count, and the length is not passed on; what follows them is a request of its own,
/// which lacks a token.
#[tokio::test]
async fn a_length_beside_chunks_hides_no_request() {
    let lane = Lane::new(LONG).await;
    for headers in [
        "content-length: 90\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 90\r\n",
    ] {
        send(&lane, "HTTP/1.1", headers, "1\r\nx\r\n0\r\n\r\n").await;
    }
    let trailers = "transfer-encoding: chunked\r\ntrailer: fencing-token\r\n";
    send(&lane, "HTTP/1.1", trailers, "1\r\nx\r\n0\r\nfencing-token: 99\r\nx-late: 1\r\n\r\n")
        .await;
    for applied in lane.upstream.log() {
        assert_eq!((applied.path.as_str(), applied.value.as_str()), ("/doc", "x"));
        assert_eq!(applied.headers["content-length"], "1");
        for name in ["transfer-encoding", "trailer", "x-late"] {
            assert!(!applied.headers.contains_key(name), "{name}: {:?}", applied.headers);
        }
    }
    assert!(!lane.upstream.log().is_empty());
}
