//! Replies that are late: the command's own end counts, and waiting continues.

use fence_tests::fault_proxy::{Fault, FaultProxy};

use super::*;

/// `fence run` behind a proxy.
async fn behind_proxy(site: &Site, options: &[&str], script: &str) -> (FaultProxy, Process) {
    let proxy = FaultProxy::before(&site.server.address()).await;
    let url = format!("http://{}", proxy.address());
    let process = site.run(&[&["--server", &url], options].concat(), script);
    (proxy, process)
}

/// The command ends while its lease is trusted, and no reply to the release arrives until it has
/// expired: the command's own code, a warning, and nothing is left to wait for.
#[tokio::test]
async fn a_release_without_a_reply_ends_with_the_lease_and_is_no_loss() {
    for more in [&[][..], &["--lock", "other"]] {
        let site = Site::new().await;
        let script = "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done; exit 5";
        let options = [&["--ttl", "4s"], more].concat();
        let (proxy, mut process) = behind_proxy(&site, &options, script).await;
        site.job_pid().await;
        // Renewals have replies until then, however late the command sees that it may end.
        proxy.set(Fault::DropRepliesAfter("/release"));
        std::fs::write(site.file("go"), "").unwrap();
        let output = process.ended().await;
        assert_eq!(output.code, 5, "{output:?}");
        let ended =
            "the lease ended before its release had a reply, but its work had ended in time";
        assert!(output.stderr.contains(ended), "{}", output.stderr);
        assert!(!output.stderr.contains("not released"), "{}", output.stderr);
    }
}

/// The reply to the release is lost, and others have held the lock since, so that the server has
/// forgotten the release when it is retried.
#[tokio::test]
async fn a_release_that_the_server_has_forgotten_is_no_loss() {
    let site = Site::new().await;
    let script = "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done; exit 5";
    let (proxy, mut process) = behind_proxy(&site, &["--ttl", "60s"], script).await;
    site.job_pid().await;
    proxy.set(Fault::DropReplies);
    std::fs::write(site.file("go"), "").unwrap();
    site.until_free().await;
    for _ in 0..9 {
        let held = site.locks.grant("job", 60_000).await;
        site.locks.release("job", held.lease_id).await.expect(200);
    }
    proxy.set(Fault::None);
    proxy.cut();
    let output = process.ended().await;
    assert_eq!(output.code, 5, "{output:?}");
    let forgotten = "job knows no such lease";
    assert!(output.stderr.contains(forgotten), "the server remembers: {}", output.stderr);
}

/// Every reply comes after 0.8 of the time to live, for a while.
#[tokio::test]
async fn a_slow_network_does_not_end_a_waiter() {
    let site = Site::new().await;
    let proxy = FaultProxy::before(&site.server.address()).await;
    let url = format!("http://{}", proxy.address());
    // Each direction is late by half of it.
    proxy.set(Fault::Delay(std::time::Duration::from_millis(2_700)));
    let log = ["--log", "fence_client=debug"];
    let options = ["--server", &url, "--ttl", "6s", "--wait", "60s"];
    let mut process = site.run(&[&options[..], &log[..]].concat(), "touch ran");
    until_true("a reply that is too late", || async {
        process.stderr().contains("replies take too long")
    })
    .await;
    proxy.set(Fault::None);
    let output = process.ended().await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(site.file("ran").exists());
}

/// The session of several locks is lost while it waits for them; nothing has run, and it waits on.
#[tokio::test]
async fn several_locks_wait_on_where_their_session_is_lost() {
    let site = Site::new().await;
    let held = site.locks.grant("z/1", 600_000).await;
    let options = ["--lock", "z/1", "--ttl", "4s", "--wait", "2m"];
    let mut process = site.run(&options, "touch ran");
    site.locks.queue_of("z/1", 1).await;
    process.pause();
    site.locks.queue_of("z/1", 0).await;
    process.resume();
    site.locks.queue_of("z/1", 1).await;
    assert!(!site.file("ran").exists());
    site.locks.release("z/1", held.lease_id).await.expect(200);
    let output = process.ended().await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(site.file("ran").exists());
}
