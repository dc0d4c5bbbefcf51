//! A route that is found without the router, and the same one behind it.

use fence_tests::key_file::lease_id;
use serde_json::Value;

use super::*;

/// Returns all that a client sees of a reply, without what each has of its own.
fn seen(reply: &Reply) -> (u16, Vec<String>, Value) {
    let mut body: Value = serde_json::from_slice(&reply.body).unwrap();
    for own in ["request_id", "ttl_ms"] {
        body.as_object_mut().unwrap().remove(own);
    }
    let mut names: Vec<String> = reply.headers.keys().map(ToString::to_string).collect();
    // Of a reply that has none, the connection writes it.
    names.retain(|name| name != "content-length");
    names.sort();
    (reply.status, names, body)
}

/// A name with a plain slash or with `%2F` is found, one with `%2f` is searched for.
#[tokio::test]
async fn both_ways_to_a_route_have_the_same_gate_and_the_same_replies() {
    let site = Site::new();
    let server = site.lock_server().await;
    let own = json!({"lease_id": lease_id()}).to_string();
    let large = format!("{{\"lease_id\":\"{}\"}}", "x".repeat(70_000));
    let bodies = [&*own, "", "[]", "{\"lease_id\":7}", "no JSON", &large];
    let mut count = 0;
    for verb in ["renew", "release", "acquire"] {
        for principal in ["team", "other", "eye", "stranger"] {
            let caller = As::new(&server, principal);
            for body in bodies {
                if (verb, body) == ("acquire", "") {
                    // Its id is made up.
                    continue;
                }
                let send = async |name: &str| {
                    let path = format!("/v1/locks/{name}/{verb}");
                    // The end of a lease that never began is remembered, so each way has another.
                    let other = json!({"lease_id": lease_id()}).to_string();
                    let is_new = body == own && verb != "acquire";
                    let body = if is_new { &other } else { body };
                    seen(&caller.send(Method::POST, &path, body).await)
                };
                for name in ["team/a", "team%2Fa"] {
                    let found = send(name).await;
                    let lines = site.audit().len();
                    let searched = send("team%2fa").await;
                    assert_eq!(found, searched, "{verb} by {principal}: {body:.40}");
                    let lines = &site.audit()[lines.saturating_sub(1)..];
                    if [401, 403].contains(&found.0) {
                        for member in ["event", "principal", "request", "status", "code", "detail"]
                        {
                            let text =
                                |line: &Value| line[member].to_string().replace("%2f", "%2F");
                            assert_eq!(text(&lines[0]), text(&lines[1]), "{lines:?}");
                        }
                    }
                    count += 1;
                }
            }
        }
    }
    assert_eq!(count, 136);
    let metrics = As::new(&server, "eye").get("/metrics").await.expect(200);
    let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
    for verb in ["renew", "release", "acquire"] {
        let route = format!("route=\"/v1/locks/{{lock}}/{verb}\"");
        let lines = metrics.lines().filter(|line| {
            line.starts_with("fencepost_http_requests_total") && line.contains(&route)
        });
        let requests: f64 =
            lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
        let expected = if verb == "acquire" { 80.0 } else { 96.0 };
        assert!((requests - expected).abs() < 0.5, "{verb}: {requests}");
    }
}
