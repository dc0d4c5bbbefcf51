//! The operator's view of running servers: metrics, traces, and the rules and pictures over them.

mod alerts;
mod metrics;
mod traces;

use fence_tests::api::Endpoint;

/// The metrics of a server, as text.
async fn metrics(server: &impl Endpoint) -> String {
    let body = server.api().get("/metrics").await.expect(200).body;
    String::from_utf8(body.to_vec()).unwrap()
}

/// Value of one series, with its labels; 0 where it is not there.
async fn value(server: &impl Endpoint, series: &str) -> f64 {
    let text = metrics(server).await;
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().unwrap())
}
