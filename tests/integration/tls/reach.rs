//! Addresses beyond loopback.

use fence_tests::api::Api;
use fence_tests::certificates::Certificates;
use fence_tests::key_file::KeyFile;
use fence_tests::servers::Setup;

use super::{readiness, with_tls};

const ACCESS: &str = "[principals.a]\nallow = [\"use *\"]\ncertificates = [\"a.example\"]\n";

/// The refusal names everything that is missing, for every address.
#[tokio::test]
async fn an_address_beyond_loopback_needs_protection() {
    let made = Certificates::new();
    made.write("access.toml", ACCESS);
    let access = made.text("access.toml");
    let keys = KeyFile::new("k", 7);
    let refused = async |setup: Setup| {
        let said = setup.refused().await;
        assert_eq!(said.code, 64, "{said:?}");
        said.stderr
    };
    let all = "--listen 0.0.0.0:0 can be reached from other machines, and lacks TLS (--tls-cert, \
               --tls-key), an access file (--access-file) and signed tokens (--token-key-file)";
    for setup in [Setup::lock_server("memory:"), Setup::fenced_store("memory:")] {
        let beyond = setup.listen("0.0.0.0:0");
        assert!(refused(beyond.clone()).await.contains(all));
        let some = refused(with_tls(beyond.clone().keys(&keys.path()), &made)).await;
        assert!(some.contains("lacks an access file (--access-file): add"), "{some}");
        let some = refused(beyond.args(&["--access-file", &access]).keys(&keys.path())).await;
        assert!(some.contains("lacks TLS (--tls-cert, --tls-key): add"), "{some}");
    }
    let ports = Setup::fenced_store("redis://127.0.0.1:1").args(&["--redis-listen", "[::]:0"]);
    let said = refused(ports.keys(&keys.path())).await;
    assert!(said.contains("--redis-listen [::]:0 can") && said.contains("lacks TLS (-"), "{said}");
}

/// With everything there it listens, and a client on another address of this machine is served.
#[tokio::test]
async fn with_protection_every_address_is_served() {
    let made = Certificates::new();
    made.issue("server", &["localhost", "127.0.0.2"]);
    made.write("access.toml", ACCESS);
    let access = made.text("access.toml");
    let keys = KeyFile::new("k", 7);
    let setup = Setup::lock_server("memory:").listen("0.0.0.0:0").keys(&keys.path());
    let server = with_tls(setup, &made).args(&["--access-file", &access]).start().await;
    let base = server.base.replace("0.0.0.0", "127.0.0.2");
    let api = Api::with(&base, made.https(None).build().unwrap());
    api.get("/readyz").await.expect(200);
}

/// `--insecure-listen` allows all of it, and is shown.
#[tokio::test]
async fn an_insecure_listener_is_said_out_loud() {
    let setup = Setup::lock_server("memory:").listen("0.0.0.0:0").arg("--insecure-listen");
    let server = setup.start().await;
    let api = Api::new(&server.base.replace("0.0.0.0", "127.0.0.2"));
    let text = readiness(&api).await;
    let line = "[!]insecure-listen warning: --listen 0.0.0.0:0 is reachable without TLS";
    assert!(text.contains(line), "{text}");
    assert!(server.process.stderr().contains("is reachable without TLS"), "the log has it too");
}
