//! Every refusal is a problem with a request id, and costs nothing else.

use axum::http::StatusCode;
use socket2::SockRef;

use crate::harness::{get_request, patient, post_request, start};

#[tokio::test]
async fn unknown_paths_and_methods_are_problems() {
    let server = start(patient()).await;
    let detail = server.get("/nowhere").await.detail(404, "not-found");
    assert_eq!(detail, "there is nothing at GET /nowhere");
    let reply = server.post("/hello", "", "").await;
    let detail = reply.detail(405, "method-not-allowed");
    assert_eq!(detail, "/hello does not know the method POST");
    assert_eq!(reply.header("allow"), Some("GET,HEAD"));
    server
        .request("BREW /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .detail(404, "not-found");
}

#[tokio::test]
async fn json_bodies_are_read_leniently_and_checked_strictly() {
    let server = start(patient()).await;
    let post = async |headers: &str, body: &str| server.post("/order", headers, body).await;
    for (headers, body, want) in [
        ("", "", "0 null"),
        ("", " \n", "0 null"),
        ("content-type: application/json; charset=utf-8\r\n", "{\"count\":3}", "3 null"),
        ("content-type: application/merge-patch+json\r\n", "{\"note\":[1]}", "0 [1]"),
        ("content-type: application/x-www-form-urlencoded\r\n", "{\"count\":4}", "4 null"),
        ("content-type: text/plain;charset=UTF-8\r\n", "{\"count\":5}", "5 null"),
    ] {
        let reply = post(headers, body).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, want), "{headers:?} {body:?}");
    }
    for (body, part) in [
        ("{\"count\":", "not JSON: EOF while parsing"),
        ("hello", "not JSON: expected value at line 1 column 1"),
        (
            "{\"count\":-1}",
            "invalid value: integer `-1`, expected a whole number from 0 at line 1 column 11",
        ),
        ("{\"count\":\"x\"}", "invalid type: string \"x\", expected a whole number"),
        ("{\"cuont\":1}", "unknown field `cuont`, expected `count` or `note`"),
        ("{} {}", "trailing characters at line 1 column 4"),
        ("{\"note\":\"\\ud800\"}", "not JSON"),
    ] {
        let detail = post("", body).await.detail(400, "invalid-request");
        assert!(detail.contains(part), "{body}: {detail}");
    }
    let deep = format!("{{\"note\":{}}}", "[".repeat(200) + &"]".repeat(200));
    let detail = post("", &deep).await.detail(400, "invalid-request");
    assert!(detail.contains("recursion limit exceeded"), "{detail}");
    let detail = post("content-type: text/xml\r\n", "<a/>").await;
    let detail = detail.detail(415, "unsupported-media-type");
    assert!(detail.contains("text/xml"), "{detail}");
}

#[tokio::test]
async fn large_bodies_are_refused_with_the_limit() {
    let server = start(patient()).await;
    let json = format!("{{\"note\":\"{}\"}}", "x".repeat(2000));
    let reply = server.post("/order", "content-type: application/json\r\n", &json).await;
    assert!(reply.detail(413, "payload-too-large").contains("1000 bytes"));
    let declared = post_request("/bytes", "", "").replace("length: 0", "length: 200001");
    let reply = server.request(&declared).await;
    assert!(reply.detail(413, "payload-too-large").contains("200000 bytes"));
    let fits = server.post("/bytes", "", &"x".repeat(200_000)).await;
    assert_eq!((fits.status, fits.body.as_str()), (200, "200000"));
}

#[tokio::test]
async fn a_body_of_unknown_length_is_counted() {
    let server = start(patient()).await;
    let chunk = format!("{:x}\r\n{}\r\n", 60_000, "x".repeat(60_000));
    for path in ["/bytes", "/stream"] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        let fits = format!("{head}{}0\r\n\r\n", chunk.repeat(3));
        assert_eq!(server.request(&fits).await.body, "180000");
        let too_large = format!("{head}{}0\r\n\r\n", chunk.repeat(4));
        server.request(&too_large).await.detail(413, "payload-too-large");
        let broken = format!("{head}zz\r\n");
        server.request(&broken).await.detail(400, "invalid-request");
    }
}

#[tokio::test]
async fn a_client_that_is_still_sending_gets_to_read_its_refusal() {
    let server = start(patient()).await;
    for bytes in [900_000, 3_000_000, 20_000_000, 3_000_000, 900_000] {
        let mut client = server.connect().await;
        if bytes < 1_000_000 {
            // The kernel holds little of what is sent, so most is unsent when the reply comes.
            SockRef::from(&client.stream).set_send_buffer_size(8 * 1024).unwrap();
        }
        let reply = client.request(&post_request("/bytes", "", &"x".repeat(bytes))).await;
        reply.detail(413, "payload-too-large");
    }
}

#[tokio::test]
async fn queries_and_names_are_checked() {
    let server = start(patient()).await;
    assert_eq!(server.get("/page?limit=5").await.body, "5");
    let detail = server.get("/page?limit=many").await.detail(400, "invalid-request");
    assert!(detail.contains("limit=many"), "{detail}");
    for path in ["/locks/orders%2F42/acquire", "/locks/orders/42/acquire"] {
        assert_eq!(server.post(path, "", "").await.body, "lock orders/42", "{path}");
    }
    assert_eq!(server.get("/locks/a/b/c?x=/y").await.body, "lock a/b/c");
    for path in ["/locks/../metrics", "/locks/%2e%2e/metrics", "/locks/a//b", "/locks/a/"] {
        server.get(path).await.detail(400, "invalid-request");
    }
    server.get("/locks/%ff").await.detail(400, "invalid-request");
    server.get("/locks/").await.detail(404, "not-found");
}

#[tokio::test]
async fn a_panic_is_a_500_and_the_process_continues() {
    let server = start(patient()).await;
    let mut client = server.connect().await;
    client.request(&get_request("/panic")).await.detail(500, "internal");
    assert_eq!(client.request(&get_request("/hello")).await.body, "hello", "the same connection");
    let metrics = server.get("/metrics").await.body;
    assert!(metrics.contains("fencepost_http_handler_panics_total 1\n"), "{metrics}");
    let status = StatusCode::INTERNAL_SERVER_ERROR.as_u16();
    let counted = format!(
        "fencepost_http_requests_total{{method=\"GET\",route=\"/panic\",status=\"{status}\"}} 1\n"
    );
    assert!(metrics.contains(&counted), "{metrics}");
}
