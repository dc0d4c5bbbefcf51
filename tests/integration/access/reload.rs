//! The file changes while the server runs.

use fence_tests::api::Api;
use fence_tests::servers::Setup;
use fence_tests::wait::until_true;

use super::{As, Site, assert_unknown};

/// Readiness as a user reads it who may not see others' entries.
async fn readiness(known: &As) -> String {
    let text = known.get("/readyz?verbose").await.expect(200).body;
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(!text.contains("late") && !text.contains("steal"), "{text}");
    text
}

async fn metric(known: &As, line: &str) -> bool {
    String::from_utf8_lossy(&known.get("/metrics").await.expect(200).body).contains(line)
}

#[tokio::test]
async fn a_change_needs_no_restart_and_a_bad_file_changes_nothing() {
    let site = Site::new();
    let server = site.arm(Setup::lock_server("memory:")).start().await;
    let team = As::new(&server, "team");
    let late = As::new(&server, "late");
    let eye = As::new(&server, "eye");
    assert_unknown(&Api::new(&server.base).get("/readyz?verbose").await);
    assert!(metric(&eye, "fencepost_access_file_usable 1").await);
    assert_unknown(&late.acquire("team/b").await);
    team.acquire("team/a").await.lease();

    site.write(
        &Site::file("")
            .replace("principals.team", "principals.late")
            .replace(&hash("team"), &hash("late")),
    );
    until_true("the new principal to be known", || async {
        late.get("/v1/locks/team%2Fa").await.status == 200
    })
    .await;
    assert_unknown(&team.acquire("team/c").await);

    let half = Site::file("");
    let bad_files: [(&str, &str); 6] = [
        ("[principals.late]\nnonsense", "line 2"),
        ("", "names no principal"),
        (&half[..half.len() / 2], "line"),
        (&half.replace("sha256:", ""), "is not sha256:"),
        (&half.replace("use other", "steal other"), "\"steal\" is no verb"),
        (&format!("{half}max-locks = -1\n"), "-1"),
    ];
    for (at, (bad, reason)) in bad_files.into_iter().enumerate() {
        site.write(bad);
        until_true(reason, || async { rejected(&site).len() == at + 1 }).await;
        assert!(rejected(&site)[at].contains(reason), "{:?}", rejected(&site));
        let text = readiness(&eye).await;
        assert!(text.contains("[!]access-file warning:") && text.contains("the log says why"));
        assert!(metric(&eye, "fencepost_access_file_usable 0").await);
        late.get("/v1/locks/team%2Fa").await.expect(200);
        assert_unknown(&team.get("/v1/locks/team%2Fa").await);
        assert!(server.process.stderr().contains(reason), "the log says why");
    }
    std::fs::remove_file(site.path()).unwrap();
    until_true("the missing file to be reported", || async {
        rejected(&site).last().is_some_and(|detail| detail.contains("cannot be read"))
    })
    .await;
    late.get("/v1/locks/team%2Fa").await.expect(200);
    assert!(metric(&eye, "fencepost_access_file_rejections_total 7").await);

    site.write(&Site::file(""));
    until_true("the good file to be in force", || async {
        team.get("/v1/locks/team%2Fa").await.status == 200
    })
    .await;
    assert_unknown(&late.get("/v1/locks/team%2Fa").await);
    assert!(readiness(&eye).await.contains("[+]access-file ok"));
    assert!(metric(&eye, "fencepost_access_file_usable 1").await);
    assert!(metric(&eye, "fencepost_access_file_loads_total 2").await);
    let expected: Vec<&str> =
        ["loaded"].into_iter().chain(["rejected"; 7]).chain(["loaded"]).collect();
    // A file is in force before the log says so.
    until_true("a line for each file", || async { phases(&site).len() >= expected.len() }).await;
    assert_eq!(phases(&site), expected);
}

/// Outcome of each file, by the audit log.
fn phases(site: &Site) -> Vec<String> {
    let lines = site.audit().into_iter().filter(|line| line["event"] == "access-file");
    lines.map(|line| line["phase"].as_str().unwrap().to_owned()).collect()
}

/// Why files were rejected, by the audit log.
fn rejected(site: &Site) -> Vec<String> {
    let lines = site.audit().into_iter().filter(|line| line["phase"] == "rejected");
    lines.map(|line| line["detail"].as_str().unwrap_or_default().to_owned()).collect()
}

fn hash(name: &str) -> String {
    access_control::secret::SecretHash::from_secret(&format!("secret-of-{name}")).to_string()
}

#[tokio::test]
async fn a_file_that_is_wrong_at_start_ends_the_server() {
    let site = Site::new();
    site.write("[principals.a]\ntokens = [\"fencepost_secret\"]\nallow = [\"steal *\"]");
    for setup in [Setup::lock_server("memory:"), Setup::fenced_store("memory:")] {
        let output = site.arm(setup).refused().await;
        assert_eq!(output.code, 64, "{output:?}");
        for part in ["--access-file", "tokens[0]", "\"steal\" is no verb"] {
            assert!(output.stderr.contains(part), "{part}: {}", output.stderr);
        }
        assert!(!output.stderr.contains("fencepost_secret"), "{}", output.stderr);
    }
    site.write(&Site::file(""));
    let keys = fence_tests::key_file::KeyFile::new("k1", 7);
    let setup = site.arm(Setup::lock_server("memory:")).listen("0.0.0.0:0");
    let output = setup.keys(&keys.path()).refused().await;
    assert!(
        output.stderr.contains("and lacks TLS (--tls-cert, --tls-key): add"),
        "{}",
        output.stderr
    );
}
