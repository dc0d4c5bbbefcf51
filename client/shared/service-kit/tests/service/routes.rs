//! Request ids and the routes that every service has.

use service_kit::health::Status;

use crate::harness::{patient, start};

#[tokio::test]
async fn a_sane_request_id_is_kept_and_others_are_replaced() {
    let server = start(patient()).await;
    let ask = async |id: &str| {
        let request = format!("GET /id HTTP/1.1\r\nhost: localhost\r\nx-request-id: {id}\r\n\r\n");
        let reply = server.request(&request).await;
        assert_eq!(reply.header("x-request-id"), Some(reply.body.as_str()), "what handlers see");
        reply.body
    };
    assert_eq!(ask("client.1_A-z").await, "client.1_A-z");
    for bad in ["", "a b", "a\"b", "<x>", &"a".repeat(65)] {
        let id = ask(bad).await;
        assert_ne!(id, bad);
        assert_eq!(id.len(), 21, "{id}");
    }
    let one = server.get("/id").await;
    let two = server.get("/id").await;
    assert_ne!(one.body, two.body);
    let request = "GET /none HTTP/1.1\r\nhost: localhost\r\nx-request-id: mine\r\n\r\n";
    assert_eq!(server.request(request).await.problem()["request_id"], "mine");
}

#[tokio::test]
async fn every_service_reports_its_health() {
    let server = start(patient()).await;
    assert_eq!(server.get("/livez").await.body, "ok\n");
    assert_eq!(server.get("/readyz").await.body, "ok\n");
    let version: serde_json::Value =
        serde_json::from_str(&server.get("/version").await.body).unwrap();
    assert_eq!(version["name"], "test-service");

    let health = &server.kit.health;
    health.set("store", Status::Ok);
    health.set("clock", Status::Warn("stepped by 3 s".to_owned()));
    let reply = server.get("/readyz?verbose").await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.body, "[!]clock warning: stepped by 3 s\n[+]store ok\nready\n");
    health.set("store", Status::Failing("unreachable".to_owned()));
    let reply = server.get("/readyz").await;
    assert_eq!((reply.status, reply.body.as_str()), (503, "[-]store failed: unreachable\n"));
    assert_eq!(server.get("/livez").await.status, 200, "alive, though not ready");
}

#[tokio::test]
async fn shutting_down_is_not_ready() {
    let server = start(patient()).await;
    let mut client = server.connect().await;
    // The connection is busy with this one when shutdown begins, so the next is still answered.
    client.send("GET /wait HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    server.arrived.notified().await;
    let report = server.kit.health.report(server.kit.tasks.is_shutting_down());
    assert!(report.ready);
    server.kit.tasks.begin_shutdown();
    let report = server.kit.health.report(server.kit.tasks.is_shutting_down());
    assert!(!report.ready);
    server.gate.notify_one();
    assert_eq!(client.reply().await.status, 200);
}

#[tokio::test]
async fn requests_are_counted_by_route_and_not_by_path() {
    let server = start(patient()).await;
    for name in ["a", "b", "c"] {
        server.post(&format!("/locks/{name}/acquire"), "", "").await;
    }
    for path in ["/no", "/such", "/path"] {
        server.get(path).await;
    }
    server
        .request("BREW /hello HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .detail(405, "method-not-allowed");
    let reply = server.get("/metrics").await;
    let content_type = reply.header("content-type").unwrap();
    assert!(content_type.starts_with("application/openmetrics-text"), "{content_type}");
    for line in [
        "requests_total{method=\"POST\",route=\"/locks/{lock}/acquire\",status=\"200\"} 3\n",
        "requests_total{method=\"GET\",route=\"none\",status=\"404\"} 3\n",
        "requests_total{method=\"other\",route=\"/hello\",status=\"405\"} 1\n",
        "request_duration_seconds_count{route=\"/locks/{lock}/acquire\"} 3\n",
        "requests_in_flight 1\n",
    ] {
        let line = format!("\nfencepost_http_{line}");
        assert!(reply.body.contains(&line), "{line} is not in:\n{}", reply.body);
    }
    assert!(!reply.body.contains("/locks/a"), "{}", reply.body);
}
