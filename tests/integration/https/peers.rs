//! Lock servers that call guards, and guards that call lock servers and datastores, over TLS.

use fence_client::{Client, TlsOptions};
use fence_protocol::wire::event::ExplainedLock;
use fence_tests::api::Api;
use fence_tests::certificates::Certificates;
use fence_tests::key_file::{lease_id, text, unsigned};
use fence_tests::servers::{DataDir, Server, Setup};
use fence_tests::tls_proxy::{Terminator, TlsProxy};
use fence_tests::upstream::Upstream;
use fence_tests::wait::{until, until_true};
use http::Method;

use crate::locks::guards::{FAR, informed_process, raise, readiness};

const NAMED: [&str; 2] = ["--host-name", "locks.example"];

async fn before(base: &str, certificates: &Certificates) -> TlsProxy {
    TlsProxy::start(Terminator::Nginx, certificates, base).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_server_reads_and_seals_guards_over_tls() {
    let certificates = Certificates::new();
    let guard = Setup::fenced_store("memory:").args(&NAMED).start().await;
    raise(&guard, FAR).await;
    let proxy = before(&guard.base, &certificates).await;
    let setup = Setup::lock_server("memory:").args(&["--guard", &proxy.base]);
    let setup = setup.args(&["--seal", "*=required"]);
    let ca = certificates.text("ca.pem");
    let server = informed_process(&setup.clone().args(&["--peer-ca", &ca])).await;
    let held = server.locks().grant("a", 60_000).await;
    assert!(held.token.get() > FAR, "{held:?}");
    assert_eq!(guard.guard().fence("a").await.mark, Some(held.token));
    // Without the CA nothing is read, and the check says why.
    let server = setup.start().await;
    let text = until("the reason", || async {
        let text = readiness(&server).await;
        text.contains("a CA that this system does not know").then_some(text)
    })
    .await;
    assert!(text.contains("with --peer-ca"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_reports_to_a_lock_server_over_tls() {
    let certificates = Certificates::new();
    let server = Setup::lock_server("memory:").args(&NAMED).start().await;
    let proxy = before(&server.base, &certificates).await;
    let setup = Setup::fenced_store("memory:").args(&["--report-to", &proxy.base]);
    let ca = certificates.text("ca.pem");
    let guard = setup.clone().args(&["--peer-ca", &ca]).start().await;
    guard.guard().sealed("a", &unsigned(34, "a", lease_id())).await;
    let old = unsigned(33, "a", lease_id());
    assert_eq!(guard.guard().put("a", &old, "late").await.status, 412);
    until_true("the report", || async {
        let reply = Api::new(&server.base).get("/v1/locks/a").await.expect(200);
        !reply.read::<ExplainedLock>().recent.refusals.is_empty()
    })
    .await;
    let guard = setup.start().await;
    let text = until("the report to fail", || async {
        let text = readiness(&guard).await;
        let is_said = text.contains("name the file of that CA with --peer-ca");
        is_said.then_some(text)
    })
    .await;
    assert!(text.contains("refusals are not reported"), "{text}");
}

/// A guard before a datastore over TLS.
async fn proxying(upstream: &str, state: &DataDir, more: &[&str]) -> (Server, Api) {
    let mut server = Setup::bare("fenced-store")
        .args(&["--unsigned", "--proxy-listen", "127.0.0.1:0", "--upstream", upstream])
        .args(&["--max-request-lifetime", "60s", "--state", text(&state.path())])
        .args(more)
        .start()
        .await;
    let api = Api::new(&server.proxy().await);
    (server, api)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_datastore_behind_the_proxy_is_reached_over_tls() {
    let certificates = Certificates::new();
    let upstream = Upstream::start().await;
    let proxy = before(upstream.base(), &certificates).await;
    let state = DataDir::new();
    let ca = certificates.text("ca.pem");
    let args = ["--upstream-ca", &ca, "--upstream-idle", "1h"];
    let (_guard, api) = proxying(&proxy.base, &state, &args).await;
    let token = unsigned(33, "doc", lease_id());
    let put = async |value: &'static str| {
        api.send(Method::PUT, "/doc", &[("fencing-token", &token)], value).await
    };
    assert_eq!(put("one").await.status, 204);
    assert_eq!(put("two").await.status, 204);
    for _ in 0..3 {
        let reply = api.send(Method::GET, "/doc", &[("fencing-token", &token)], "").await;
        assert_eq!(reply.expect(200).body.as_ref(), b"two");
    }
    assert_eq!(upstream.values(), ["one", "two"]);
    // The proxy writes its log behind its replies.
    let requests = until("five requests in the log", || {
        let requests = proxy.requests();
        std::future::ready((requests.len() == 5).then_some(requests))
    })
    .await;
    let connections: std::collections::BTreeSet<_> =
        requests.iter().map(|(connection, _)| *connection).collect();
    // A reply may be through before its connection is back among the idle ones, so that the next
    // request opens another.
    assert!(connections.len() < requests.len(), "no connection was used again: {requests:?}");
}

/// A request that was never sent quarantines no lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_datastore_that_is_not_trusted_gets_nothing() {
    let certificates = Certificates::for_names(&["store.example"]);
    let upstream = Upstream::start().await;
    let proxy = before(upstream.base(), &certificates).await;
    let state = DataDir::new();
    let ca = certificates.text("ca.pem");
    let (guard, api) = proxying(&proxy.base, &state, &["--upstream-ca", &ca]).await;
    let token = unsigned(33, "doc", lease_id());
    let reply = api.send(Method::PUT, "/doc", &[("fencing-token", &token)], "x").await;
    let problem = reply.problem(fence_protocol::Code::UpstreamUnavailable);
    assert!(problem.detail.contains("is for store.example, not for localhost"), "{problem}");
    assert_eq!(guard.metric("fencepost_fence_quarantined_lanes").await, 0);
    assert!(upstream.log().is_empty());
}

/// Every client of the site, the lock server among them, presents a certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_and_clients_identify_themselves_by_certificates() {
    let certificates = Certificates::new();
    let file = |name| certificates.text(name);
    let own = ["--tls-cert", &file("server.pem"), "--tls-key", &file("server.key")];
    let clients = ["--tls-client-ca", &file("ca.pem")];
    let peer = ["--peer-ca", &file("ca.pem"), "--peer-cert", &file("client.pem")];
    let peer_key = ["--peer-key", &file("client.key")];
    let guard = Setup::fenced_store("memory:").args(&own).args(&clients).start().await;
    let server = Setup::lock_server("memory:").args(&own).args(&clients);
    let server = server.args(&["--guard", &guard.base, "--seal", "*=required"]);
    let server = server.args(&peer).args(&peer_key).start().await;
    let tls = TlsOptions::default().with_ca(&certificates.file("ca.pem")).unwrap();
    let tls = tls.with_client(&certificates.file("client.pem"), &certificates.file("client.key"));
    let client = Client::builder().lock_server(&server.base).fenced_store(&guard.base);
    let client = client.tls(tls.unwrap()).build().unwrap();
    // It is granted once the guard has been sealed.
    let lease = client.lock("a").acquire().await.unwrap();
    client.objects().put(&lease, "a", "x").await.unwrap();
    lease.release().await.unwrap();
}
