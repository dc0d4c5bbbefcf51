//! Clients of servers at `https://`: `fence`, the SDK, lock servers of guards and guards of lock
//! servers and datastores; and the rule for plain HTTP.

mod errors;
mod peers;
mod plain;
mod proxies;
mod self_signed;
mod used_connection;

use fence_tests::certificates::Certificates;
use fence_tests::process::{Process, command};

/// `fence` with these arguments and variables.
fn fence(args: &[&str], env: &[(&str, &str)]) -> Process {
    let mut command = command(fence_tests::binaries::path("fence"));
    command.args(args).envs(env.iter().copied());
    Process::spawn("fence", command)
}

/// The words of a failing command are all on standard error.
async fn fails(args: &[&str], code: i32, words: &[&str]) {
    let output = fence(args, &[]).ended().await;
    assert_eq!(output.code, code, "{args:?}: {output:?}");
    for word in words {
        assert!(output.stderr.contains(word), "{args:?}: no {word:?} in {}", output.stderr);
    }
}

/// Flags of `fence` for a server with one of these certificates.
fn trusting(certificates: &Certificates) -> [String; 2] {
    ["--ca-file".to_owned(), certificates.text("ca.pem")]
}
