//! TLS at the HTTP listeners of both servers, and addresses beyond loopback.

mod handshakes;
mod principals;
mod reach;
mod reload;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use fence_tests::api::{Api, Guard, Locks};
use fence_tests::certificates::Certificates;
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::raw_http::{exchange, status};
use fence_tests::servers::{Server, Setup};
use fence_tests::upstream::Upstream;
use fence_tests::wait::{soon, until_true};
use serde_json::json;
use service_kit::tls::{TlsOptions, TlsStream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

fn with_tls(setup: Setup, made: &Certificates) -> Setup {
    made.listener().iter().fold(setup, |setup, flag| setup.arg(flag))
}

fn lock_server(made: &Certificates) -> Setup {
    with_tls(Setup::lock_server("memory:"), made)
}

/// The API of a server, for a client that shows the certificate of this file.
fn api(server: &Server, made: &Certificates, client: Option<&str>) -> Api {
    Api::with(&server.base, made.https(client).build().unwrap())
}

/// A value of `GET /metrics`.
async fn metric(api: &Api, name: &str) -> i64 {
    let body = api.get("/metrics").await.expect(200).body;
    let text = String::from_utf8_lossy(&body).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("fencepost_{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
}

/// A connection in TLS whose bytes the test chooses.
async fn connect(server: &Server, made: &Certificates) -> TlsStream<TcpStream> {
    let tls = TlsOptions::default().with_ca(&made.file("ca.pem")).unwrap();
    let stream = TcpStream::connect(server.address()).await.unwrap();
    tls.client(b"http/1.1").unwrap().connect("localhost", stream).await.unwrap()
}

/// `/readyz?verbose`, as text.
async fn readiness(api: &Api) -> String {
    String::from_utf8_lossy(&api.get("/readyz?verbose").await.expect(200).body).into_owned()
}

/// API of both, and the reverse proxy.
#[tokio::test]
async fn every_http_listener_speaks_tls() {
    let made = Certificates::new();
    let server = lock_server(&made).start().await;
    assert!(server.base.starts_with("https://"), "{}", server.base);
    let locks = Locks(api(&server, &made, None));
    let lease = locks.grant("a", 60_000).await;
    assert!(metric(&locks.0, "tls_certificate_expires_timestamp_seconds").await > 1_700_000_000);
    assert!(readiness(&locks.0).await.contains("[+]tls ok"));

    let guard = with_tls(Setup::fenced_store("memory:"), &made).start().await;
    let guard = Guard(api(&guard, &made, None));
    guard.put("a", &unsigned(lease.token.get(), "a", lease.lease_id), "new").await.expect(201);

    let upstream = Upstream::start().await;
    let state = tempfile::tempdir().unwrap();
    let state = state.path().to_str().unwrap();
    let proxy = Setup::bare("fenced-store").args(&[
        "--unsigned",
        "--proxy-listen=127.0.0.1:0",
        "--max-request-lifetime=5s",
        &format!("--upstream={}", upstream.base()),
        &format!("--state={state}"),
    ]);
    let mut proxy = with_tls(proxy, &made).start().await;
    let base = proxy.proxy().await;
    assert!(base.starts_with("https://"), "{base}");
    let proxy = Guard(Api::with(&base, made.https(None).build().unwrap()));
    let header = unsigned(7, "a", lease_id());
    let put = [("fencing-token", header.as_str())];
    proxy.0.send(http::Method::PUT, "/a", &put, "new").await.expect(204);
}

/// A client refuses each certificate that it must not trust.
#[tokio::test]
async fn a_certificate_is_for_its_names_its_time_and_its_ca() {
    let made = Certificates::new();
    made.issue("server", &["locks.example"]);
    let server = lock_server(&made).start().await;
    let port = server.address().rsplit_once(':').unwrap().1.to_owned();
    let addr = server.address().parse().unwrap();
    let named = made.https(None).resolve("locks.example", addr).build().unwrap();
    let base = format!("https://locks.example:{port}");
    // The client has verified the host, so that --host-name need not name it.
    Api::with(&base, named).get("/livez").await.expect(200);
    let refused = async |client: reqwest::ClientBuilder| {
        let client = client.resolve("locks.example", addr).resolve("other.example", addr);
        format!("{:?}", client.build().unwrap().get(format!("{base}/livez")).send().await)
    };
    let error = refused(Certificates::new().https(None)).await;
    assert!(error.contains("UnknownIssuer") || error.contains("BadSignature"), "{error}");
    let wrong = made.https(None).resolve("other.example", addr).build().unwrap();
    let error = wrong.get(format!("https://other.example:{port}/livez")).send().await.unwrap_err();
    assert!(format!("{error:?}").contains("NotValidForName"), "{error:?}");

    made.issue_for("server", &["locks.example"], -1);
    until_true("the expired certificate to be served", || async {
        refused(made.https(None)).await.contains("Expired")
    })
    .await;
}

/// A page that came over plain HTTP may have been replaced on the way.
#[tokio::test]
async fn only_a_page_over_tls_is_of_the_own_origin() {
    let made = Certificates::new();
    let server = lock_server(&made).start().await;
    let api = api(&server, &made, None);
    let host = server.address();
    for (scheme, expected) in [("https", 200), ("http", 403)] {
        let origin = format!("{scheme}://{host}");
        let headers = [("origin", origin.as_str()), ("sec-fetch-site", "same-origin")];
        api.send(http::Method::GET, "/v1/locks", &headers, "").await.expect(expected);
    }
}

/// An expired certificate, one that ends soon, and a key that others may read: warnings.
#[tokio::test]
async fn what_an_operator_should_change_is_a_warning() {
    let made = Certificates::new();
    let plain = Setup::lock_server("memory:");
    made.issue_for("server", &["localhost", "127.0.0.1"], 5);
    std::fs::set_permissions(made.file("server.key"), Permissions::from_mode(0o640)).unwrap();
    let server = with_tls(plain, &made).start().await;
    let api = api(&server, &made, None);
    let text = readiness(&api).await;
    let said =
        ["[!]tls warning", "ends in ", " days; write a new one", "(mode 640); run chmod 600"];
    assert!(said.iter().all(|part| text.contains(part)), "{text}");
    made.issue_for("server", &["localhost", "127.0.0.1"], -5);
    until_true("the log to say that it has expired", || async {
        server.process.stderr().contains("has expired")
            || server.process.stdout().contains("has expired")
    })
    .await;
}

#[tokio::test]
async fn plain_text_has_one_clear_reply() {
    let made = Certificates::new();
    let server = lock_server(&made).start().await;
    let request = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for bytes in [&request[..], b"PING\r\n", b"\r\n"] {
        let reply = exchange(&server.address(), bytes).await;
        assert_eq!(status(&reply), Some(400), "{reply}");
        assert!(reply.contains("this port speaks TLS") && reply.contains("https://"), "{reply}");
    }
    let api = api(&server, &made, None);
    until_true("the failures to be counted", || async {
        metric(&api, "tls_handshake_failures_total").await == 3
    })
    .await;
}

/// A ClientHello of TLS 1.0, and one of 1.1: a fatal alert.
#[tokio::test]
async fn versions_before_1_2_are_refused() {
    let made = Certificates::new();
    let server = lock_server(&made).start().await;
    for minor in [1, 2] {
        let mut hello = vec![3, minor];
        hello.extend([7; 32]);
        // No session, one cipher suite, no compression.
        hello.extend([0, 0, 2, 0x00, 0x2f, 1, 0]);
        let length = u8::try_from(hello.len()).unwrap();
        let mut record = vec![0x16, 3, 1, 0, length + 4, 1, 0, 0, length];
        record.extend(hello);
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(&record).await.unwrap();
        let mut reply = Vec::new();
        soon("an alert", stream.read_to_end(&mut reply)).await.unwrap();
        let [content, _, _, _, _, level, description] = reply[..] else { panic!("{reply:?}") };
        assert_eq!((content, level), (0x15, 2), "TLS 1.{}", minor - 1);
        let [failure, version] = [40, 70];
        assert!(description == failure || description == version, "{description}");
    }
}

/// The waiter leaves the queue, also when hyper holds bytes behind its request.
#[tokio::test]
async fn a_long_poll_ends_when_its_client_hangs_up() {
    let made = Certificates::new();
    let server = lock_server(&made).start().await;
    let locks = Locks(api(&server, &made, None));
    let held = locks.grant("a", 60_000).await;
    let body = json!({"wait_ms": 60_000}).to_string();
    let request = format!(
        "POST /v1/locks/a/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\
         content-type: application/json\r\n\r\n{body}",
        body.len()
    );
    for behind in ["", "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"] {
        let mut waiter = connect(&server, &made).await;
        waiter.write_all(format!("{request}{behind}").as_bytes()).await.unwrap();
        waiter.flush().await.unwrap();
        locks.queue_of("a", 1).await;
        drop(waiter);
        locks.queue_of("a", 0).await;
    }
    // Nor does the lock go to any of them.
    locks.release("a", held.lease_id).await.expect(200);
    assert!(locks.show("a").await.holder.is_none());
}

/// Large bodies in both directions, a head that is late, and a request in flight at shutdown.
#[tokio::test]
async fn limits_and_drain_are_those_of_plain_listeners() {
    let made = Certificates::new();
    let guard = with_tls(Setup::fenced_store("memory:"), &made).start().await;
    let guard = Guard(api(&guard, &made, None));
    let large = "0123456789abcdef".repeat(128 * 1024);
    guard.put("a", &unsigned(1, "a", lease_id()), large.clone()).await.expect(201);
    let body = guard.fenced_get("a", &unsigned(2, "a", lease_id())).await.expect(200).body;
    assert!(body == large.as_bytes(), "{} bytes came back", body.len());

    let server = lock_server(&made).arg("--header-timeout=5s").start().await;
    let mut late = connect(&server, &made).await;
    late.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
    let mut reply = String::new();
    soon("the reply", late.read_to_string(&mut reply)).await.unwrap();
    assert_eq!(status(&reply), Some(408), "{reply}");

    let locks = Locks(api(&server, &made, None));
    locks.grant("a", 60_000).await;
    let waits = locks.clone();
    let waiting = tokio::spawn(async move { waits.acquire("a", json!({"wait_ms": 60_000})).await });
    locks.queue_of("a", 1).await;
    server.process.terminate();
    let reply = soon("the reply at shutdown", waiting).await.unwrap();
    assert_eq!(reply.status, 503, "{reply:?}");
}

/// Files are judged at start: one sentence each, with the flag.
#[tokio::test]
async fn files_are_judged_at_start() {
    let made = Certificates::new();
    made.issue("other", &["other.example"]);
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| made.text(name));
    let other = made.text("other.key");
    let chain = made.read("other.pem") + &made.read("server.pem");
    made.write("wrong-order.pem", &chain);
    made.write("empty.pem", "");
    let [order, empty] = ["wrong-order.pem", "empty.pem"].map(|name| made.text(name));
    let pair = ["--tls-cert", cert.as_str(), "--tls-key", key.as_str()];
    for (flags, reason) in [
        (vec!["--tls-cert", &cert], "--tls-cert wants its private key; name it with --tls-key"),
        (vec!["--tls-key", &key], "--tls-key is the key of a certificate"),
        (vec!["--tls-client-ca", &ca], "--tls-client-ca needs TLS"),
        (
            [&pair[..], &["--tls-client-auth", "optional"]].concat(),
            "--tls-client-auth needs the CA",
        ),
        (vec!["--tls-cert", &cert, "--tls-key", &other], "is not the key of the certificate in"),
        (
            vec!["--tls-cert", &order, "--tls-key", &key],
            "in the wrong order: number 2 is that of --tls-key",
        ),
        (vec!["--tls-cert", &empty, "--tls-key", &key], "empty.pem holds no certificate"),
        (vec!["--tls-cert", &cert, "--tls-key", &empty], "empty.pem holds no private key"),
        ([&pair[..], &["--tls-client-ca", &empty]].concat(), "empty.pem holds no certificate"),
        (vec!["--tls-cert", "/nonexistent", "--tls-key", &key], "--tls-cert: /nonexistent cannot"),
    ] {
        let said = Setup::lock_server("memory:").args(&flags).refused().await;
        assert_eq!(said.code, 64, "{flags:?}: {said:?}");
        let lines: Vec<&str> = said.stderr.lines().filter(|line| line.contains("--tls-")).collect();
        assert!(lines.len() == 1 && lines[0].contains(reason), "{flags:?}: {said:?}");
    }
}
