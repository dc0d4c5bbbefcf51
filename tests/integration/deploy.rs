//! The servers under service managers and in containers, and the files in docs/deploy.

mod postinst;

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use fence_tests::certificates::Certificates;
use fence_tests::process::{Output, Process, command};
use fence_tests::redis_server::Redis;
use fence_tests::servers::Setup;
use fence_tests::wait::until;
use tempfile::TempDir;

use super::docs::ROOT;

/// The socket that systemd makes for a unit of `Type=notify`.
struct Systemd {
    socket: UnixDatagram,
    folder: TempDir,
    seen: Vec<String>,
}

impl Systemd {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { socket, folder, seen: Vec::new() }
    }

    fn setup(&self, setup: Setup) -> Setup {
        setup.env("NOTIFY_SOCKET", self.folder.path().join("notify").to_str().unwrap())
    }

    /// The next message that has a line with this start.
    async fn message(&mut self, start: &str) -> String {
        let what = format!("{start:?} after {:?}", self.seen);
        let found = until(&what, || {
            let mut bytes = [0; 4096];
            let message = self.socket.recv(&mut bytes).ok();
            let text = message.map(|length| String::from_utf8_lossy(&bytes[..length]).into_owned());
            self.seen.extend(text.clone());
            let is_found = |text: &String| text.lines().any(|line| line.starts_with(start));
            std::future::ready(text.filter(is_found))
        });
        found.await
    }
}

#[tokio::test]
async fn systemd_is_notified_once_the_listener_is_bound_and_of_the_end() {
    for program in [Setup::lock_server("memory:"), Setup::fenced_store("memory:")] {
        let mut systemd = Systemd::new();
        let mut process = systemd.setup(program.clone()).spawn();
        let ready = systemd.message("READY=1").await;
        assert!(ready.contains("STATUS=ready"), "{ready}");
        // Bound: a connection made now is not refused.
        let line = process.line_after(&format!("{} listening on http://", program.binary())).await;
        tokio::net::TcpStream::connect(line).await.unwrap();
        process.terminate();
        systemd.message("STOPPING=1").await;
        assert_eq!(process.ended().await.code, 0);
    }
}

#[tokio::test]
async fn systemd_shows_which_check_fails() {
    let mut redis = Redis::start().await;
    let mut systemd = Systemd::new();
    let _server = systemd.setup(Setup::lock_server(&redis.url())).start().await;
    systemd.message("READY=1").await;
    redis.kill();
    let status = systemd.message("STATUS=not ready; ").await;
    assert!(status.contains("[-]redis"), "{status}");
    redis.start_again().await;
    systemd.message("STATUS=ready").await;
}

#[tokio::test]
async fn a_notify_socket_that_is_gone_does_not_stop_the_server() {
    let setup = Setup::lock_server("memory:").env("NOTIFY_SOCKET", "/nowhere/notify");
    let server = setup.start().await;
    until("a warning", || {
        let log = server.process.stderr();
        std::future::ready(log.contains("systemd cannot be notified").then_some(()))
    })
    .await;
    healthy("lock-server", &server.address(), &[]).await;
}

/// Its words on a service that is well. It asks again where the service took too long to reply.
async fn healthy(program: &str, address: &str, flags: &[String]) -> Output {
    until("a healthy service", || async {
        let output = health_with(program, address, flags).await;
        if output.code != 0 {
            assert!(output.stderr.contains("no reply within"), "{output:?}");
            return None;
        }
        Some(output)
    })
    .await
}

async fn health(program: &str, address: &str) -> Output {
    health_with(program, address, &[]).await
}

async fn health_with(program: &str, address: &str, flags: &[String]) -> Output {
    let mut command = command(fence_tests::binaries::path(program));
    command.args(["--listen", address]).args(flags).arg("health");
    Process::spawn("health", command).ended().await
}

#[tokio::test]
async fn health_says_whether_the_service_is_ready() {
    let redis = Redis::start().await;
    let locks = Setup::lock_server("memory:").listen("127.0.0.2:0").start().await;
    let guard = Setup::fenced_store(&redis.url()).start().await;
    let ready = healthy("lock-server", &locks.address(), &[]).await;
    assert_eq!(ready.stdout, "ready\n", "{ready:?}");
    // A container's listener is on all addresses.
    let port = guard.address().rsplit_once(':').unwrap().1.to_owned();
    healthy("fenced-store", &format!("0.0.0.0:{port}"), &[]).await;
}

