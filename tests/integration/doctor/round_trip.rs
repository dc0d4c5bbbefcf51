//! The round trip: what it uses, what it leaves behind, and what it finds.

use fence_tests::api::Api;
use fence_tests::certificates::Certificates;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};
use fence_tests::upstream::Upstream;

use super::{Finding, about, at_both, both, doctor, well};

/// The name that the round trip used.
fn name(checks: &[Finding]) -> String {
    let text = about(checks, "round trip").1;
    text.split(' ').next().unwrap().to_owned()
}

/// Nothing is held, and the object is gone.
async fn is_tidy(server: &Server, guard: &Server, name: &str) {
    let held = Api::new(&server.base).get("/v1/locks").await.expect(200).json();
    assert_eq!(held["locks"].as_array().map(Vec::len), Some(0), "{held}");
    let lease = server.locks().grant(name, 60_000).await;
    let read = guard.guard().fenced_get(name, &lease.fencing_token).await;
    assert!(matches!(read.status, 404 | 501), "{read:?}");
    let fence = guard.guard().fence(name).await;
    assert!(fence.refused_total >= 1, "nothing was refused: {fence:?}");
}

#[tokio::test]
async fn a_round_trip_is_refused_once_and_leaves_a_mark_alone() {
    let redis = Redis::start().await;
    let server = Setup::lock_server("memory:").start().await;
    let mut guard = Setup::fenced_store(&redis.url())
        .args(&["--redis-listen", "127.0.0.1:0", "--report-to", &server.base])
        .start()
        .await;
    guard.redis_port().await;
    let checks = well(&at_both(&server, &guard, &[])).await;
    let name = name(&checks);
    assert!(name.starts_with("fence-doctor/"), "{checks:?}");
    let text = about(&checks, "round trip").1;
    assert!(text.contains("was written and removed") && text.contains("was refused"), "{text}");
    let (verdict, text) = about(&checks, "redis port");
    assert_eq!(verdict, "ok", "{text}");
    assert!(text.contains(&name), "{text}");
    assert_eq!(redis.run::<u64>(&["EXISTS", &name]).await, 0, "the key is left");
    is_tidy(&server, &guard, &name).await;
}

/// Rules, or the lack of objects, leave the seals.
#[tokio::test]
async fn a_guard_without_a_place_for_the_object_is_sealed() {
    let upstream = Upstream::start().await;
    let server = Setup::lock_server("memory:").start().await;
    let proxy = Setup::bare("fenced-store")
        .args(&["--unsigned", "--proxy-listen", "127.0.0.1:0", "--upstream", upstream.base()])
        .args(&["--max-request-lifetime", "30s"]);
    let rule = |rule| Setup::fenced_store("memory:").args(&["--rule", rule]);
    for guard in [
        proxy,
        rule("**=@deny"),
        rule("**=@open"),
        rule("fence-doctor/**=another"),
        rule("fence-doctor/{id}=doctor/{id}"),
    ] {
        let data = tempfile::TempDir::new().unwrap();
        let state = data.path().to_str().unwrap();
        let guard = match format!("{guard:?}").contains("--proxy-listen") {
            true => guard.args(&["--state", state]),
            false => guard,
        };
        let guard = guard.arg("--report-to").arg(&server.base).start().await;
        let checks = well(&at_both(&server, &guard, &[])).await;
        let text = about(&checks, "round trip").1;
        assert!(text.contains("no object was written"), "{text}");
        let fence = guard.guard().fence(&name(&checks)).await;
        assert_eq!(fence.refused_total, 1, "{fence:?}");
        assert_eq!(upstream.log().len(), 0, "something was written past the guard");
    }
}

#[tokio::test]
async fn a_guard_that_observes_is_a_warning() {
    let server = Setup::lock_server("memory:").start().await;
    let guard = Setup::fenced_store("memory:")
        .args(&["--mode", "observe", "--report-to", &server.base])
        .start()
        .await;
    let (code, checks) = both(&server, &guard, &[]).await;
    assert_eq!(code, 1, "{checks:?}");
    let (verdict, text) = about(&checks, "round trip");
    assert_eq!(verdict, "warning");
    assert!(text.contains("--mode enforce"), "{text}");
}

#[tokio::test]
async fn a_lock_server_alone_grants_and_releases() {
    let server = Setup::lock_server("memory:").start().await;
    let checks = well(&["--server", &server.base, "--strict"]).await;
    assert!(about(&checks, "round trip").1.contains("and released"), "{checks:?}");
}

#[tokio::test]
async fn what_listens_beyond_loopback_without_protection_is_a_warning() {
    let insecure = Setup::lock_server("memory:").listen("0.0.0.0:0").arg("--insecure-listen");
    let server = insecure.start().await;
    let base = server.base.replace("0.0.0.0", "127.0.0.1");
    let (code, checks) = doctor(&["--server", &base, "--strict"]).await;
    assert_eq!(code, 1, "{checks:?}");
    assert_eq!(about(&checks, "lock-server insecure-listen").0, "warning");
}

/// The servers warn of their certificates; the Redis port is tried over TLS as well.
#[tokio::test]
async fn a_certificate_that_ends_soon_is_a_warning() {
    let redis = Redis::start().await;
    let made = Certificates::new();
    let flags = made.listener();
    let with_tls = |setup: Setup| flags.iter().fold(setup, |setup, flag| setup.arg(flag));
    let ca = made.text("ca.pem");
    let server = with_tls(Setup::lock_server("memory:")).start().await;
    let mut guard = with_tls(Setup::fenced_store(&redis.url()))
        .args(&["--redis-listen", "127.0.0.1:0", "--report-to", &server.base, "--peer-ca", &ca])
        .start()
        .await;
    let _ = guard.process.line_after("fenced-store redis port listening on ").await;
    let trusted = ["--ca-file", ca.as_str()];
    let checks = well(&at_both(&server, &guard, &trusted)).await;
    assert_eq!(about(&checks, "redis port").0, "ok");
    made.issue_for("server", &["localhost", "127.0.0.1"], 5);
    let checks = fence_tests::wait::until("a warning", || async {
        let (code, checks) = both(&server, &guard, &trusted).await;
        let warns =
            |(verdict, about, _): &Finding| verdict == "warning" && about == "lock-server tls";
        (code == 1 && checks.iter().any(warns)).then_some(checks)
    })
    .await;
    assert!(about(&checks, "lock-server tls").1.contains("ends in"), "{checks:?}");
}
