//! A trace from its caller through every server that takes part.

use fence_protocol::Code;
use fence_protocol::TraceContext;
use fence_tests::api::Api;
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::process::{Process, command};
use fence_tests::raw_http::{exchange, status};
use fence_tests::servers::{DataDir, Server, Setup};
use fence_tests::upstream::Upstream;
use fence_tests::wait::{until, until_true};
use http::Method;
use serde_json::Value;

use crate::access::Site;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

fn header(sampled: bool) -> String {
    format!("00-{TRACE}-{SPAN}-0{}", u8::from(sampled))
}

async fn traced(server: &Server, path: &str, header: &str) {
    let headers = [("traceparent", header), ("content-type", "application/json")];
    let api = Api::new(&server.base);
    api.send(Method::POST, path, &headers, r#"{"ttl_ms":60000}"#).await.expect(200);
}

/// The spans that a collector has received.
fn spans(collector: &Upstream) -> Vec<Value> {
    let mut spans = Vec::new();
    for request in collector.log() {
        assert_eq!((request.path.as_str(), request.method), ("/v1/traces", Method::POST));
        assert_eq!(request.headers["content-type"], "application/json");
        let body: Value = serde_json::from_str(&request.value).unwrap();
        let resource = &body["resourceSpans"][0];
        let service = &resource["resource"]["attributes"][0];
        assert_eq!(service["key"], "service.name");
        for span in resource["scopeSpans"][0]["spans"].as_array().unwrap() {
            let mut span = span.clone();
            span["service"] = service["value"]["stringValue"].clone();
            spans.push(span);
        }
    }
    spans
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().unwrap();
    &attributes.iter().find(|attribute| attribute["key"] == key).unwrap()["value"]
}

/// A grant that seals a guard: the guard's span is a child of the lock server's, whose parent is
/// the caller's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_of_a_sampled_request_reach_the_collector_as_one_trace() {
    let collector = Upstream::start().await;
    let export = |setup: Setup| setup.arg("--otlp-endpoint").arg(collector.base());
    let guard = export(Setup::fenced_store("memory:")).start().await;
    for (seal, lock) in [("required", "a"), ("lazy", "b")] {
        let setup = export(Setup::lock_server("memory:")).arg("--guard").arg(&guard.base);
        let server = setup.arg("--seal").arg(format!("*={seal}")).start().await;
        traced(&server, &format!("/v1/locks/{lock}-unsampled/acquire"), &header(false)).await;
        traced(&server, &format!("/v1/locks/{lock}/acquire"), &header(true)).await;
        let exported = |server: &Server| {
            let base = server.base.clone();
            async move {
                let text = Api::new(&base).get("/metrics").await.expect(200).body;
                let text = String::from_utf8(text.to_vec()).unwrap();
                text.contains("fencepost_trace_spans_exported_total 1\n")
            }
        };
        until_true("the span to be counted", || exported(&server)).await;
    }
    let spans = until("four spans", || async {
        let spans = spans(&collector);
        (spans.len() >= 4).then_some(spans)
    })
    .await;
    let of = |service: &'static str| spans.iter().filter(move |span| span["service"] == service);
    assert_eq!((of("lock-server").count(), of("fenced-store").count(), spans.len()), (2, 2, 4));
    for span in of("lock-server") {
        assert_eq!(span["traceId"], TRACE);
        assert_eq!(span["parentSpanId"], SPAN);
        assert_eq!(span["name"], "POST /v1/locks/{lock}/acquire");
        assert_eq!(span["kind"], 2);
        assert_eq!(attribute(span, "http.request.method")["stringValue"], "POST");
        assert_eq!(attribute(span, "http.response.status_code")["intValue"], "200");
        let time = |name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
        assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"));
        let sealed = of("fenced-store").find(|seal| seal["parentSpanId"] == span["spanId"]);
        let sealed = sealed.expect("the guard's span is a child of this");
        assert_eq!(sealed["traceId"], TRACE);
        assert_eq!(sealed["name"], "POST /v1/fences/{*lock}");
    }
}

/// Without a collector every server passes the header on as it is.
#[tokio::test]
async fn a_trace_passes_through_the_proxy_and_is_on_the_log_lines() {
    let upstream = Upstream::start().await;
    let lock_server = Setup::lock_server("memory:").args(&["--log-filter", "debug"]).start().await;
    let state = DataDir::new();
    let data = state.path().to_str().unwrap().to_owned();
    let mut guard = Setup::bare("fenced-store")
        .args(&["--unsigned", "--upstream", upstream.base(), "--proxy-listen", "127.0.0.1:0"])
        .args(&["--max-request-lifetime", "1s", "--state", &data, "--report-to", &lock_server.base])
        .args(&["--log-format", "json"])
        .start()
        .await;
    let door = Api::new(&guard.proxy().await);
    let put = async |token: u64, trace: &str| {
        let token = unsigned(token, "a", lease_id());
        let headers = [("fencing-token", token.as_str()), ("traceparent", trace)];
        door.send(Method::PUT, "/a", &headers, "x").await
    };
    put(34, &header(true)).await.expect(204);
    assert_eq!(upstream.log()[0].headers["traceparent"], header(true).as_str());
    put(33, &header(true)).await.problem(Code::StaleToken);
    until_true("the refusal to be logged with its trace", || async {
        let log = guard.process.stderr();
        log.lines().any(|line| line.contains("refused a stale token") && line.contains(TRACE))
    })
    .await;
    until_true("its report to be a part of the trace", || async {
        let log = lock_server.process.stderr();
        log.lines().any(|line| line.contains(TRACE) && line.contains("/v1/refusals"))
    })
    .await;
    put(32, &header(true).replace("00-", "0-")).await.problem(Code::StaleToken);
    let log = guard.process.stderr();
    let refused = log.lines().filter(|line| line.contains("refused a stale token"));
    assert_eq!(
        refused.filter(|line| line.contains(TRACE)).count(),
        1,
        "no trace can be read there"
    );
}