#[tokio::test]
async fn health_names_the_check_that_fails() {
    let mut redis = Redis::start().await;
    // No other server gets the port when this one is gone.
    let address = format!("127.0.0.1:{}", fence_tests::ports::unused());
    let server = Setup::lock_server(&redis.url()).listen(&address).start().await;
    redis.kill();
    let failing = until("a failing check", || async {
        let output = health("lock-server", &address).await;
        (output.code == 1 && output.stderr.contains("503 ")).then_some(output.stderr)
    });
    let failing = failing.await;
    assert!(failing.contains("503 Service Unavailable: [-]"), "{failing}");
    drop(server);
    let gone = health("lock-server", &address).await;
    assert_eq!(gone.code, 1);
    assert!(gone.stderr.contains("refused"), "{}", gone.stderr);
}

fn tls_flags(certificates: &Certificates) -> [String; 4] {
    let [certificate, key] = ["server.pem", "server.key"].map(|name| certificates.text(name));
    ["--tls-cert".to_owned(), certificate, "--tls-key".to_owned(), key]
}

/// The service shows the certificate of its settings, whatever its names are.
#[tokio::test]
async fn health_is_checked_over_tls() {
    let certificates = Certificates::for_names(&["locks.example.org"]);
    let flags = tls_flags(&certificates);
    let setup = flags.iter().fold(Setup::lock_server("memory:"), Setup::arg);
    let server = setup.start().await;
    let address = server.base.trim_start_matches("https://").to_owned();
    let ready = healthy("lock-server", &address, &flags).await;
    assert_eq!(ready.stdout, "ready\n", "{ready:?}");
    let other = tls_flags(&Certificates::new());
    assert_eq!(health_with("lock-server", &address, &other).await.code, 1);
    assert_eq!(health("lock-server", &address).await.code, 1);

    let mutual = setup.arg("--tls-client-ca").arg(certificates.text("ca.pem")).start().await;
    let address = mutual.base.trim_start_matches("https://").to_owned();
    let unknown = healthy("lock-server", &address, &flags).await;
    assert!(unknown.stdout.starts_with("serving; readiness is unknown"), "{unknown:?}");
}

/// Flags of a program, without the dashes.
fn flags(command: &clap::Command) -> BTreeSet<String> {
    command.get_arguments().filter_map(|arg| arg.get_long()).map(ToOwned::to_owned).collect()
}

fn deploy(file: &str) -> String {
    let path: PathBuf = Path::new(ROOT).join("docs/deploy").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Keys of a TOML text, with those that are commented out.
fn keys(toml: &str) -> BTreeSet<String> {
    let lines = toml.lines().map(|line| line.trim().trim_start_matches("# "));
    let keys = lines.filter_map(|line| line.split_once(" = ")).map(|(key, _)| key);
    keys.filter(|key| !key.contains(' ')).map(ToOwned::to_owned).collect()
}

/// Text of the rendered object of this kind and program, in the plain manifests.
fn manifest(kind: &str, program: &str) -> String {
    let text = deploy("kubernetes/fencepost.yaml");
    let starts = format!("kind: {kind}\nmetadata:\n  name: fencepost-{program}\n");
    let found = text.split("---\n").find(|object| object.contains(&starts));
    found.unwrap_or_else(|| panic!("no {kind} of {program}")).to_owned()
}

#[test]
fn settings_in_deploy_are_flags_of_the_programs() {
    let programs = [
        ("lock-server", lock_server::config::Config::command()),
        ("fenced-store", fenced_store::config::Config::command()),
    ];
    for (program, command) in programs {
        let flags = flags(&command);
        let packaged = keys(&deploy(&format!("deb/{program}.toml")));
        let settings = manifest("ConfigMap", program);
        let rendered = keys(settings.split_once("settings.toml").unwrap().1);
        let prefix = format!("{}_", program.replace('-', "_").to_uppercase());
        let compose = deploy("container/compose.yaml");
        let variables = compose.lines().filter_map(|line| line.trim().strip_prefix(&prefix));
        let variables: BTreeSet<String> = variables
            .filter_map(|line| line.split_once(':'))
            .map(|(name, _)| name.to_lowercase().replace('_', "-"))
            .collect();
        for (place, named) in [("deb", packaged), ("helm", rendered), ("compose", variables)] {
            assert!(named.len() > 3, "{program} in {place}: {named:?}");
            let unknown: Vec<_> = named.difference(&flags).collect();
            assert!(unknown.is_empty(), "{program} in {place}: no such flags: {unknown:?}");
        }
    }
    let guard = flags(&fenced_store::config::Config::command());
    let sidecar = deploy("kubernetes/sidecar.yaml");
    let container = sidecar.split_once("- name: fenced-store").unwrap().1;
    let named = container.lines().filter_map(|line| line.trim().strip_prefix("- --"));
    let named: BTreeSet<_> =
        named.filter_map(|line| line.split_once('=')).map(|(flag, _)| flag.to_owned()).collect();
    assert!(named.len() > 5, "{named:?}");
    let unknown: Vec<_> = named.difference(&guard).collect();
    assert!(unknown.is_empty(), "the sidecar's guard has no such flags: {unknown:?}");
}
