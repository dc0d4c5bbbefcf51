//! Slow, silent, greedy and broken clients.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use futures_util::stream;
use service_kit::listener::ListenOptions;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Notify;

use crate::harness::{NEVER, SOON, get_request, in_time, patient, post_request, start, start_with};

#[tokio::test]
async fn a_slow_head_is_cut_and_others_go_on() {
    let server = start(ListenOptions { header_timeout: SOON, ..patient() }).await;
    let mut slow = server.connect().await;
    let (mut reader, mut writer) = slow.stream.split();
    let trickle = async {
        for byte in b"GET /hello HTTP/1.1\r\nx-slow: ".iter().chain(std::iter::repeat(&b'a')) {
            if writer.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(SOON / 10).await;
        }
    };
    let mut seen = String::new();
    let closed = tokio::io::AsyncReadExt::read_to_string(&mut reader, &mut seen);
    tokio::select! {
        // The end may be a reset, because the client went on sending.
        _ = in_time("refusing a slow head", closed) => {}
        () = trickle => {}
    }
    assert!(seen.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{seen:?}");
    assert!(seen.contains("\"code\":\"request-timeout\""), "{seen:?}");
    assert_eq!(server.get("/hello").await.status, 200);
}

#[tokio::test]
async fn a_silent_new_connection_is_cut() {
    let server = start(ListenOptions { header_timeout: SOON, ..patient() }).await;
    assert_eq!(server.connect().await.closed().await, "");
}

#[tokio::test]
async fn a_resting_connection_is_cut_by_the_idle_timeout() {
    let server = start(ListenOptions { idle_timeout: SOON, ..patient() }).await;
    let mut client = server.connect().await;
    assert_eq!(client.request(&get_request("/hello")).await.status, 200);
    assert_eq!(client.closed().await, "");
}

#[tokio::test]
async fn rest_is_not_part_of_the_next_head() {
    let server = start(ListenOptions { header_timeout: SOON, ..patient() }).await;
    let mut resting = server.connect().await;
    assert_eq!(resting.request(&get_request("/hello")).await.status, 200);
    // One that began later is cut for its head; the resting one is still there.
    assert_eq!(server.connect().await.closed().await, "");
    assert_eq!(resting.request(&get_request("/hello")).await.status, 200);
    // But its next head has the same deadline.
    resting.send("GET /hello").await;
    resting.reply().await.detail(408, "request-timeout");
    assert_eq!(resting.closed().await, "");
}

#[tokio::test]
async fn a_request_in_flight_is_not_cut_by_head_or_idle_timeouts() {
    let options = ListenOptions { header_timeout: SOON, idle_timeout: SOON, ..patient() };
    let server = start(options).await;
    let mut waiting = server.connect().await;
    waiting.send(&get_request("/wait")).await;
    in_time("the request", server.arrived.notified()).await;
    // Others come and are cut meanwhile.
    for _ in 0..3 {
        assert_eq!(server.connect().await.closed().await, "");
    }
    server.gate.notify_one();
    assert_eq!(waiting.reply().await.body, "done");
}

#[tokio::test]
async fn a_slow_body_is_answered_408_and_cut() {
    let server = start(ListenOptions { body_timeout: SOON, ..patient() }).await;
    for path in ["/order", "/bytes", "/stream"] {
        let mut client = server.connect().await;
        let json = "content-type: application/json\r\n";
        client.send(&post_request(path, json, "").replace("length: 0", "length: 900")).await;
        let (reader, mut writer) = client.stream.into_split();
        let trickle = tokio::runtime::Handle::current().spawn(async move {
            while writer.write_all(b" ").await.is_ok() {
                tokio::time::sleep(SOON / 10).await;
            }
            writer
        });
        let mut reader = reader;
        let mut text = String::new();
        let read = tokio::io::AsyncReadExt::read_to_string(&mut reader, &mut text);
        // The end may be a reset, because the client went on sending.
        let _ = in_time("cutting a slow body", read).await;
        trickle.abort();
        assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
        assert!(text.contains("\"code\":\"request-timeout\""), "{text}");
        assert!(text.contains("bytes of the body arrived"), "{text}");
    }
    assert_eq!(server.get("/hello").await.status, 200);
}

/// Much that was sent at once earns no long rest: what has arrived is held in memory meanwhile.
#[tokio::test]
async fn a_body_that_stops_is_answered_408_however_much_has_arrived() {
    let options = ListenOptions { body_timeout: SOON, body_bytes_per_sec_min: 1, ..patient() };
    let server = start(options).await;
    let mut client = server.connect().await;
    client.send(&post_request("/bytes", "", "").replace("length: 0", "length: 100000")).await;
    client.send(&"x".repeat(99_000)).await;
    let detail = client.reply().await.detail(408, "request-timeout");
    assert!(detail.contains("99000 bytes of the body arrived"), "{detail}");
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut() {
    let gone = Arc::new(Notify::new());
    struct NotifyDrop(Arc<Notify>);
    impl Drop for NotifyDrop {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let notify = gone.clone();
    let flood = async move || {
        let alive = NotifyDrop(notify.clone());
        Body::from_stream(stream::repeat_with(move || {
            let _alive = &alive;
            Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 16 * 1024]))
        }))
    };
    let options = ListenOptions { write_timeout: SOON, ..patient() };
    let server = start_with(options, Router::new().route("/flood", get(flood))).await;
    let mut client = server.connect().await;
    client.send(&get_request("/flood")).await;
    in_time("cutting a client that reads nothing", gone.notified()).await;
}

