//! The file changes while the server runs.

use fence_tests::api::Api;
use fence_tests::servers::Setup;
use fence_tests::wait::until_true;

use super::{As, Site, assert_unknown};

async fn readiness(api: &Api) -> String {
    String::from_utf8_lossy(&api.get("/readyz?verbose").await.expect(200).body).into_owned()
}

#[tokio::test]
async fn a_change_needs_no_restart_and_a_bad_file_changes_nothing() {
    let site = Site::new();
    let server = site.lock_server().await;
    let (team, late, api) =
        (As::new(&server, "team"), As::new(&server, "late"), Api::new(&server.base));
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

    for (bad, reason) in [
        ("[principals.late]\nnonsense", "line 2"),
        ("", "names no principal"),
        (&Site::file("").replace("sha256:", ""), "is not sha256:"),
    ] {
        site.write(bad);
        until_true(reason, || async {
            let text = readiness(&api).await;
            text.contains("[!]access-file warning:") && text.contains(reason)
        })
        .await;
        late.get("/v1/locks/team%2Fa").await.expect(200);
        assert_unknown(&team.get("/v1/locks/team%2Fa").await);
        assert!(server.process.stderr().contains(reason), "the log says why");
    }
    std::fs::remove_file(site.path()).unwrap();
    until_true("the missing file to be told", || async {
        readiness(&api).await.contains("cannot be read")
    })
    .await;
    late.get("/v1/locks/team%2Fa").await.expect(200);

    site.write(&Site::file(""));
    until_true("the good file to be in force", || async {
        team.get("/v1/locks/team%2Fa").await.status == 200
    })
    .await;
    assert_unknown(&late.get("/v1/locks/team%2Fa").await);
    assert!(readiness(&api).await.contains("[+]access-file ok"));
    let phases: Vec<String> = site
        .audit()
        .iter()
        .filter(|line| line["event"] == "access-file")
        .map(|line| line["phase"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(phases, ["loaded", "rejected", "rejected", "rejected", "rejected", "loaded"]);
}

fn hash(name: &str) -> String {
    service_kit::access::secret::SecretHash::of(&format!("secret-of-{name}")).to_string()
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
    assert!(output.stderr.contains("loopback"), "{}", output.stderr);
}