#[tokio::test]
async fn spans_without_a_collector_are_dropped_and_serving_continues() {
    let setup = Setup::lock_server("memory:").args(&["--otlp-endpoint", "http://127.0.0.1:1"]);
    let server = setup.start().await;
    traced(&server, "/v1/locks/a/acquire", &header(true)).await;
    until_true("the span to be dropped", || async {
        server.metric("fencepost_trace_spans_dropped_total").await == 1
    })
    .await;
    // The check follows the counter.
    until_true("the warning", || async {
        let ready = Api::new(&server.base).get("/readyz?verbose").await.expect(200).body;
        let ready = String::from_utf8(ready.to_vec()).unwrap();
        ready.contains("traces warning: spans are dropped")
    })
    .await;
    let setup = Setup::lock_server("memory:").args(&["--otlp-endpoint", "grpc://c"]);
    assert!(setup.refused().await.stderr.contains("http://HOST:PORT"));
}

/// Spans cost the server and its collector: a caller that is not admitted cannot order them.
#[tokio::test]
async fn callers_without_access_have_no_span_exported() {
    let collector = Upstream::start().await;
    let site = Site::new();
    let setup = site.arm(Setup::lock_server("memory:"));
    let server = setup.arg("--otlp-endpoint").arg(collector.base()).start().await;
    let sampled = header(true);
    let get = async |path: &str, more: (&str, &str), status: u16| {
        let headers = [("traceparent", sampled.as_str()), more];
        Api::new(&server.base).send(Method::GET, path, &headers, "").await.expect(status);
    };
    let nothing = ("accept", "*/*");
    get("/v1/locks", nothing, 401).await;
    get("/v1/locks", ("authorization", "Bearer secret-of-team"), 403).await;
    get("/v1/locks", ("origin", "http://evil.example"), 403).await;
    get("/v1/locks", ("host", "evil.example"), 421).await;
    get("/livez", nothing, 200).await;
    get("/readyz", nothing, 200).await;
    get("/ui/", nothing, 200).await;
    let with_head = |head: &str| {
        let head = format!("{head}\r\ntraceparent: {sampled}\r\nconnection: close\r\n\r\n");
        let base = server.base.clone();
        async move { status(&exchange(&base, head.as_bytes()).await) }
    };
    assert_eq!(with_head("GET /nowhere HTTP/1.1\r\nhost: localhost").await, Some(404));
    assert_eq!(with_head("PUT /v1/locks HTTP/1.1\r\nhost: localhost").await, Some(405));
    assert_eq!(with_head("GET /v1/locks HTTP/1.1\r\nhost: a\r\nhost: b").await, Some(400));
    get("/v1/locks", ("authorization", "Bearer secret-of-eye"), 200).await;
    // Spans are exported in order.
    let spans = until("the span of the caller with access", || async {
        let spans = spans(&collector);
        let has_status = |span: &Value| attribute(span, "http.response.status_code").clone();
        spans.iter().any(|span| has_status(span)["intValue"] == "200").then_some(spans)
    })
    .await;
    let names: Vec<_> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["GET /v1/locks"]);
}

async fn fence_run(server: &Server, given: Option<&str>) -> TraceContext {
    let mut run = command(fence_tests::binaries::path("fence"));
    run.args(["run", "--lock", "job", "--", "printenv", "TRACEPARENT"]);
    run.env("FENCE_SERVER", &server.base).env_remove("TRACEPARENT");
    run.envs(given.map(|trace| ("TRACEPARENT", trace)));
    let output = Process::spawn("fence", run).ended().await;
    assert_eq!(output.code, 0, "{output:?}");
    output.stdout.trim().parse().unwrap()
}

#[tokio::test]
async fn fence_run_takes_a_trace_from_its_environment_and_passes_it_on() {
    let server = Setup::lock_server("memory:").args(&["--log-filter", "debug"]).start().await;
    assert_eq!(fence_run(&server, Some(&header(true))).await.to_string(), header(true));
    let fresh = fence_run(&server, None).await;
    assert_ne!(fence_run(&server, Some("not-a-trace")).await.trace_id(), fresh.trace_id());
    until_true("both traces in the server's log", || async {
        let log = server.process.stderr();
        [TRACE, &fresh.trace_id()].iter().all(|trace| log.contains(*trace))
    })
    .await;
}

/// The SDK sends the trace that its caller runs in, or else the one that it was built with.
#[tokio::test]
async fn the_sdk_sends_the_trace_of_its_caller() {
    let server = Setup::lock_server("memory:").args(&["--log-filter", "debug"]).start().await;
    let own: TraceContext = header(false).parse().unwrap();
    let other: TraceContext = header(false).replace(TRACE, &"ab".repeat(16)).parse().unwrap();
    let client = fence_client::Client::builder().lock_server(&server.base).trace(own);
    let client = client.build().unwrap();
    let lease = client.lock("a").acquire().await.unwrap();
    let release = async { lease.release().await.unwrap() };
    fence_client::in_trace(other, release).await;
    until_true("both requests to be logged", || async {
        let log = server.process.stderr();
        let line = |trace: &str, path: &str| {
            log.lines().any(|line| line.contains(trace) && line.contains(path))
        };
        line(TRACE, "{lock}/acquire") && line(&other.trace_id(), "{lock}/release")
    })
    .await;
}