#[tokio::test]
async fn heads_that_are_no_http_or_too_large_are_refused() {
    let many: String = (0..100).map(|n| format!("x-{n}: 1\r\n")).collect();
    let large = format!("x-large: {}\r\n", "a".repeat(40_000));
    let cases = [
        ("garbage\r\n\r\n".to_owned(), 400),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n".to_owned(), 400),
        ("GET /hello HTTP/9.9\r\n\r\n".to_owned(), 400),
        ("GET /hello HTTP/1.1\r\nbad header\r\n\r\n".to_owned(), 400),
        ("POST /bytes HTTP/1.1\r\ncontent-length: nope\r\n\r\n".to_owned(), 400),
        (format!("GET /hello HTTP/1.1\r\n{many}\r\n"), 431),
        (format!("GET /hello HTTP/1.1\r\n{large}\r\n"), 431),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(40_000)), 431),
    ];
    let server = start(patient()).await;
    for (request, status) in cases {
        let mut client = server.connect().await;
        let reply = client.request(&request).await;
        let start = &request[..request.len().min(30)];
        assert_eq!(reply.status, status, "{start:?}");
        assert_eq!(reply.body, "", "{start:?}");
        assert_eq!(client.closed().await, "");
    }
}

#[tokio::test]
async fn garbage_behind_a_good_request_costs_the_good_one_nothing() {
    let server = start(patient()).await;
    let mut client = server.connect().await;
    client.send(&format!("{}garbage\r\n\r\n", get_request("/hello"))).await;
    assert_eq!(client.reply().await.body, "hello");
    assert_eq!(client.reply().await.status, 400);
    assert_eq!(client.closed().await, "");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = start(patient()).await;
    let mut client = server.connect().await;
    let both = get_request("/hello") + &post_request("/bytes", "", "123") + &get_request("/none");
    client.send(&both).await;
    assert_eq!(client.reply().await.body, "hello");
    assert_eq!(client.reply().await.body, "3");
    assert_eq!(client.reply().await.status, 404);
}

#[tokio::test]
async fn connections_over_the_limit_wait_for_their_turn() {
    let server = start(ListenOptions { max_connections: 2, ..patient() }).await;
    let mut one = server.connect().await;
    let mut two = server.connect().await;
    for client in [&mut one, &mut two] {
        assert_eq!(client.request(&get_request("/hello")).await.status, 200);
    }
    let mut three = server.connect().await;
    three.send(&get_request("/wait")).await;
    // A server that had accepted the third would have handled it by the end of these.
    for _ in 0..50 {
        assert_eq!(one.request(&get_request("/hello")).await.status, 200);
        assert!(three.stream.try_read(&mut [0; 1]).is_err(), "the third must wait");
    }
    let metrics = two.request(&get_request("/metrics")).await.body;
    assert!(!metrics.contains("route=\"/wait\""), "the third was accepted over the limit");
    assert!(metrics.contains("fencepost_http_requests_in_flight 1\n"), "only this one: {metrics}");
    drop(one);
    in_time("the third one's turn", server.arrived.notified()).await;
    server.gate.notify_one();
    assert_eq!(three.reply().await.body, "done");
    assert_eq!(NEVER, patient().idle_timeout, "no timeout freed the place");
}
