//! `fence run` with --shared and --permits.

use fence_protocol::wire::lock::LeaseMode;
use fence_tests::wait::until_true;

use super::{Site, code};

const UNTIL_GO: &str = "while [ ! -e go ]; do sleep 0.02; done";

impl Site {
    async fn until_held_by(&self, count: usize) {
        until_true("the holders", || async { self.locks.show("job").await.lease_count == count })
            .await;
    }
}

#[tokio::test]
async fn readers_run_side_by_side_and_no_writer_beside_them() {
    let site = Site::new().await;
    let mut one = site.run(&["--shared"], UNTIL_GO);
    let mut two = site.run(&["--shared"], UNTIL_GO);
    site.until_held_by(2).await;
    let writer = code(site.run(&[], "touch ran")).await;
    assert_eq!(writer.code, 75, "{writer:?}");
    assert!(writer.stderr.contains("job is held by"), "{}", writer.stderr);
    let permit = code(site.run(&["--permits", "2", "--wait", "1m"], "touch ran")).await;
    assert_eq!(permit.code, 64, "{permit:?}");
    assert!(permit.stderr.contains("lock-kind-conflict"), "{}", permit.stderr);
    assert!(!site.file("ran").exists());
    std::fs::write(site.file("go"), "").unwrap();
    for reader in [&mut one, &mut two] {
        assert_eq!(reader.ended().await.code, 0);
    }
    assert_eq!(code(site.run(&[], "touch ran")).await.code, 0);
}

#[tokio::test]
async fn permits_bound_how_many_run() {
    let site = Site::new().await;
    let mut one = site.run(&["--permits", "2"], UNTIL_GO);
    let mut two = site.run(&["--permits", "2"], UNTIL_GO);
    site.until_held_by(2).await;
    assert_eq!(code(site.run(&["--permits", "2"], "touch ran")).await.code, 75);
    let other = code(site.run(&["--permits", "3"], "touch ran")).await;
    assert_eq!(other.code, 64, "{other:?}");
    assert!(other.stderr.contains("semaphore of size 2"), "{}", other.stderr);
    let mut waits = site.run(&["--permits", "2", "--wait", "1m"], "touch ran");
    site.locks.queue_of("job", 1).await;
    std::fs::write(site.file("go"), "").unwrap();
    for process in [&mut one, &mut two, &mut waits] {
        assert_eq!(process.ended().await.code, 0);
    }
    assert!(site.file("ran").exists());
}

/// The kind goes for every lock of several.
#[tokio::test]
async fn several_are_shared_too() {
    let site = Site::new().await;
    let options = ["--lock", "z", "--shared"];
    let mut one = site.run(&options, UNTIL_GO);
    site.until_held_by(1).await;
    assert_eq!(code(site.run(&options, "true")).await.code, 0);
    assert_eq!(site.locks.show("z").await.holder.unwrap().mode, LeaseMode::Shared);
    let writer = code(site.run(&["--lock", "z"], "true")).await;
    assert_eq!(writer.code, 75, "{writer:?}");
    std::fs::write(site.file("go"), "").unwrap();
    assert_eq!(one.ended().await.code, 0);
}

#[tokio::test]
async fn what_makes_no_sense_is_64() {
    let site = Site::new().await;
    for (options, shown) in [
        (&["--shared", "--permits", "2"][..], "--permits"),
        (&["--shared", "--takeover"], "--takeover"),
        (&["--permits", "0"], "1 to 1024"),
        (&["--permits", "1025", "--lock", "z"], "1 to 1024"),
        (&["--permits", "many"], "many"),
    ] {
        let output = code(site.run(options, "touch ran")).await;
        assert_eq!(output.code, 64, "{options:?}: {output:?}");
        assert!(output.stderr.contains(shown), "{options:?}: {}", output.stderr);
    }
    assert!(!site.file("ran").exists());
}
