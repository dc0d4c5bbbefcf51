//! Reports of a revocation: the audit log, the log and the command.

use fence_protocol::wire::lock::RevokedReply;
use fence_tests::key_file::text;
use fence_tests::process::run;
use fence_tests::wait::until;
use serde_json::Value;

use super::revoke::mark;
use super::site::{Kind, Site, revoked};

/// A revocation is in the audit log, with what each guard said.
#[tokio::test]
async fn the_audit_log_has_what_the_guards_said() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    let mut site = Site::with_socket(Kind::Embedded, 2, &["--audit-log", text(&file)]).await;
    let first = site.locks().grant("job", 60_000).await;
    site.guards[1].process.kill();
    revoked(&site.locks(), "job").await;
    let lines = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let answered = lines.iter().find(|line| line["phase"] == "answered").expect("a line");
    let notes = &answered["notes"];
    assert_eq!(notes["reason"], "the worker hangs");
    assert_eq!(notes["lease_id"], first.lease_id.to_string());
    let guards = notes["guards"].as_str().unwrap();
    assert!(guards.contains(&format!("{} sealed at 2", site.guards[0].base)), "{guards}");
    assert!(guards.contains(&site.guards[1].base), "{guards}");
    let log = until("the line of the log", || async {
        let log = site.server.process.stderr() + &site.server.process.stdout();
        log.contains("a lease was revoked").then_some(log)
    });
    assert!(log.await.contains("sealed at 2"));
}

/// The command reports each guard, in a table and as JSON.
#[tokio::test]
async fn the_command_prints_what_the_guards_said() {
    let mut site = Site::with_socket(Kind::Embedded, 2, &[]).await;
    let locks = site.locks();
    let leases = [locks.grant("job", 60_000).await, locks.grant("other", 60_000).await];
    site.guards[1].process.kill();
    let revoke = ["lock", "revoke", "--server", &site.server.base, "--reason", "by hand"];
    let output = run("fence", &[&revoke[..], &["job"]].concat()).await;
    assert_eq!(output.code, 0, "{output:?}");
    let lines: Vec<&str> = output.stdout.lines().collect();
    assert!(lines[2].contains(&leases[0].lease_id.to_string()), "{output:?}");
    assert_eq!(
        lines[4],
        format!("guard     {} sealed at 3: refuses what came before", site.guards[0].base)
    );
    assert!(lines[5].contains(&format!("{} NOT SEALED: ", site.guards[1].base)), "{output:?}");
    let lease = leases[1].lease_id.to_string();
    let named = ["other", "--lease", &lease, "--output", "json"];
    let output = run("fence", &[&revoke[..], &named].concat()).await;
    let reply: RevokedReply = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(reply.ended.as_ref().map(|ended| ended.lease_id), Some(leases[1].lease_id));
    assert_eq!(mark(&reply, 0), 4);
    // It has ended.
    let output = run("fence", &[&revoke[..], &named].concat()).await;
    assert_eq!(output.code, 76, "{output:?}");
    assert!(output.stderr.contains("by hand"), "{output:?}");
}
