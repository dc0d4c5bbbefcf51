//! Errors of `fence`: its own words, exit codes that a caller chose, documents for programs.

use access_control::secret::SecretHash;
use fence_client::Client;
use fence_tests::key_file::{lease_id, text};
use fence_tests::process::{Process, command};
use fence_tests::redis_server::Redis;
use fence_tests::servers::Setup;
use serde_json::Value;
use tempfile::TempDir;

use super::{Site, fence};

/// A caller without a token or a right gets 77, and the flag that names a token.
#[tokio::test]
async fn a_caller_without_the_right_is_77() {
    let folder = TempDir::new().unwrap();
    let access = folder.path().join("access.toml");
    let token = folder.path().join("token");
    let hash = SecretHash::from_secret("secret-of-me");
    let entry = format!("[principals.me]\ntokens = [\"{hash}\"]\nallow = [\"use mine/*\"]\n");
    std::fs::write(&access, entry).unwrap();
    std::fs::write(&token, "secret-of-me").unwrap();
    let server = Setup::lock_server("memory:").args(&["--access-file", text(&access)]);
    let server = server.start().await;
    let run = async |args: &[&str]| fence(&server.base, &server.base, args).ended().await;
    let unknown = run(&["lock", "acquire", "mine/a"]).await;
    assert_eq!(unknown.code, 77, "{unknown:?}");
    assert!(unknown.stderr.contains("--auth-file"), "{unknown:?}");
    assert!(!unknown.stderr.contains("Authorization"), "{unknown:?}");
    let known = ["--auth-file", text(&token)];
    let refused = run(&[&["run", "--lock", "other/a"], &known[..], &["--", "true"]].concat()).await;
    assert_eq!(refused.code, 77, "{refused:?}");
    let allowed = run(&[&["run", "--lock", "mine/a"], &known[..], &["--", "true"]].concat()).await;
    assert_eq!(allowed.code, 0, "{allowed:?}");
}

#[tokio::test]
async fn errors_name_flags() {
    let site = Site::new().await;
    for (args, shown) in [
        (&["lock", "acquire", "a", "--ttl", "2h"][..], "--ttl"),
        (&["object", "put", "a", "--token-header", "x"], "--token-header"),
        (&["lock", "acquire", "a", "--min-token", "999999999999999"], "--min-token"),
        (&["lock", "release", "a"], "--lease"),
        (&["lock", "revoke", "a", "--reason", ""], "--reason: reason \"\" must be"),
        (&["lock", "list", "--limit", "-3"], "\"-3\" is not valid for --limit"),
    ] {
        let output = site.fence(args).await;
        assert_eq!(output.code, 64, "{args:?}: {output:?}");
        assert!(output.stderr.contains(shown), "{args:?}: {output:?}");
        for word in ["_ms", "min_token", " header"] {
            assert!(!output.stderr.contains(word), "{args:?}: {word} in {output:?}");
        }
    }
}

/// A Redis closes the connection: a change has an unknown outcome, as at a server that died.
#[tokio::test]
async fn the_port_of_a_store_is_no_server() {
    let redis = Redis::start().await;
    let base = format!("http://{}", redis.address());
    for (args, code) in [
        (&["lock", "show", "a"][..], 69),
        (&["lock", "revoke", "a", "--reason", "x"], 74),
        (&["lock", "acquire", "a"], 74),
        (&["object", "get", "a"], 69),
    ] {
        let output = fence(&base, &base, args).ended().await;
        let is_named = output.stderr.contains("no HTTP came back: if this port speaks TLS")
            && output.stderr.contains("of a store such as Redis");
        assert!(output.code == code && is_named, "{args:?}: {output:?}");
    }
}

/// A lease id of another lock, or a mistyped one, is not said to have expired.
#[tokio::test]
async fn an_unknown_lease_is_not_said_to_have_ended() {
    let site = Site::new().await;
    let never = lease_id().to_string();
    for action in ["renew", "release"] {
        let output = site.fence(&["lock", action, "a", &never]).await;
        assert_eq!(output.code, 76, "{output:?}");
        for shown in ["lock a knows no such lease: it was", "Check the lock and the lease id;"] {
            assert!(output.stderr.contains(shown), "{output:?}");
        }
    }
    // What was released there is not granted any more.
    let early = site.fence(&["lock", "release", "a", &never]).await;
    assert!(early.code == 76 && early.stderr.contains("has ended: released"), "{early:?}");
    let client = Client::builder().lock_server(&site.locks.base).build().unwrap();
    let lock = "b".parse().unwrap();
    let error = client.locks().release(&lock, lease_id()).await.unwrap_err();
    assert!(error.to_string().contains("lock b knows no such lease: it was never"), "{error}");
}

