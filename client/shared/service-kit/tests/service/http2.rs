//! HTTP/2 at a listener: its requests, what is refused, and what a client may not do for long.

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use service_kit::listener::ListenOptions;
use tokio::sync::Notify;

use crate::frames::{END_STREAM, Http2Client, Http2Reply, PREFACE, code, kind, request};
use crate::harness::{Server, get_request, in_time, patient, start, start_with};

pub(crate) fn options() -> ListenOptions {
    ListenOptions { http2: true, ..patient() }
}

pub(crate) fn ok(body: &str) -> Result<Http2Reply, Option<u32>> {
    Ok(Http2Reply { status: 200, body: body.to_owned() })
}

pub(crate) fn status(reply: Result<Http2Reply, Option<u32>>) -> Result<u16, Option<u32>> {
    reply.map(|reply| reply.status)
}

pub(crate) async fn connect(server: &Server) -> Http2Client {
    Http2Client::connect(server.addr, &[]).await
}

#[tokio::test]
async fn requests_share_a_connection() {
    let server = start(options()).await;
    let mut client = connect(&server).await;
    client.request(1, "GET", "/wait").await;
    in_time("the request", server.arrived.notified()).await;
    assert_eq!(client.exchange(3, &request("GET", "/hello")).await, ok("hello"));
    server.gate.notify_one();
    assert_eq!(client.reply(1).await, ok("done"));
    assert_eq!(server.get("/hello").await.status, 200, "HTTP/1 is spoken beside it");
    assert_eq!(client.exchange(5, &request("HEAD", "/hello")).await, ok(""));
}

#[tokio::test]
async fn the_preface_may_come_in_pieces() {
    let server = start(options()).await;
    let mut client = Http2Client::silent(server.addr).await;
    for byte in PREFACE {
        client.bytes(&[*byte]).await;
        tokio::task::yield_now().await;
    }
    client.send(kind::SETTINGS, 0, 0, &[]).await;
    assert_eq!(client.exchange(1, &request("GET", "/hello")).await, ok("hello"));
    let mut client = server.connect().await;
    client.send("P").await;
    client.send("RI").await;
    client.send(get_request("/hello").replacen("GET", "", 1).as_str()).await;
    assert_eq!(client.reply().await.status, 405, "a method that begins like the preface");
}

#[tokio::test]
async fn a_listener_without_http2_speaks_http1_alone() {
    let server = start(patient()).await;
    let mut client = connect(&server).await;
    assert!(client.exchange(1, &request("GET", "/hello")).await.is_err());
}

/// A server of HTTP/1 behind this one could take it for something else.
#[tokio::test]
async fn what_http1_would_read_differently_is_refused() {
    let server = start(options()).await;
    let get = request("GET", "/hello");
    for more in [
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        ("keep-alive", "5"),
        ("proxy-connection", "close"),
        ("upgrade", "h2c"),
        ("te", "gzip"),
        ("X-Upper", "1"),
        ("a b", "1"),
        ("a\r\nb", "1"),
        ("x-value", "1\r\nhost: other"),
        ("x-value", "1\nx: y"),
        ("x-value", "1\0"),
        ("host", "other.example"),
        (":path", "/wait"),
        (":protocol", "websocket"),
        (":unknown", "1"),
        ("content-length", "1x"),
        ("content-length", "3"),
    ] {
        let mut client = connect(&server).await;
        let fields: Vec<_> = get.into_iter().chain([more]).collect();
        let reply = client.exchange(1, &fields).await;
        let refused = matches!(status(reply.clone()), Err(Some(code::PROTOCOL_ERROR)) | Ok(400));
        assert!(refused, "{more:?}: {reply:?}");
    }
    let mut client = connect(&server).await;
    let fields: Vec<_> = [("te", "trailers"), ("host", "LOCALHOST")].into();
    let fields: Vec<_> = get.into_iter().chain(fields).collect();
    assert_eq!(client.exchange(1, &fields).await, ok("hello"));
}

#[tokio::test]
async fn a_request_names_its_host_and_a_path() {
    let server = start(options()).await;
    let send = async |method, authority, path| {
        let mut client = connect(&server).await;
        let fields =
            [(":method", method), (":scheme", "http"), (":authority", authority), (":path", path)];
        status(client.exchange(1, &fields).await)
    };
    for path in ["", "hello", "*", "http://localhost/hello", "hello#a", "/a b"] {
        let reply = send("GET", "localhost", path).await;
        assert!(matches!(reply, Ok(400) | Err(Some(code::PROTOCOL_ERROR))), "{path}: {reply:?}");
    }
    assert_eq!(send("GET", "user@localhost", "/hello").await, Ok(400));
    assert_eq!(send("GET", "evil.example", "/hello").await, Ok(421));
    let mut client = connect(&server).await;
    let fields = [(":method", "GET"), (":scheme", "http"), (":path", "/hello")];
    assert_eq!(status(client.exchange(1, &fields).await), Ok(400));
    let fields = [(":method", "CONNECT"), (":authority", "localhost")];
    assert_eq!(status(client.exchange(3, &fields).await), Ok(404));
    let late = [(":method", "GET"), (":scheme", "http"), ("x", "y"), (":path", "/hello")];
    assert!(client.exchange(5, &late).await.is_err());
}

