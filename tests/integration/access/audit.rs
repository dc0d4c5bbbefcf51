//! Audit lines of administration and refusals.

use fence_protocol::Code;
use fence_tests::process::{Process, command};
use fence_tests::servers::Setup;
use http::Method;
use serde_json::{Value, json};

use super::{As, Site};

#[tokio::test]
async fn administration_is_written_before_and_after_and_refusals_once() {
    let site = Site::new();
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let ops = As::new(&server, "ops");
    let lease = team.acquire("team/a").await.lease();
    let reason = "a \"quote\" and a \\ ".repeat(20);
    ops.lock("team/a", "revoke", &json!({"reason": &reason[..200]})).await.expect(200);
    ops.lock("team/a", "revoke", &json!({"reason": "again"})).await.problem(Code::NotFound);
    team.acquire("other").await.problem(Code::Forbidden);
    server.api().get("/v1/locks?secret=x").await.problem(Code::Unauthorized);

    let lines = site.audit();
    let columns = |line: &Value| {
        let word = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
        [word("event"), word("phase"), word("principal"), line["status"].to_string(), word("code")]
            .join(" ")
    };
    let found: Vec<String> = lines.iter().map(columns).collect();
    assert_eq!(
        found,
        [
            "admin asked ops null -",
            "admin answered ops 200 -",
            "admin asked ops null -",
            "admin answered ops 404 not-found",
            "refused - team 403 forbidden",
            "refused - - 401 unauthorized",
        ]
    );
    assert_eq!(lines[1]["notes"]["reason"], reason[..200]);
    assert_eq!(lines[1]["notes"]["token"], lease.token.to_string());
    assert_eq!(lines[1]["request"], "POST /v1/locks/team%2Fa/revoke");
    assert_eq!(lines[1]["request_id"], lines[0]["request_id"]);
    assert_eq!(lines[5]["request"], "GET /v1/locks", "a query may hold anything");
    let text = std::fs::read_to_string(site.audit_path()).unwrap();
    assert!(!text.contains("secret-of"), "{text}");
    assert!(text.lines().all(|line| line.len() < 4_096));
}

#[tokio::test]
async fn the_guard_writes_the_same() {
    let site = Site::new();
    let guard = site.guard().await;
    let team = As::new(&guard, "team");
    let ops = As::new(&guard, "ops");
    ops.send(Method::POST, "/v1/floor", "{\"floor\":5}").await.problem(Code::NotOffered);
    team.send(Method::POST, "/v1/floor", "{\"floor\":5}").await.problem(Code::Forbidden);
    let extend =
        json!({"action": "extend", "quarantine": "5f-1", "extend_ms": 5, "reason": "slow"});
    let extend = extend.to_string();
    let lane = "/v1/lanes/team/a/quarantine";
    ops.send(Method::POST, lane, &extend).await.problem(Code::NotOffered);
    team.send(Method::POST, lane, &extend).await.problem(Code::Forbidden);
    team.send(Method::PUT, "/v1/objects/other/a", "x").await.problem(Code::Forbidden);
    let token = "7;lock=\"team/b\";lease=\"67e55044-10b1-426f-9247-bb680e5fe0c8\"";
    let headers = [("authorization", team.bearer.as_str()), ("fencing-token", token)];
    let wrong = team.api.send(Method::PUT, "/v1/objects/team/a", &headers, "x").await;
    wrong.problem(Code::WrongLock);
    guard.api().get("/v1/fences").await.problem(Code::Unauthorized);
    let found: Vec<String> = site
        .audit()
        .iter()
        .map(|line| {
            let word = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
            ["service", "event", "phase", "principal", "verb", "code"].map(word).join(" ")
        })
        .collect();
    assert_eq!(
        found,
        [
            "fenced-store admin asked ops floor -",
            "fenced-store admin answered ops floor not-offered-by-store",
            "fenced-store refused - team floor forbidden",
            "fenced-store admin asked ops quarantine -",
            "fenced-store admin answered ops quarantine not-offered-by-store",
            "fenced-store refused - team quarantine forbidden",
            "fenced-store refused - team write forbidden",
            "fenced-store refused - team write wrong-lock",
            "fenced-store refused - - read unauthorized",
        ]
    );
    assert_eq!(site.audit()[1]["notes"]["stated"], "5");
    let notes =
        json!({"action": "extend", "quarantine": "5f-1", "extend_ms": "5", "reason": "slow"});
    assert_eq!(site.audit()[4]["notes"], notes);
}

