//! Guards whose refusals the lock server does not show.

use fence_tests::servers::{Server, Setup};
use fence_tests::wait::until_true;

use super::{about, at_both, both, doctor, well};

async fn lock_server() -> Server {
    Setup::lock_server("memory:").start().await
}

fn reporting(base: &str) -> Setup {
    Setup::fenced_store("memory:").arg("--report-to").arg(base)
}

#[tokio::test]
async fn a_guard_that_reports_nowhere_is_a_warning() {
    let server = lock_server().await;
    let guard = Setup::fenced_store("memory:").start().await;
    let (code, checks) = both(&server, &guard, &[]).await;
    assert_eq!(code, 1, "{checks:?}");
    let (verdict, text) = about(&checks, "fenced-store refusal-reports");
    assert_eq!(verdict, "warning");
    assert!(text.contains("--report-to"), "{text}");
    assert_eq!(about(&checks, "round trip").0, "ok", "writes are well");
    let (code, _) = doctor(&["--guard", &guard.base, "--strict"]).await;
    assert_eq!(code, 1);
}

#[tokio::test]
async fn a_guard_that_reports_to_another_lock_server_is_a_warning() {
    let server = lock_server().await;
    let other = lock_server().await;
    let guard = reporting(&other.base).start().await;
    let (code, checks) = both(&server, &guard, &[]).await;
    assert_eq!(code, 1, "{checks:?}");
    let (verdict, text) = about(&checks, "reports");
    assert_eq!(verdict, "warning");
    assert!(text.contains("reports to another lock server"), "{text}");
    let guard = reporting(&server.base).start().await;
    let checks = well(&at_both(&server, &guard, &[])).await;
    assert_eq!(about(&checks, "reports").0, "ok");
}

#[tokio::test]
async fn a_guard_whose_reports_fail_is_a_warning() {
    let server = lock_server().await;
    let absent = format!("http://127.0.0.1:{}", fence_tests::ports::unused());
    let guard = reporting(&absent).start().await;
    let api = guard.guard().0.clone();
    until_true("a report to fail", || async {
        let ready = api.get("/readyz?verbose").await.expect(200);
        String::from_utf8_lossy(&ready.body).contains("[!]refusal-reports")
    })
    .await;
    let (code, checks) = both(&server, &guard, &[]).await;
    assert_eq!(code, 1, "{checks:?}");
    let (verdict, text) = about(&checks, "fenced-store refusal-reports");
    assert_eq!(verdict, "warning");
    assert!(text.contains(&absent), "{text}");
}
