//! Requests that come over a connection in many pieces, or several at once.

use fence_protocol::LeaseId;
use fence_protocol::wire::lock::LockState;
use fence_tests::key_file::lease_id;
use fence_tests::raw_http::{connect, read_reply, status};
use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::soon;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

async fn on_redis() -> (Redis, Server) {
    let redis = Redis::start().await;
    let server = Setup::lock_server(&redis.url()).start().await;
    (redis, server)
}

/// The head of a request, with more lines; its body follows.
fn head(verb: &str, more: &str) -> String {
    format!(
        "POST /v1/locks/segment/{verb} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{more}\r\n\r\n"
    )
}

/// The body comes as chunks, so its pieces are read apart even if they arrive together.
#[tokio::test]
async fn a_body_in_twenty_pieces_is_one_request() {
    let (_redis, server) = on_redis().await;
    for verb in ["acquire", "renew", "release"] {
        let lease = lease_id();
        if verb != "acquire" {
            let body = json!({"lease_id": lease, "ttl_ms": 60_000});
            server.locks().acquire("segment", body).await.expect(200);
        }
        let body = json!({"lease_id": lease}).to_string();
        let mut stream = connect(&server.base).await;
        stream.write_all(head(verb, "transfer-encoding: chunked").as_bytes()).await.unwrap();
        let pieces = body.as_bytes().chunks(body.len().div_ceil(20));
        assert!(pieces.len() > 15, "{body}");
        for piece in pieces {
            let size = format!("{:x}\r\n", piece.len());
            let chunk = [size.as_bytes(), piece, b"\r\n"].concat();
            stream.write_all(&chunk).await.unwrap();
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
        let reply = read_reply(&mut stream).await;
        assert_eq!(status(&reply), Some(200), "{verb}: {reply}");
        assert!(reply.contains(&lease.to_string()), "{verb}: {reply}");
        if verb != "release" {
            server.locks().release("segment", lease).await.expect(200);
        }
    }
}

/// Returns all that a client receives which sends acquire, renew and release at once.
async fn pipelined(server: &Server, lease: LeaseId) -> String {
    let body = json!({"lease_id": lease}).to_string();
    let mut all = String::new();
    for (verb, end) in [("acquire", ""), ("renew", ""), ("release", "\r\nconnection: close")] {
        all += &head(verb, &format!("content-length: {}{end}", body.len()));
        all += &body;
    }
    let mut stream = connect(&server.base).await;
    stream.write_all(all.as_bytes()).await.unwrap();
    let mut replies = String::new();
    soon("the replies", stream.read_to_string(&mut replies)).await.unwrap();
    replies
}

#[tokio::test]
async fn requests_of_one_segment_are_carried_out_in_their_order() {
    let (_redis, server) = on_redis().await;
    for _ in 0..10 {
        let replies = pipelined(&server, lease_id()).await;
        assert_eq!(replies.matches("HTTP/1.1 200 OK\r\n").count(), 3, "{replies}");
        let at = |text: &str| replies.find(text).unwrap_or_else(|| panic!("{text} in {replies}"));
        assert!(at("\"waited_ms\"") < at("\"reason\":\"released\""), "{replies}");
        assert_eq!(server.locks().show("segment").await.state, LockState::Free);
    }
}
