//! `fence serve` and `fence bench` where it matters who asks.

use std::path::Path;

use access_control::secret::SecretHash;
use fence_protocol::Code;
use fence_tests::api::{Api, Reply};
use fence_tests::key_file::text;
use fence_tests::process::{Output, Process, command};
use fence_tests::servers::Setup;
use fence_tests::wait::until_true;
use http::Method;

use super::{Site, assert_unknown};

async fn fence(args: &[&str]) -> Output {
    let mut command = command(fence_tests::binaries::path("fence"));
    command.args(args);
    Process::spawn("fence", command).ended().await
}

fn me() -> String {
    let hash = SecretHash::from_secret("secret-of-me");
    format!(
        "{}[principals.me]\ntokens = [\"{hash}\"]\nallow = [\"use orders/*\"]\n",
        Site::file("")
    )
}

/// `fence serve` with an access file, on ports of the system's choice.
async fn serve(site: &Site) -> (Process, String, String) {
    let mut command = command(fence_tests::binaries::path("fence"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--guard-listen", "127.0.0.1:0"]);
    command.arg("--access-file").arg(site.path()).arg("--audit-log").arg(site.audit_path());
    let mut process = Process::spawn("fence serve", command);
    let locks = process.line_after("lock-server listening on ").await;
    let guard = process.line_after("fenced-store listening on ").await;
    process.line_after("Ctrl-C ends it").await;
    (process, locks, guard)
}

/// The tour carries the bearer token, and does what it says; the guard's own reports arrive too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve_asks_who_it_is_and_its_tour_says_so() {
    let site = Site::new();
    site.write(&me());
    site.secret_file("me");
    std::fs::rename(site.folder.path().join("me"), site.folder.path().join("me.secret")).unwrap();
    let (server, locks, guard) = serve(&site).await;
    for base in [&locks, &guard] {
        assert_unknown(&Api::new(base).get("/version").await);
    }
    let printed = server.stdout();
    let tour: Vec<&str> = printed.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    let mut bash = command("bash");
    bash.args(["-euo", "pipefail", "-c", &tour.join("\n")]).current_dir(site.folder.path());
    let output = Process::spawn("bash", bash).ended().await;
    let printed = format!("{}\n{}", output.stdout, output.stderr);
    assert_eq!(output.code, 0, "{printed}");
    let mut rest = printed.as_str();
    for shown in ["201 Created", "412 ", "stale-token", "new", "423 ", "lock-held", "428 "] {
        let at = rest.find(shown).unwrap_or_else(|| panic!("{shown} is missing in\n{printed}"));
        rest = &rest[at..];
    }
    assert!(!printed.contains("unauthorized"), "{printed}");
    let get = async |path: &str| -> Reply {
        let headers = [("authorization", "Bearer secret-of-me")];
        Api::new(&locks).send(Method::GET, path, &headers, "").await
    };
    until_true("the guard's report", || async {
        let shown = get("/v1/locks/orders%2F42").await.expect(200).json();
        shown["refusals"].as_array().is_some_and(|all| !all.is_empty())
    })
    .await;
    get("/v1/locks").await.problem(Code::Forbidden);
    // The guard knows who seals, and the lock server has asked it for its marks.
    until_true("the guard's marks", || async {
        let ready = get("/readyz?verbose").await;
        String::from_utf8_lossy(&ready.body).contains("[+]guards ok")
    })
    .await;
    let who: Vec<_> = site.audit().iter().map(|line| line["principal"].clone()).collect();
    assert!(who.contains(&"me".into()) && !who.contains(&"(guard)".into()), "{who:?}");
}

#[tokio::test]
async fn serve_refuses_an_access_file_that_is_wrong() {
    let site = Site::new();
    site.write("[principals.a]\nallow = [\"steal *\"]");
    let line = ["serve", "--listen=127.0.0.1:0", "--guard-listen=127.0.0.1:0", "--access-file"];
    let refused = fence(&[&line[..], &[text(&site.path())]].concat()).await;
    assert_eq!(refused.code, 64, "{refused:?}");
    assert!(refused.stderr.contains("tokens has 0 entries"), "{refused:?}");
}

#[tokio::test]
async fn a_benchmark_of_a_running_server_says_who_asks() {
    let site = Site::new();
    let hash = SecretHash::from_secret("secret-of-bench");
    let entry = format!("[principals.bench]\ntokens = [\"{hash}\"]\nallow = [\"use bench/*\"]\n");
    site.write(&format!("{}{entry}", Site::file("")));
    let locks = site.arm(Setup::lock_server("memory:")).start().await;
    let guard = site.arm(Setup::fenced_store("memory:")).start().await;
    let auth = site.secret_file("bench");
    let run = async |what: &[&str], auth: Option<&Path>| {
        let mut args = vec!["bench"];
        args.extend(what);
        args.extend(["--clients", "1", "--rounds", "1", "--time", "50ms"]);
        args.extend(auth.into_iter().flat_map(|file| ["--auth-file", text(file)]));
        fence(&args).await
    };
    let at_locks = ["lock", "--server", locks.base.as_str()];
    let at_guard = ["guard", "--server", locks.base.as_str(), "--store", guard.base.as_str()];
    for what in [&at_locks[..], &at_guard[..]] {
        let measured = run(what, Some(auth.as_path())).await;
        assert_eq!(measured.code, 0, "{measured:?}");
        assert!(measured.stdout.contains("1 rounds of 50 ms"), "{measured:?}");
        let unknown = run(what, None).await;
        assert!(unknown.code == 69 && unknown.stderr.contains("unauthorized"), "{unknown:?}");
        let missing = run(what, Some(Path::new("/nonexistent/secret"))).await;
        assert_eq!(missing.code, 64, "{missing:?}");
    }
}
