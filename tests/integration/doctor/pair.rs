//! Set-ups in which each server is healthy and every write is refused.

use std::path::Path;
use std::process::Command;

use fence_tests::api::Api;
use fence_tests::key_file::KeyFile;
use fence_tests::servers::{DataDir, Server, Setup};

use super::{about, at_both, both, doctor, well};

/// A lock server, and a guard that reports to it.
async fn site(locks: Setup, guard: Setup) -> (Server, Server) {
    let server = locks.start().await;
    let guard = guard.arg("--report-to").arg(&server.base).start().await;
    (server, guard)
}

#[tokio::test]
async fn keys_that_differ_fail() {
    let ours = KeyFile::new("k1", 7);
    let theirs = KeyFile::new("k1", 8);
    let locks = || Setup::lock_server("memory:").keys(&ours.path());
    let (server, guard) = site(locks(), Setup::fenced_store("memory:").keys(&theirs.path())).await;
    let (code, checks) = both(&server, &guard, &[]).await;
    assert_eq!(code, 69, "{checks:?}");
    for what in ["keys", "round trip"] {
        let (verdict, text) = about(&checks, what);
        assert_eq!(verdict, "failing");
        assert!(text.contains("refuses every write"), "{text}");
        assert!(text.contains("--token-key-file"), "{text}");
    }

    // Another name for the same key is as bad.
    let renamed = KeyFile::new("k2", 7);
    let (server, guard) = site(locks(), Setup::fenced_store("memory:").keys(&renamed.path())).await;
    let (code, checks) = both(&server, &guard, &[]).await;
    assert_eq!(code, 69, "{checks:?}");
    assert!(about(&checks, "keys").1.contains("does not have (it has k2)"), "{checks:?}");

    let (server, guard) = site(locks(), Setup::fenced_store("memory:").keys(&ours.path())).await;
    let checks = well(&at_both(&server, &guard, &[])).await;
    assert_eq!(about(&checks, "keys").0, "ok");
}

#[tokio::test]
async fn one_server_without_keys_fails_or_warns() {
    let keys = KeyFile::new("k1", 7);
    let (server, guard) =
        site(Setup::lock_server("memory:"), Setup::fenced_store("memory:").keys(&keys.path()))
            .await;
    let (code, checks) = both(&server, &guard, &[]).await;
    assert_eq!(code, 69, "{checks:?}");
    assert!(about(&checks, "keys").1.contains("does not sign (--unsigned)"), "{checks:?}");
    assert_eq!(about(&checks, "round trip").0, "failing");

    let (server, guard) =
        site(Setup::lock_server("memory:").keys(&keys.path()), Setup::fenced_store("memory:"))
            .await;
    let (code, checks) = both(&server, &guard, &[]).await;
    assert_eq!(code, 1, "{checks:?}");
    assert!(about(&checks, "keys").1.contains("verifies nothing"), "{checks:?}");

    let (server, guard) = site(Setup::lock_server("memory:"), Setup::fenced_store("memory:")).await;
    let checks = well(&at_both(&server, &guard, &[])).await;
    let (verdict, text) = about(&checks, "keys");
    assert_eq!(verdict, "note");
    assert!(text.contains("unsigned"), "{text}");
}

/// The digests say whether keys are equal, and nothing that a key could be made from.
#[tokio::test]
async fn version_shows_digests_and_no_keys() {
    let keys = KeyFile::new("k1", 7);
    let server = Setup::lock_server("memory:").keys(&keys.path()).start().await;
    let guard = Setup::fenced_store("memory:").keys(&keys.path()).start().await;
    let reply = |base: &str| {
        let api = Api::new(base);
        async move { api.get("/version").await.expect(200).json() }
    };
    let ours = reply(&server.base).await;
    let theirs = reply(&guard.base).await;
    assert_eq!(ours["keys"], theirs["keys"]);
    assert_eq!(ours["namespace"], "default");
    let digest = ours["keys"][0]["digest"].as_str().unwrap();
    assert_eq!(digest.len(), 16);
    assert!(!ours.to_string().contains(&"07".repeat(4)), "{ours}");
}

#[tokio::test]
async fn namespaces_that_differ_fail() {
    let guard = Setup::fenced_store("memory:").args(&["--namespace", "billing"]);
    let (server, guard) = site(Setup::lock_server("memory:"), guard).await;
    let (code, checks) = both(&server, &guard, &[]).await;
    assert_eq!(code, 69, "{checks:?}");
    let (verdict, text) = about(&checks, "namespace");
    assert_eq!(verdict, "failing");
    assert!(text.contains("default") && text.contains("billing"), "{text}");
    assert_eq!(about(&checks, "round trip").0, "failing");
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}

/// Arguments that name both, for a guard that reports nowhere.
fn named<'a>(server: &'a Server, guard: &'a Server) -> [&'a str; 4] {
    ["--server", &server.base, "--guard", &guard.base]
}

async fn stopped(mut server: Server) {
    server.process.terminate();
    server.process.ended().await;
}

#[tokio::test]
async fn a_counter_below_the_guards_marks_fails() {
    let data = DataDir::new();
    let backup = data.path().with_extension("backup");
    let setup = Setup::lock_server(&data.store());
    let guard = Setup::fenced_store("memory:").start().await;
    stopped(setup.start().await).await;
    copy(&data.path(), &backup);

    let server = setup.start().await;
    for _ in 0..20 {
        let lease = server.locks().grant("orders/42", 60_000).await;
        server.locks().release("orders/42", lease.lease_id).await.expect(200);
        guard.guard().sealed("orders/42", &lease.fencing_token).await;
    }
    let checks = well(&named(&server, &guard)).await;
    assert_eq!(about(&checks, "token counter").0, "ok");

    // The folder of before comes back. A lock that is new to the guard is well all the same.
    stopped(server).await;
    copy(&backup, &data.path());
    let server = setup.start().await;
    let (code, checks) = doctor(&named(&server, &guard)).await;
    assert_eq!(code, 69, "{checks:?}");
    let (verdict, text) = about(&checks, "token counter");
    assert_eq!(verdict, "failing");
    assert!(text.contains("--guard") && text.contains("was just granted"), "{text}");

    // What it advises helps.
    stopped(server).await;
    let server = setup.arg("--guard").arg(&guard.base).start().await;
    let checks = well(&named(&server, &guard)).await;
    assert_eq!(about(&checks, "token counter").0, "ok");
}
