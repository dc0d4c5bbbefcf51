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

/// Every reader must find the same end of a line and of a chunk; the origin gets none of the
/// client's own.
#[tokio::test]
async fn other_ends_of_lines_and_extensions_of_chunks_hide_no_request() {
    let lane = Lane::new(LONG).await;
    let own = token(50);
    let hidden = "PUT /hidden HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx";
    let chunked = format!(
        "PUT /doc HTTP/1.1\r\nhost: localhost\r\nfencing-token: {own}\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    for body in [
        "1;a=b\r\nx\r\n0;c\r\n\r\n",
        "1;a=\"\n0\r\n\r\nPUT /hidden HTTP/1.1\r\n\"\r\nx\r\n0\r\n\r\n",
        "1;\nx\r\n0\r\n\r\n",
        "1\nx\n0\n\n",
        "1 \r\nx\r\n0\r\n\r\n",
        "0001\r\nx\r\n0\r\nhost: b\r\ncontent-length: 9\r\n\r\n",
        "1\r\nx\r\n0\r\nfencing-token : 9\r\n\r\n",
    ] {
        exchange(lane.api.base(), format!("{chunked}{body}{hidden}").as_bytes()).await;
    }
    let last = chunked.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    let extended = last + "1;a=b\r\nx\r\n0\r\n\r\n";
    let reply = exchange(lane.api.base(), extended.as_bytes()).await;
    assert_eq!(status(&reply), Some(204), "{reply}");
    let lines = chunked.replace("transfer-encoding: chunked", "content-length: 1");
    exchange(lane.api.base(), format!("{}x{hidden}", lines.replace("\r\n", "\n")).as_bytes()).await;
    let split = format!("{}xPUT /hidden HTTP/1.1\n", lines.replace(" HTTP/1.1", "\nHTTP/1.1"));
    exchange(lane.api.base(), split.as_bytes()).await;
    for applied in lane.upstream.log() {
        assert_eq!((applied.path.as_str(), applied.value.as_str()), ("/doc", "x"));
        assert_eq!(applied.headers["content-length"], "1");
        assert_eq!(applied.headers["fencing-token"], own.as_str());
    }
}

/// Sends a head that announces a body and awaits permission for it; returns the first reply.
async fn expecting(lane: &Lane, headers: &str) -> (tokio::net::TcpStream, String) {
    let mut stream = fence_tests::raw_http::connect(lane.api.base()).await;
    let head = format!(
        "PUT /doc HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         expect: 100-continue\r\n{headers}\r\n"
    );
    tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    let reading = tokio::io::AsyncReadExt::read_exact(&mut stream, &mut first);
    soon("a reply", reading).await.unwrap();
    (stream, String::from_utf8_lossy(&first).into_owned())
}

/// A refusal by the head alone comes before the client sends a body.
#[tokio::test]
async fn a_client_that_waits_for_permission_sends_a_body_only_where_it_is_wanted() {
    let lane = Lane::new(LONG).await;
    let own = token(50);
    let other = unsigned(50, "other", lease_id());
    for (headers, refusal) in [
        ("content-length: 1\r\n".to_owned(), "HTTP/1.1 428"),
        (format!("content-length: 1\r\nfencing-token: {other}\r\n"), "HTTP/1.1 403"),
        (format!("content-length: 99999999\r\nfencing-token: {own}\r\n"), "HTTP/1.1 413"),
        (
            format!("content-length: 1\r\nx-original-url: /b\r\nfencing-token: {own}\r\n"),
            "HTTP/1.1 400",
        ),
    ] {
        let (_stream, first) = expecting(&lane, &headers).await;
        assert_eq!(first, refusal, "{headers}");
    }
    assert!(lane.upstream.log().is_empty(), "{:?}", lane.upstream.log());
    let (mut stream, first) =
        expecting(&lane, &format!("content-length: 1\r\nfencing-token: {own}\r\n")).await;
    assert_eq!(first, "HTTP/1.1 100");
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"x").await.unwrap();
    let reply = fence_tests::raw_http::read_reply(&mut stream).await;
    assert!(reply.contains("HTTP/1.1 204"), "{reply}");
    let log = lane.upstream.log();
    assert_eq!((log.len(), log[0].value.as_str()), (1, "x"));
    assert!(!log[0].headers.contains_key("expect"), "the guard has the whole body: {:?}", log[0]);
}

/// An origin that does not read it would take it for the connection's next request.
#[tokio::test]
async fn a_body_of_a_read_is_refused() {
    let lane = Lane::new(LONG).await;
    let own = token(50);
    let hidden = "PUT /hidden HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx";
    for method in ["GET", "HEAD", "OPTIONS"] {
        let length = format!("content-length: {}\r\n\r\n{hidden}", hidden.len());
        let chunks = format!("transfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}");
        for body in [length, chunks] {
            let head =
                format!("{method} /doc HTTP/1.1\r\nhost: localhost\r\nfencing-token: {own}\r\n");
            let reply = exchange(lane.api.base(), format!("{head}{body}").as_bytes()).await;
            assert_eq!(status(&reply), Some(400), "{method}: {reply}");
        }
    }
    assert!(lane.upstream.log().is_empty(), "{:?}", lane.upstream.log());
}
