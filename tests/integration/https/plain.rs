//! Plain HTTP to another machine, over which tokens could be read.

use fence_client::{Client, ErrorKind};
use fence_tests::key_file::text;
use fence_tests::servers::{DataDir, Setup};

use super::fails;

/// An address of no machine (RFC 5737).
const OTHER: &str = "http://192.0.2.1:7420";
const WHY: [&str; 2] = [OTHER, "is plain HTTP to another machine"];

fn proxy(state: &str, upstream: &str) -> Setup {
    let flags = ["--unsigned", "--proxy-listen", "127.0.0.1:0", "--max-request-lifetime", "1s"];
    Setup::bare("fenced-store").args(&flags).args(&["--state", state, "--upstream", upstream])
}

#[tokio::test]
async fn clients_refuse_plain_http_to_another_machine() {
    for flags in [["--server", OTHER], ["--guard", OTHER]] {
        let words = [&WHY[..], &["--insecure-http"]].concat();
        fails(&[&["lock", "show", "a"], &flags[..]].concat(), 64, &words).await;
        fails(&[&["doctor"], &flags[..]].concat(), 64, &words).await;
    }
    let error = Client::builder().lock_server(OTHER).build().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Invalid);
    for word in WHY {
        assert!(error.to_string().contains(word), "{error}");
    }
    Client::builder().lock_server(OTHER).insecure_http(true).build().unwrap();
}

#[tokio::test]
async fn servers_refuse_plain_http_to_another_machine() {
    let lock_server = || Setup::lock_server("memory:").args(&["--guard", OTHER]);
    let guard = || Setup::fenced_store("memory:").args(&["--report-to", OTHER]);
    for setup in [lock_server(), guard(), proxy("/nonexistent", OTHER)] {
        let output = setup.refused().await;
        assert_eq!(output.code, 64, "{output:?}");
        for word in WHY.into_iter().chain(["--insecure-http"]) {
            assert!(output.stderr.contains(word), "{word}: {}", output.stderr);
        }
    }
    // Started, it only tries to reach the address.
    guard().arg("--insecure-http").start().await;
    let state = DataDir::new();
    proxy(text(&state.path()), OTHER).arg("--insecure-http").start().await;
}

#[tokio::test]
async fn certificates_without_a_server_over_tls_are_refused() {
    let certificates = fence_tests::certificates::Certificates::new();
    let ca = certificates.text("ca.pem");
    let guard = |args: &[&str]| Setup::fenced_store("memory:").args(args);
    let proxy = |args: &[&str]| proxy("/nonexistent", "http://127.0.0.1:1").args(args);
    for (setup, words) in [
        (
            guard(&["--peer-ca", &ca]),
            ["--peer-ca", "no --report-to or --leader-server begins with"],
        ),
        (proxy(&["--upstream-ca", &ca]), ["--upstream-ca", "begins with http://"]),
        (guard(&["--peer-cert", &ca]), ["--peer-cert needs its private key", "--peer-key"]),
        (
            guard(&["--peer-ca", "/nonexistent/ca"]),
            ["--peer-ca: /nonexistent/ca", "cannot be read"],
        ),
    ] {
        let output = setup.refused().await;
        assert_eq!(output.code, 64, "{output:?}");
        for word in words {
            assert!(output.stderr.contains(word), "{word}: {}", output.stderr);
        }
    }
}
