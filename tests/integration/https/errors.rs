//! What is wrong with a connection is said in one sentence, with what to do.

use fence_tests::certificates::Certificates;
use fence_tests::servers::{Server, Setup};
use fence_tests::tls_proxy::{Terminator, TlsProxy};

use super::{fails, fence, trusting};

/// Exit code where a server cannot be reached.
const UNAVAILABLE: i32 = 69;

async fn before(server: &Server, certificates: &Certificates) -> TlsProxy {
    TlsProxy::start(Terminator::Nginx, certificates, &server.base).await
}

async fn lock_server() -> Server {
    Setup::lock_server("memory:").args(&["--host-name", "locks.example"]).start().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_are_not_trusted() {
    let server = lock_server().await;
    let right = Certificates::new();
    let [flag, ca] = trusting(&right);
    let proxy = before(&server, &right).await;
    let args = ["lock", "acquire", "a", "--server", &proxy.base];
    let with = |more: &[&str]| [&args[..], more].concat().into_iter().map(str::to_owned).collect();
    let check = async |args: Vec<String>, words: &[&str]| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        fails(&args, UNAVAILABLE, words).await;
    };
    check(with(&[]), &[&proxy.base, "a CA that this system does not know", "with --ca-file"]).await;
    let other = Certificates::new();
    check(with(&[&flag, &other.text("ca.pem")]), &["not signed by the CA of --ca-file"]).await;
    let output = fence(&[&args[..], &[&flag, &ca]].concat(), &[]).ended().await;
    assert_eq!(output.code, 0, "{output:?}");

    let misnamed = Certificates::for_names(&["locks.example", "10.0.0.5"]);
    let proxy = before(&server, &misnamed).await;
    let [_, ca] = trusting(&misnamed);
    let words = ["is for locks.example, 10.0.0.5, not for localhost", "use a name in the URL"];
    fails(&["lock", "acquire", "b", "--server", &proxy.base, &flag, &ca], UNAVAILABLE, &words)
        .await;
    // The doctor says the same.
    fails_on_stdout(&["doctor", "--server", &proxy.base, &flag, &ca], &words).await;

    let expired = Certificates::expired();
    let proxy = before(&server, &expired).await;
    let [_, ca] = trusting(&expired);
    let words = ["has expired", "this machine's clock"];
    fails(&["lock", "acquire", "b", "--server", &proxy.base, &flag, &ca], UNAVAILABLE, &words)
        .await;
}

async fn fails_on_stdout(args: &[&str], words: &[&str]) {
    let output = fence(args, &[]).ended().await;
    assert_eq!(output.code, UNAVAILABLE, "{output:?}");
    assert!(words.iter().all(|word| output.stdout.contains(word)), "{words:?}: {output:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scheme_that_the_port_does_not_speak() {
    let server = lock_server().await;
    let tls = server.base.replace("http://", "https://");
    let words = ["does not answer in TLS", "leave the s out"];
    fails(&["lock", "acquire", "a", "--server", &tls], UNAVAILABLE, &words).await;
    let certificates = Certificates::new();
    for (kind, word) in [
        (Terminator::Nginx, "HTTPS port"),
        (Terminator::Haproxy, "if this port speaks TLS, write https://"),
    ] {
        let proxy = TlsProxy::start(kind, &certificates, &server.base).await;
        let plain = proxy.base.replace("https://", "http://");
        let output = fence(&["lock", "show", "a", "--server", &plain], &[]).ended().await;
        assert_ne!(output.code, 0, "{output:?}");
        assert!(output.stderr.contains(word), "{output:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_cannot_be_used() {
    let certificates = Certificates::new();
    let folder = tempfile::TempDir::new().unwrap();
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let empty = empty.to_str().unwrap();
    let [certificate, key] = ["client.pem", "server.key"].map(|name| certificates.text(name));
    for (flags, words) in [
        (&["--ca-file", empty][..], ["--ca-file", "holds no certificate"]),
        (&["--client-cert", &certificate], ["--client-cert needs its private key", "--client-key"]),
        (&["--client-key", &key], ["--client-key is the key of a certificate", "--client-cert"]),
        (
            &["--client-cert", &certificate, "--client-key", &key],
            ["--client-cert and --client-key", "does not go with"],
        ),
    ] {
        fails(&[&["lock", "show", "a"], flags].concat(), 64, &words).await;
    }
}

/// The settings are keys of the configuration file, as every flag is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_sets_up_everything() {
    let server = lock_server().await;
    let certificates = Certificates::new();
    let proxy = before(&server, &certificates).await;
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("fence.toml");
    let ca = certificates.text("ca.pem");
    let text = format!("server = {:?}\nca-file = {ca:?}\ninsecure-http = false\n", proxy.base);
    std::fs::write(&file, text).unwrap();
    let args = ["lock", "acquire", "a", "--config", file.to_str().unwrap()];
    let output = fence(&args, &[]).ended().await;
    assert_eq!(output.code, 0, "{output:?}");
}

/// In TLS 1.3 the refusal comes after the request was sent, and nothing was done all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_requires_a_client_certificate() {
    let certificates = Certificates::new();
    let file = |name| certificates.text(name);
    let own = ["--tls-cert", &file("server.pem"), "--tls-key", &file("server.key")];
    let clients = ["--tls-client-ca", &file("ca.pem")];
    let server = Setup::lock_server("memory:").args(&own).args(&clients).start().await;
    let ca = file("ca.pem");
    let args = ["lock", "acquire", "a", "--server", &server.base, "--ca-file", &ca];
    fails(&args, UNAVAILABLE, &["name one with --client-cert and --client-key"]).await;
    let with = |of: &Certificates| ["client.pem", "client.key"].map(|name| of.text(name));
    let other = Certificates::new();
    let [certificate, key] = with(&other);
    let more = ["--client-cert", &certificate, "--client-key", &key];
    let words = ["does not accept the certificate of --client-cert"];
    fails(&[&args[..], &more].concat(), UNAVAILABLE, &words).await;
    let [certificate, key] = with(&certificates);
    let more = ["--client-cert", &certificate, "--client-key", &key];
    let output = fence(&[&args[..], &more].concat(), &[]).ended().await;
    assert_eq!(output.code, 0, "{output:?}");
}
