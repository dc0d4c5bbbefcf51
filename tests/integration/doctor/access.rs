//! Access files: what doctor says without a bearer token, and which rights it needs.

use std::path::PathBuf;

use access_control::secret::SecretHash;
use fence_tests::key_file::text;
use fence_tests::servers::{Server, Setup};
use tempfile::TempDir;

use super::{about, at_both, both, well};

/// A lock server and a guard with one access file.
struct Site {
    folder: TempDir,
    server: Server,
    guard: Server,
}

impl Site {
    async fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let entry = |name: &str, allow: &str| {
            let hash = SecretHash::from_secret(&format!("secret-of-{name}"));
            format!("[principals.{name}]\ntokens = [\"{hash}\"]\nallow = [\"{allow}\"]\n")
        };
        let access = folder.path().join("access.toml");
        let entries = entry("doctor", "use fence-doctor/*")
            + &entry("team", "use team/*")
            + &entry("guard", "report *");
        std::fs::write(&access, entries).unwrap();
        let armed = |setup: Setup| setup.arg("--access-file").arg(text(&access));
        let server = armed(Setup::lock_server("memory:")).start().await;
        let secret = secret_file(&folder, "guard");
        let guard = armed(Setup::fenced_store("memory:"))
            .args(&["--report-to", &server.base, "--report-auth-file", text(&secret)])
            .start()
            .await;
        Self { folder, server, guard }
    }

    async fn doctor_as(&self, name: &str) -> (i32, Vec<super::Finding>) {
        let secret = secret_file(&self.folder, name);
        both(&self.server, &self.guard, &["--auth-file", text(&secret)]).await
    }
}

fn secret_file(folder: &TempDir, name: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, format!("secret-of-{name}\n")).unwrap();
    path
}

#[tokio::test]
async fn a_bearer_token_is_asked_for_by_its_flag() {
    let site = Site::new().await;
    let anonymous = both(&site.server, &site.guard, &[]).await;
    let stranger = site.doctor_as("stranger").await;
    for (code, checks) in [anonymous, stranger] {
        assert_eq!(code, 69, "{checks:?}");
        for name in ["lock-server", "fenced-store"] {
            let (verdict, text) = about(&checks, &format!("{name} access"));
            assert_eq!(verdict, "failing");
            assert!(text.contains("needs a bearer token"), "{text}");
            assert!(text.contains("--auth-file"), "{text}");
        }
        assert!(!format!("{checks:?}").contains("takes no requests"), "{checks:?}");
    }
}

#[tokio::test]
async fn a_missing_right_is_named() {
    let site = Site::new().await;
    let (code, checks) = site.doctor_as("team").await;
    assert_eq!(code, 1, "{checks:?}");
    let (verdict, text) = about(&checks, "round trip");
    assert_eq!(verdict, "warning");
    assert!(text.contains("\"use fence-doctor/*\"") && text.contains("team"), "{text}");
    assert!(text.contains("the lock server"), "{text}");

    // That right is enough; of what it does not allow to see, doctor says so.
    let secret = secret_file(&site.folder, "doctor");
    let flags = ["--auth-file", fence_tests::key_file::text(&secret)];
    let checks = well(&at_both(&site.server, &site.guard, &flags)).await;
    assert_eq!(about(&checks, "round trip").0, "ok");
    assert_eq!(about(&checks, "reports").0, "ok");
    for what in ["fenced-store stores", "token counter"] {
        let (verdict, text) = about(&checks, what);
        assert_eq!(verdict, "note");
        assert!(text.contains("\"read *\""), "{text}");
    }
}