#[tokio::test]
async fn what_cannot_be_written_down_is_not_done() {
    let site = Site::new();
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let ops = As::new(&server, "ops");
    let lease = team.acquire("team/a").await.lease();
    std::fs::remove_file(site.audit_path()).unwrap();
    std::fs::create_dir(site.audit_path()).unwrap();
    let revoke = json!({"reason": "unheard"});
    ops.lock("team/a", "revoke", &revoke).await.problem(Code::StoreUnavailable);
    let held = json!({"lease_id": lease.lease_id});
    team.lock("team/a", "renew", &held).await.expect(200);
    let ready = team.get("/readyz?verbose").await.expect(200);
    assert!(String::from_utf8_lossy(&ready.body).contains("[!]audit-log"), "{ready:?}");
    std::fs::remove_dir(site.audit_path()).unwrap();
    ops.lock("team/a", "revoke", &revoke).await.expect(200);
    assert_eq!(site.audit().len(), 2);
}

#[tokio::test]
async fn without_an_access_file_administration_is_written_all_the_same() {
    let site = Site::new();
    let audit = site.audit_path();
    let setup = Setup::lock_server("memory:").args(&["--audit-log", audit.to_str().unwrap()]);
    let server = setup.in_process().await;
    server.locks().grant("a", 60_000).await;
    server.locks().0.post("/v1/locks/a/revoke", &json!({"reason": "r"})).await.expect(200);
    let lines = site.audit();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].get("principal").is_none() && lines[1]["status"] == 200, "{lines:?}");
}

async fn fence(args: &[&str]) -> fence_tests::process::Output {
    let mut command = command(fence_tests::binaries::path("fence"));
    command.args(args);
    Process::spawn("fence", command).ended().await
}

#[tokio::test]
async fn the_command_makes_a_token_that_the_servers_know() {
    let site = Site::new();
    let secret = site.folder.path().join("ci.secret");
    let secret = secret.to_str().unwrap();
    let made = fence(&["auth", "new", "ci", "--secret-file", secret]).await;
    assert_eq!(made.code, 0, "{made:?}");
    let content = std::fs::read_to_string(secret).unwrap();
    assert!(!made.stdout.contains(content.trim()) && !made.stderr.contains(content.trim()));
    site.write(&made.stdout);
    let server = site.arm(Setup::lock_server("memory:")).start().await;
    let at =
        |file: &'static str| ["--server", &server.base, "--auth-file", file].map(str::to_owned);
    let run = async |auth: &[String]| {
        let mut args = vec!["lock", "acquire", "ci/a"];
        args.extend(auth.iter().map(String::as_str));
        fence(&args).await
    };
    let known = run(&["--server", &server.base, "--auth-file", secret].map(str::to_owned)).await;
    assert_eq!(known.code, 0, "{known:?}");
    let unknown = run(&["--server", &server.base].map(str::to_owned)).await;
    assert!(unknown.code != 0 && unknown.stderr.contains("unauthorized"), "{unknown:?}");
    let missing = run(&at("/nonexistent/secret")).await;
    assert_eq!(missing.code, 64, "{missing:?}");
    let shown = fence(&["auth", "new", "b", "--allow", "read *"]).await;
    assert!(shown.stderr.contains("shown once: fencepost_"), "{shown:?}");
    assert!(!shown.stdout.contains("fencepost_"), "{shown:?}");
    let wrong = fence(&["auth", "new", "b", "--allow", "steal *"]).await;
    assert_eq!(wrong.code, 64, "{wrong:?}");
    let again = fence(&["auth", "new", "c", "--secret-file", secret]).await;
    assert_eq!(again.code, 64, "an existing secret is not overwritten: {again:?}");
}
