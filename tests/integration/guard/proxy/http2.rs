//! Clients of HTTP/2 at the reverse proxy, and real programs on both of its sides.

use std::process::Command;

use fence_protocol::Code;
use fence_tests::certificates::Certificates;
use fence_tests::http2_frames::{END_STREAM, Http2Client, Http2Reply, code, kind, request};
use fence_tests::ports;
use fence_tests::process::{Process, command};
use fence_tests::wait::until_true;
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::*;

async fn client(lane: &Lane) -> Http2Client {
    let address = lane.api.base().trim_start_matches("http://").parse().unwrap();
    Http2Client::connect(address, &[]).await
}

/// Sends a PUT of `body` to /doc, with more fields.
async fn put(
    client: &mut Http2Client,
    stream: u32,
    token: &str,
    body: &str,
    more: &[(&str, &str)],
) {
    let fields = [&request("PUT", "/doc")[..], &[("fencing-token", token)], more].concat();
    client.head(stream, 0, &fields).await;
    client.send(kind::DATA, END_STREAM, stream, body.as_bytes()).await;
}

fn code_of(reply: &Http2Reply) -> String {
    let problem: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
    problem["code"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_stale_token_is_refused_beside_the_newer_one_on_its_connection() {
    let lane = Lane::new(LONG).await;
    let mut hold = lane.upstream.hold("new");
    let mut client = client(&lane).await;
    put(&mut client, 1, &token(34), "new", &[]).await;
    hold.arrived().await;
    put(&mut client, 3, &token(33), "late", &[]).await;
    assert_eq!(code_of(&client.reply(3).await.unwrap()), Code::StaleToken.to_string());
    hold.release();
    assert_eq!(client.reply(1).await.unwrap().status, 204);
    assert_eq!(lane.upstream.values(), ["new"]);
}

/// Whatever their order, no token is applied after a higher one.
#[tokio::test]
async fn tokens_of_one_connection_are_applied_in_their_order() {
    let lane = Lane::new(LONG).await;
    let mut client = client(&lane).await;
    // A fixed mixture: 37 has no divisor in common with 64.
    let tokens: Vec<u64> = (0..64).map(|number| 100 + number * 37 % 64).collect();
    for (stream, number) in (1..).step_by(2).zip(&tokens) {
        put(&mut client, stream, &token(*number), &number.to_string(), &[]).await;
    }
    let mut left = tokens.len();
    let mut refused = 0;
    while left > 0 {
        let frame = client.frame().await.expect("all replies");
        left -= usize::from(frame.flags & END_STREAM != 0);
        refused += usize::from(frame.kind == kind::DATA && frame.payload.starts_with(b"{"));
    }
    let applied: Vec<u64> =
        lane.upstream.values().iter().map(|value| value.parse().unwrap()).collect();
    assert!(applied.is_sorted(), "{applied:?}");
    assert_eq!(applied.last(), Some(&163), "the highest token is never refused");
    assert_eq!(applied.len() + refused, tokens.len(), "{applied:?}");
}

#[tokio::test]
async fn a_client_that_resets_its_stream_does_not_take_its_write_back() {
    let lane = Lane::new(LONG).await;
    let mut hold = lane.upstream.hold("held");
    let mut client = client(&lane).await;
    put(&mut client, 1, &token(33), "held", &[]).await;
    hold.arrived().await;
    client.send(kind::RST_STREAM, 0, 1, &code::CANCEL.to_be_bytes()).await;
    let newer = lane.put_later(&token(34), "newer");
    put(&mut client, 3, &token(32), "late", &[]).await;
    assert_eq!(code_of(&client.reply(3).await.unwrap()), Code::StaleToken.to_string());
    hold.release();
    newer.await.unwrap().unwrap().expect(204);
    assert_eq!(lane.upstream.values(), ["held", "newer"]);
}

/// The upstream speaks HTTP/1, where these would begin or end a request elsewhere.
#[tokio::test]
async fn nothing_is_smuggled_into_http1() {
    let lane = Lane::new(LONG).await;
    let own = token(33);
    for more in [
        ("transfer-encoding", "chunked"),
        ("connection", "content-length"),
        ("content-length", "4"),
        ("content-length", "+3"),
        ("x-a", "1\r\n\r\nDELETE /other HTTP/1.1"),
        ("x-a\r\ntransfer-encoding", "chunked"),
        ("x-a: 1\r\nx-b", "1"),
        ("host", "other.example"),
        ("upgrade", "websocket"),
    ] {
        let mut client = client(&lane).await;
        put(&mut client, 1, &own, "abc", &[more]).await;
        let reply = client.reply(1).await;
        let refused =
            matches!(&reply, Err(Some(_))) || reply.as_ref().is_ok_and(|reply| reply.status == 400);
        assert!(refused, "{more:?}: {reply:?}");
    }
    // Methods and targets that would be more than one word.
    for (method, path) in [("PUT /other HTTP/1.1\r\n", "/doc"), ("PUT", "/doc HTTP/1.1\r\nx: y")] {
        let mut client = client(&lane).await;
        let fields = [&request(method, path)[..], &[("fencing-token", &own)]].concat();
        assert!(client.exchange(1, &fields).await.is_err(), "{method:?} {path:?}");
    }
    // A read with a body that no header announces.
    let mut reading = client(&lane).await;
    let fields = [&request("GET", "/doc")[..], &[("fencing-token", &own)]].concat();
    reading.head(1, 0, &fields).await;
    reading.send(kind::DATA, END_STREAM, 1, b"PUT /other HTTP/1.1\r\n\r\n").await;
    assert_eq!(reading.reply(1).await.unwrap().status, 400);
    assert!(lane.upstream.log().is_empty(), "{:?}", lane.upstream.log());
    let cookies = [("cookie", "a=1"), ("te", "trailers"), ("cookie", "b=2")];
    let mut client = client(&lane).await;
    put(&mut client, 1, &own, "abc", &cookies).await;
    assert_eq!(client.reply(1).await.unwrap().status, 204);
    let log = lane.upstream.log();
    assert_eq!(log[0].headers["cookie"], "a=1; b=2");
    assert_eq!(log[0].headers["content-length"], "3");
    for name in ["te", "transfer-encoding", ":authority"] {
        assert!(!log[0].headers.contains_key(name), "{name}");
    }
}

/// nginx keeps files, and chooses HTTP/2 over TLS.
struct Nginx {
    folder: TempDir,
    port: u16,
    _process: Process,
}

impl Nginx {
    async fn start(certificates: &Certificates) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = ports::unused();
        let [certificate, key] = ["server.pem", "server.key"].map(|name| certificates.text(name));
        let root = folder.path().display();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {root}/{kind};"))
            .join(" ");
        let conf = format!(
            "daemon off; master_process off; pid {root}/pid; error_log {root}/error; events {{}}\n\
             http {{ log_format line '$request_method $server_protocol';\n\
             access_log {root}/log line;\n\
             {temporary} server {{ listen 127.0.0.1:{port} ssl http2; root {root}/data;\n\
             ssl_certificate {certificate}; ssl_certificate_key {key};\n\
             dav_methods PUT DELETE; create_full_put_path on; }} }}\n"
        );
        let file = folder.path().join("conf");
        std::fs::write(&file, conf).unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        let mut nginx = command("/usr/sbin/nginx");
        nginx.arg("-c").arg(&file).arg("-e").arg(folder.path().join("error"));
        let process = Process::spawn("nginx", nginx);
        until_true("nginx", async || TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
        Self { folder, port, _process: process }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }
}

/// Runs curl, and returns the version, the status and the guarantee that it has seen.
async fn curl(args: &[&str]) -> String {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20", "--output", "/dev/null"]);
    curl.args(["--write-out", "%{http_version} %{http_code} %header{fencing-guarantee}"])
        .args(args);
    let output = tokio::task::spawn_blocking(move || curl.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn curl_and_nginx_speak_http2_over_tls_by_choice() {
    let certificates = Certificates::new();
    let ca = certificates.text("ca.pem");
    let nginx = Nginx::start(&certificates).await;
    let own = format!("fencing-token: {}", token(33));
    let upstream = format!("https://localhost:{}", nginx.port);
    for (http, seen) in [("auto", "PUT HTTP/2.0"), ("h2", "PUT HTTP/2.0"), ("h1", "PUT HTTP/1.1")] {
        let state = DataDir::new();
        let mut server = Setup::bare("fenced-store")
            .args(&["--unsigned", "--proxy-listen", "127.0.0.1:0", "--upstream", &upstream])
            .args(&["--upstream-http", http, "--upstream-ca", &ca])
            .args(&["--max-request-lifetime", LONG, "--rule", "doc/**=doc"])
            .args(&["--state", fence_tests::key_file::text(&state.path())])
            .args(&certificates.listener().each_ref().map(String::as_str))
            .start()
            .await;
        let url = format!("{}/doc/{http}", server.proxy().await);
        let put = ["--cacert", &ca, "--header", &own, "--upload-file", &ca, &url];
        let with = |version| [&[version][..], &put].concat();
        assert_eq!(curl(&with("--http2")).await, "2 201 bounded");
        assert_eq!(curl(&with("--http1.1")).await, "1.1 204 bounded");
        // It is written after the reply.
        let what = format!("{seen:?} in the log of nginx, for {http}");
        until_true(&what, || async { nginx.log().lines().last() == Some(seen) }).await;
    }
}

#[tokio::test]
async fn curl_speaks_http2_without_tls_if_it_knows() {
    let lane = Lane::new(LONG).await;
    let own = format!("fencing-token: {}", token(33));
    let url = format!("{}/doc", lane.api.base());
    let put = ["--http2-prior-knowledge", "--header", &own, "--data", "one", "--request", "PUT"];
    assert_eq!(curl(&[&put[..], &[&url]].concat()).await, "2 204 bounded");
    let get = ["--http2-prior-knowledge", "--header", &own, &url];
    assert_eq!(curl(&get).await, "2 200 bounded");
    assert_eq!(lane.upstream.values(), ["one"]);
}
