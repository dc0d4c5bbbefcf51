//! `fence serve --tls-self-signed`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use fence_tests::folder;
use fence_tests::process::{Process, command};

use super::fence;

/// `fence serve` over TLS in this folder, and what it printed.
async fn serve(folder: &Path, args: &[&str]) -> (Process, String) {
    let mut command = command(fence_tests::binaries::path("fence"));
    command.args(["serve", "--tls-self-signed", "--dir"]).arg(folder).args(args);
    let mut process = Process::spawn("fence serve", command);
    process.line_after("Ctrl-C ends it").await;
    let printed = process.stdout();
    (process, printed)
}

const LOOPBACK: [&str; 4] = ["--listen", "127.0.0.1:0", "--guard-listen", "127.0.0.1:0"];

/// The value of a variable in the lines that another program needs.
fn exported(printed: &str, variable: &str) -> String {
    let start = format!("{variable}=");
    let word = printed.split_whitespace().find_map(|word| word.strip_prefix(&start));
    word.unwrap_or_else(|| panic!("no {variable} in\n{printed}")).to_owned()
}

async fn acquires(printed: &str, ca: &str) {
    let server = exported(printed, "FENCE_SERVER");
    let env = [("FENCE_CA_FILE", ca), ("FENCE_SERVER", &server)];
    let mut acquire = fence(&["lock", "acquire", "a", "--wait", "60s"], &env);
    let output = acquire.ended().await;
    assert_eq!(output.code, 0, "{output:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tour_is_true_over_tls_and_the_ca_outlives_a_restart() {
    // The tour has a lease of two seconds: a busy disk could take as long.
    let folder = folder::new();
    let (mut process, printed) = serve(folder.path(), &LOOPBACK).await;
    let tour: Vec<&str> = printed.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    let mut bash = command("bash");
    bash.args(["-euo", "pipefail", "-c", &tour.join("\n")]);
    let output = Process::spawn("bash", bash).ended().await;
    assert_eq!(output.code, 0, "{output:?}");
    for shown in ["201 Created", "412 ", "stale-token", "lock-held", "token-required"] {
        assert!(output.stdout.contains(shown), "{shown}: {output:?}");
    }
    let tls = folder.path().join("tls");
    for key in ["ca.key", "server.key"] {
        let mode = std::fs::metadata(tls.join(key)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
    // The copy of another machine, which is not made again.
    let copy = folder.path().join("copy.pem");
    std::fs::copy(exported(&printed, "FENCE_CA_FILE"), &copy).unwrap();
    let leaf = std::fs::read(tls.join("server.pem")).unwrap();
    process.terminate();
    process.ended().await;
    let (_process, printed) = serve(folder.path(), &LOOPBACK).await;
    acquires(&printed, copy.to_str().unwrap()).await;
    assert_ne!(std::fs::read(tls.join("server.pem")).unwrap(), leaf, "a certificate a start");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_machines_get_a_name_that_the_certificate_has() {
    let folder = folder::new();
    let access = folder.path().join("access.toml");
    let hash = access_control::secret::SecretHash::from_secret("secret");
    let me = format!("[principals.me]\ntokens = [\"{hash}\"]\nallow = [\"use a\"]\n");
    std::fs::write(&access, me).unwrap();
    let access = access.to_str().unwrap();
    let listen = ["--listen", "0.0.0.0:0", "--guard-listen", "0.0.0.0:0", "--access-file", access];
    // A name of this machine in every network.
    let args = [&listen[..], &["--host-name", "localhost"]].concat();
    let (_process, printed) = serve(folder.path(), &args).await;
    assert!(printed.contains("scp localhost:"), "{printed}");
    let server = exported(&printed, "FENCE_SERVER");
    assert!(server.starts_with("https://localhost:"), "{printed}");
    let ca = folder.path().join("tls/ca.pem");
    let args = ["lock", "show", "a", "--server", &server, "--ca-file", ca.to_str().unwrap()];
    let output = fence(&args, &[]).ended().await;
    // It was reached, and wants to know who asks.
    assert!(output.stderr.contains("401") || output.stderr.contains("bearer"), "{output:?}");
}
