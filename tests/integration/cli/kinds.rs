//! `fence lock` with shared leases and permits: everybody who holds the lock is shown.

use fence_tests::process::Output;
use fence_tests::servers::Setup;
use fence_tests::wait::until;
use serde_json::Value;

use super::{Site, fence};

impl Site {
    async fn grant(&self, args: &[&str]) -> Value {
        let args = [&["lock", "acquire", "--ttl", "1m", "--output", "json"], args].concat();
        let output = self.fence(&args).await;
        assert_eq!(output.code, 0, "{args:?}: {output:?}");
        serde_json::from_str(&output.stdout).unwrap()
    }

    async fn show(&self, lock: &str) -> Output {
        let output = self.fence(&["lock", "show", lock]).await;
        assert_eq!(output.code, 0, "{output:?}");
        output
    }
}

/// The line that begins with this word, its columns apart.
fn columns<'a>(text: &'a str, first: &str) -> Vec<&'a str> {
    let line = text.lines().find(|line| line.split("  ").next() == Some(first));
    let line = line.unwrap_or_else(|| panic!("no line of {first} in\n{text}"));
    line.split("  ").map(str::trim).filter(|column| !column.is_empty()).collect()
}

#[tokio::test]
async fn every_reader_is_shown_with_its_lease() {
    let site = Site::new().await;
    let one = site.grant(&["doc", "--shared", "--owner", "reader-1"]).await;
    let alone = site.show("doc").await.stdout;
    assert_eq!(columns(&alone, "mode"), ["mode", "shared"]);
    assert_eq!(columns(&alone, "owner"), ["owner", "reader-1"]);
    let two = site.grant(&["doc", "--shared", "--owner", "reader-2"]).await;
    let text = site.show("doc").await.stdout;
    assert_eq!(columns(&text, "holders"), ["holders", "2"]);
    for (owner, grant) in [("reader-1", &one), ("reader-2", &two)] {
        let line = columns(&text, owner);
        assert_eq!((line[1], line[2]), ("shared", grant["token"].to_string().as_str()));
        assert_eq!(*line.last().unwrap(), grant["lease_id"].as_str().unwrap());
    }
    let lease = two["lease_id"].as_str().unwrap();
    let explained = site.fence(&["lock", "explain", "doc", "--lease", lease]).await.stdout;
    for shown in ["2 shared leases", "reader-1 (token", "reader-2 (token", "It holds the lock"] {
        assert!(explained.contains(shown), "{shown} is missing in\n{explained}");
    }
    assert_eq!(site.fence(&["lock", "acquire", "doc"]).await.code, 75);
    let mut writer = fence(
        &site.locks.base,
        &site.guard.base,
        &["lock", "acquire", "doc", "--wait", "1m", "--owner", "writer"],
    );
    site.locks.locks().queue_of("doc", 1).await;
    let text = site.show("doc").await.stdout;
    assert_eq!(columns(&text, "writer")[1], "exclusive");
    for grant in [&one, &two] {
        let lease = grant["lease_id"].as_str().unwrap();
        assert_eq!(site.fence(&["lock", "release", "doc", lease]).await.code, 0);
    }
    assert_eq!(writer.ended().await.code, 0);
}

#[tokio::test]
async fn a_semaphore_is_shown_with_its_size() {
    let site = Site::new().await;
    let grant = site.grant(&["pool", "--permits", "3"]).await;
    assert_eq!(grant["mode"], "permit");
    site.grant(&["pool", "--permits", "3"]).await;
    let text = site.show("pool").await.stdout;
    assert_eq!(columns(&text, "permits"), ["permits", "2 of 3 held"]);
    let explained = site.fence(&["lock", "explain", "pool"]).await.stdout;
    assert!(
        explained.contains("2 of 3 permits") && explained.contains("is granted at once"),
        "{explained}"
    );
    let other = site.fence(&["lock", "acquire", "pool", "--permits", "2"]).await;
    assert_eq!(other.code, 64, "{other:?}");
    assert!(other.stderr.contains("semaphore of size 3"), "{}", other.stderr);
    let both = site.fence(&["lock", "acquire", "pool", "--permits", "2", "--shared"]).await;
    assert_eq!(both.code, 64, "{both:?}");
}

/// No client holds the lock, and none can have it yet: that is not free.
#[tokio::test]
async fn a_lock_that_is_closed_by_its_delay_says_so() {
    let locks = Setup::lock_server("memory:").args(&["--lock-delay", "slow/=1m"]).start().await;
    let guard = Setup::fenced_store("memory:").start().await;
    let site = Site { locks, guard };
    site.locks.locks().brief("slow/a", 200).await;
    let text = until("the lease to expire", || async {
        let text = site.show("slow/a").await.stdout;
        (columns(&text, "state") == ["state", "delayed"]).then_some(text)
    })
    .await;
    assert!(columns(&text, "lock-delay")[1].ends_with("to go"), "{text}");
    let explained = site.fence(&["lock", "explain", "slow/a"]).await.stdout;
    assert!(
        explained.contains("its lock-delay ends in") && !explained.contains("is free"),
        "{explained}"
    );
}