/// So is wrong usage, which has no command yet; a variable chooses the format too.
#[tokio::test]
async fn wrong_usage_is_a_document_for_programs() {
    let site = Site::new().await;
    for (args, shown) in [
        (&["lock", "acquire", "-o", "json"][..], "<LOCK>"),
        (&["lock", "show", "a", "--output=json", "--nonsense"], "--nonsense"),
        (&["lock", "list", "--limit", "many", "--output", "json"], "--limit"),
        (&["nonsense", "--output", "json"], "nonsense"),
    ] {
        let output = site.fence(args).await;
        assert_eq!((output.code, output.stdout.as_str()), (64, ""), "{args:?}: {output:?}");
        let document: Value = serde_json::from_str(&output.stderr).unwrap();
        assert_eq!(document["type"], "urn:fencepost:fence:usage");
        assert_eq!(document["exit_code"], 64);
        assert!(document["detail"].as_str().unwrap().contains(shown), "{document}");
    }
    let text = site.fence(&["lock", "list", "--limit", "many", "-o", "table"]).await;
    assert!(text.stderr.starts_with("error: "), "{text:?}");
    let help = site.fence(&["lock", "list", "--help", "-o", "json"]).await;
    assert!(help.code == 0 && help.stdout.contains("Usage:"), "{help:?}");
    let mut by_variable = command(fence_tests::binaries::path("fence"));
    by_variable.args(["lock", "list", "--limit", "many"]).env("FENCE_OUTPUT", "json");
    let output = Process::spawn("fence", by_variable).ended().await;
    serde_json::from_str::<Value>(&output.stderr).unwrap();
}

/// With --output json an error is a problem document in one line on stderr; stdout stays empty.
#[tokio::test]
async fn errors_are_documents_for_programs() {
    let site = Site::new().await;
    site.locks.locks().grant("held", 60_000).await;
    let document = async |args: &[&str]| -> Value {
        let output = site.fence(&[args, &["--output", "json"]].concat()).await;
        assert_eq!(output.stdout, "", "{output:?}");
        let document: Value = serde_json::from_str(&output.stderr).unwrap();
        assert_eq!(document["exit_code"], output.code, "{output:?}");
        document
    };
    let held = document(&["lock", "acquire", "held"]).await;
    assert_eq!(held["type"], "urn:fencepost:lock-held");
    assert_eq!((&held["status"], &held["exit_code"]), (&423.into(), &75.into()));
    assert!(held["holder"]["owner"].is_string() && held["retryable"] == true, "{held}");
    let own = document(&["object", "seal"]).await;
    assert_eq!(own["type"], "urn:fencepost:fence:usage");
    assert!(own["detail"].as_str().unwrap().contains("--token-header"), "{own}");
}

#[tokio::test]
async fn the_caller_chooses_the_code_of_a_conflict() {
    let site = Site::new().await;
    site.locks.locks().grant("held", 60_000).await;
    for args in [
        &["lock", "acquire", "held", "--conflict-exit-code", "9"][..],
        &["run", "--lock", "held", "--conflict-exit-code", "9", "--", "true"],
        &["run", "--lock", "held", "--lock", "b", "--conflict-exit-code", "9", "--", "true"],
    ] {
        let output = site.fence(args).await;
        assert_eq!(output.code, 9, "{args:?}: {output:?}");
    }
    // It is the code of a conflict alone.
    let bad = site.fence(&["lock", "acquire", "a//b", "--conflict-exit-code", "9"]).await;
    assert_eq!(bad.code, 64, "{bad:?}");
}

#[tokio::test]
async fn a_shells_command_line_runs() {
    let site = Site::new().await;
    let line = "echo $FENCE_LOCK && false || exit 7";
    let output = site.fence(&["run", "--lock", "a", "-c", line]).await;
    assert_eq!((output.code, output.stdout.as_str()), (7, "a\n"), "{output:?}");
    let both = site.fence(&["run", "--lock", "a", "-c", "true", "--", "true"]).await;
    assert_eq!(both.code, 64, "{both:?}");
    let none = site.fence(&["run", "--lock", "a"]).await;
    assert_eq!(none.code, 64, "{none:?}");
}

/// The id of a lease stands behind the lock, or is named by --lease as everywhere else.
#[tokio::test]
async fn a_lease_is_named_by_its_flag_too() {
    let site = Site::new().await;
    let grant = site.locks.locks().grant("a", 60_000).await;
    let id = grant.lease_id.to_string();
    assert_eq!(site.fence(&["lock", "renew", "a", "--lease", &id]).await.code, 0);
    assert_eq!(site.fence(&["lock", "release", "a", "--lease", &id, &id]).await.code, 64);
    assert_eq!(site.fence(&["lock", "release", "a", "--lease", &id]).await.code, 0);
}

/// A wrong address is refused with where it came from.
#[tokio::test]
async fn a_wrong_address_names_its_origin() {
    let site = Site::new().await;
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("fence.toml");
    std::fs::write(&file, "guard = \"redis://a\"\n").unwrap();
    let list = ["object", "list"];
    let cases = [
        (fence(&site.locks.base, "redis://a", &list), "variable FENCE_STORE"),
        (fence("", "", &["object", "list", "--config", text(&file)]), "fence.toml, key guard"),
        (fence("", "", &["object", "list", "--guard", "redis://a"]), "--guard"),
    ];
    for (mut process, origin) in cases {
        let output = process.ended().await;
        assert_eq!(output.code, 64, "{origin}: {output:?}");
        assert!(output.stderr.contains(origin), "{origin}: {output:?}");
        assert!(output.stderr.contains("http://"), "{origin}: {output:?}");
    }
}