#[tokio::test]
async fn a_body_has_the_stated_length() {
    let server = start(options()).await;
    for (length, body, expected) in [
        ("5", "12345", Ok(200)),
        ("5", "1234", Err(Some(code::PROTOCOL_ERROR))),
        ("5", "123456", Err(Some(code::PROTOCOL_ERROR))),
    ] {
        let mut client = connect(&server).await;
        let fields = request("POST", "/bytes").into_iter().chain([("content-length", length)]);
        client.head(1, 0, &fields.collect::<Vec<_>>()).await;
        client.send(kind::DATA, END_STREAM, 1, body.as_bytes()).await;
        assert_eq!(status(client.reply(1).await), expected, "{length} {body}");
    }
    // A reset is no end, whatever its code says.
    for (path, reason) in [("/bytes", code::NO_ERROR), ("/stream", code::CANCEL)] {
        let mut client = connect(&server).await;
        client.head(1, 0, &request("POST", path)).await;
        client.send(kind::DATA, 0, 1, b"12345").await;
        client.send(kind::RST_STREAM, 0, 1, &reason.to_be_bytes()).await;
        client.head(3, END_STREAM, &request("GET", "/hello")).await;
        let first = in_time("a head", client.next(kind::HEADERS)).await.unwrap();
        assert_eq!(first.stream, 3, "a body that was reset was taken for a whole one");
    }
}

#[tokio::test]
async fn a_client_that_expects_100_gets_it_when_its_body_is_read() {
    let server = start(options()).await;
    let mut client = connect(&server).await;
    let fields: Vec<_> =
        request("POST", "/bytes").into_iter().chain([("expect", "100-continue")]).collect();
    client.head(1, 0, &fields).await;
    assert_eq!(status(client.reply(1).await), Ok(100));
    client.send(kind::DATA, END_STREAM, 1, b"123").await;
    assert_eq!(client.reply(1).await, ok("3"));
}

/// One body that is not read must not take the window of the others.
#[tokio::test]
async fn a_body_that_waits_holds_up_no_other() {
    let routes = Router::new().route("/wait", post(std::future::pending::<()>));
    let server = start_with(options(), routes).await;
    let mut client = connect(&server).await;
    // Only then the windows are known.
    assert_eq!(client.exchange(1, &request("GET", "/hello")).await, ok("hello"));
    let most = vec![b'x'; 16 * 1024];
    let send = async |client: &mut Http2Client, stream, path, frames: usize| {
        client.head(stream, 0, &request("POST", path)).await;
        for sent in 1..=frames {
            let flags = if sent == frames && path != "/wait" { END_STREAM } else { 0 };
            client.send(kind::DATA, flags, stream, &most).await;
        }
    };
    for stream in 1..=8 {
        send(&mut client, 2 * stream + 1, "/wait", 3).await;
    }
    send(&mut client, 99, "/bytes", 3).await;
    assert_eq!(client.reply(99).await, ok("49152"));
}

#[tokio::test]
async fn a_handler_ends_with_the_stream_that_its_client_resets() {
    struct NotifyDrop(Arc<Notify>);
    impl Drop for NotifyDrop {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let gone = Arc::new(Notify::new());
    let begun = Arc::new(Notify::new());
    let handler = {
        let gone = gone.clone();
        let begun = begun.clone();
        async move || {
            let _alive = NotifyDrop(gone);
            begun.notify_one();
            std::future::pending::<()>().await;
        }
    };
    let server = start_with(options(), Router::new().route("/gone", get(handler))).await;
    let mut client = connect(&server).await;
    client.request(1, "GET", "/gone").await;
    in_time("the request", begun.notified()).await;
    client.send(kind::RST_STREAM, 0, 1, &code::CANCEL.to_be_bytes()).await;
    in_time("the end of the handler", gone.notified()).await;
    client.request(3, "GET", "/gone").await;
    in_time("the request", begun.notified()).await;
    drop(client);
    in_time("the end of the handler", gone.notified()).await;
}
