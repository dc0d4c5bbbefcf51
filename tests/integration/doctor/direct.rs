//! `--direct` at addresses where no write can be tried: only a refusal counts as one.

use fence_tests::certificates::TlsRedis;
use fence_tests::process::{Process, command};
use fence_tests::redis_server::Redis;
use fence_tests::upstream::Upstream;

use super::{about, doctor, run};

/// The text of the warning about a port that was not tried.
async fn unchecked(url: &str) -> String {
    let (code, checks) = doctor(&["--direct", url, "--strict"]).await;
    assert_eq!(code, 1, "{url}: {checks:?}");
    let (verdict, text) = about(&checks, "direct write");
    assert_eq!(verdict, "warning", "{url}: {text}");
    assert!(text.starts_with("not checked: "), "{url}: {text}");
    assert!(!text.contains('\n'), "{url}: {text}");
    text.to_owned()
}

/// The Redis is open to every client: a wrong scheme must not hide that.
#[tokio::test]
async fn another_protocol_is_no_pass() {
    let redis = Redis::start().await;
    let text = unchecked(&format!("rediss://{}", redis.address())).await;
    assert!(text.contains("write redis:// in --direct"), "{text}");

    let http = Upstream::start().await;
    let address = http.base().trim_start_matches("http://");
    let text = unchecked(&format!("redis://{address}")).await;
    assert!(text.contains("write rediss:// in --direct"), "{text}");
    let text = unchecked(&format!("rediss://{address}")).await;
    assert!(text.contains("write redis:// in --direct"), "{text}");
}

#[tokio::test]
async fn a_port_of_tls_is_tried_over_tls_alone() {
    let redis = TlsRedis::start().await;
    let text = unchecked(&format!("redis://{}", redis.address())).await;
    assert!(text.contains("write rediss:// in --direct"), "{text}");
    let text = unchecked(&redis.url()).await;
    assert!(text.contains("in the variable SSL_CERT_FILE"), "{text}");

    // What that advises helps: this Redis refuses clients without a certificate. The application
    // may have one.
    let mut with_ca = command(fence_tests::binaries::path("fence"));
    with_ca.env("SSL_CERT_FILE", redis.certificates.text("ca.pem"));
    with_ca.args(["doctor", "--direct", &redis.url(), "--strict"]);
    let output = Process::spawn("fence doctor", with_ca).ended().await;
    assert_eq!(output.code, 1, "{output:?}");
    let text = "not checked: it refused the TLS handshake (CertificateRequired)";
    assert!(output.stdout.contains(text), "{output:?}");
}

/// Nothing at an address may be a wrong address.
#[tokio::test]
async fn an_address_where_nothing_answers_proves_nothing() {
    let absent = format!("redis://127.0.0.1:{}", fence_tests::ports::unused());
    for url in [absent.clone(), absent.replace("redis://", "rediss://")] {
        let (code, checks) = doctor(&["--direct", &url, "--strict"]).await;
        assert_eq!(code, 0, "{checks:?}");
        let (verdict, text) = about(&checks, "direct write");
        assert_eq!(verdict, "note", "{text}");
        assert!(text.contains("proves nothing if the address is wrong"), "{text}");
        assert!(text.contains("Connection refused"), "{text}");
    }
    let output = run(&["--direct", &absent]).await;
    assert!(!output.stdout.contains("everything is fine"), "{output:?}");
}
