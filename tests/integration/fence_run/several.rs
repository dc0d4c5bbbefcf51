//! `fence run` with several --lock: one session, one heartbeat, one end.

use fence_protocol::wire::lock::LockState;
use fence_protocol::{FencingToken, credential};
use fence_tests::wait::until_true;
use serde_json::{Value, json};

use super::{LIVES_ON, Site, code, is_alive};

const ALL: [&str; 3] = ["job", "z/1", "a/2"];
/// Beside the `--lock job` of every run here.
const MORE: [&str; 4] = ["--lock", "z/1", "--lock", "a/2"];

async fn all_free(site: &Site) -> bool {
    for lock in ALL {
        if site.locks.show(lock).await.state != LockState::Free {
            return false;
        }
    }
    true
}

#[tokio::test]
async fn the_command_finds_every_lease_in_the_environment() {
    let site = Site::new().await;
    let script = "echo \"$FENCE_LEASES\" > leases; echo $FENCE_LOCK $FENCE_TOKEN $FENCE_LEASE_ID; \
                  echo \"$FENCE_HEADER\"; echo $FENCE_CREDENTIAL; echo $FENCE_SESSION_ID; \
                  echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done";
    let mut process = site.run(&MORE, script);
    site.job_pid().await;
    let mut session = None;
    let leases: Value =
        serde_json::from_slice(&std::fs::read(site.file("leases")).unwrap()).unwrap();
    let leases = leases.as_array().unwrap();
    for (lock, lease) in ALL.iter().zip(leases) {
        let holder = site.locks.show(lock).await.holder.unwrap();
        assert_eq!(lease["lock"], *lock);
        assert_eq!(lease["token"], json!(holder.info.token));
        assert_eq!(lease["lease_id"], json!(holder.lease_id));
        let header: FencingToken = lease["header"].as_str().unwrap().parse().unwrap();
        assert_eq!((header.lock.as_str(), header.token), (*lock, holder.info.token));
        session = holder.session_id;
    }
    std::fs::write(site.file("go"), "").unwrap();
    let output = process.ended().await;
    assert_eq!(output.code, 0, "{output:?}");
    let [first, header, all, id] =
        output.stdout.lines().collect::<Vec<_>>()[..].try_into().unwrap();
    let text = |name: &str| leases[0][name].as_str().unwrap();
    assert_eq!(first, format!("job {} {}", leases[0]["token"], text("lease_id")));
    assert_eq!(header, text("header"));
    assert_eq!(credential::parse(all).unwrap().len(), 3);
    assert_eq!(id, session.unwrap().to_string());
    assert!(all_free(&site).await, "not all were given back");
}

#[tokio::test]
async fn one_lock_has_the_same_shape() {
    let site = Site::new().await;
    let output = code(site.run(&[], "echo \"$FENCE_LEASES\"; echo \"[$FENCE_SESSION_ID]\"")).await;
    let (leases, session) = output.stdout.split_once('\n').unwrap();
    let leases: Value = serde_json::from_str(leases).unwrap();
    assert_eq!((leases.as_array().unwrap().len(), &leases[0]["lock"]), (1, &json!("job")));
    assert_eq!(session.trim(), "[]");
}

/// One of them is held by another: nothing runs, and nothing stays behind.
#[tokio::test]
async fn all_or_nothing() {
    let site = Site::new().await;
    let held = site.locks.grant("z/1", 60_000).await;
    let output = code(site.run(&MORE, "touch ran")).await;
    assert_eq!(output.code, 75, "{output:?}");
    assert!(output.stderr.contains("z/1 is held by"), "{}", output.stderr);
    assert!(!site.file("ran").exists());
    for lock in ["job", "a/2"] {
        assert_eq!(site.locks.show(lock).await.state, LockState::Free, "{lock}");
    }
    let mut waits = site.run(&[&MORE[..], &["--wait", "60s"]].concat(), "touch ran");
    site.locks.queue_of("z/1", 1).await;
    site.locks.release("z/1", held.lease_id).await.expect(200);
    assert_eq!(waits.ended().await.code, 0);
    assert!(site.file("ran").exists());
}

#[tokio::test]
async fn it_holds_nothing_while_it_waits_and_leaves_every_queue() {
    let site = Site::new().await;
    site.locks.grant("z/1", 60_000).await;
    let mut process = site.run(&[&MORE[..], &["--ttl", "60s", "--wait", "60s"]].concat(), "true");
    site.locks.queue_of("z/1", 1).await;
    for lock in ["job", "a/2"] {
        let shown = site.locks.show(lock).await;
        assert_eq!((shown.state, shown.queue_length), (LockState::Free, 1), "{lock}");
    }
    process.terminate();
    assert_eq!(process.ended().await.code, 143);
    for lock in ALL {
        site.locks.queue_of(lock, 0).await;
    }
    assert_eq!(site.locks.show("job").await.state, LockState::Free);
}

/// One of several is revoked: the command ends, and the line says which lease it was.
#[tokio::test]
async fn one_lost_lease_ends_the_command() {
    let site = Site::new().await;
    let options = [&MORE[..], &["--ttl", "9s", "--grace", "60s"]].concat();
    let mut process = site.run(&options, LIVES_ON);
    let job = site.job_pid().await;
    site.locks.revoke("z/1", "by the test").await.expect(200);
    let output = process.ended().await;
    assert_eq!(output.code, 76, "{output:?}");
    assert!(!is_alive(job));
    let line = output.stderr.lines().last().unwrap();
    assert!(line.contains("the lease on z/1 was lost"), "{line}");
    assert!(line.contains("revoked"), "{line}");
    until_true("the others to be given back", || all_free(&site)).await;
}

/// An operator blocks the session of a command that ignores everything: it is gone before its locks
/// are free. Before the next heartbeat only the server knows of it, and it must not look like
/// success.
#[tokio::test]
async fn one_that_was_lost_since_the_last_heartbeat_is_no_success() {
    let site = Site::new().await;
    let options = [&MORE[..], &["--ttl", "10m"]].concat();
    let mut process = site.run(&options, "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done");
    site.job_pid().await;
    site.locks.revoke("z/1", "by the test").await.expect(200);
    std::fs::write(site.file("go"), "").unwrap();
    let output = process.ended().await;
    assert_eq!(output.code, 76, "{output:?}");
    assert!(all_free(&site).await);
}

/// The time for which it waits for its locks is not held time.
#[tokio::test]
async fn the_longest_hold_counts_from_the_grant() {
    let site = Site::new().await;
    let other = site.locks.grant("z/1", 600_000).await;
    let options = [&MORE[..], &["--wait", "1m", "--ttl", "12s", "--max-hold", "8s"]].concat();
    let mut process = site.run(&options, "echo ran");
    until_true("a place in the queue", || async { site.locks.show("z/1").await.queue_length == 1 })
        .await;
    // Longer than the hold: the session's heartbeats show how much time has passed.
    until_true("more than the longest hold", || async {
        site.locks.show("z/1").await.queue.first().is_some_and(|waiter| waiter.waiting_ms > 8_500)
    })
    .await;
    site.locks.release("z/1", other.lease_id).await.expect(200);
    let output = process.ended().await;
    assert_eq!((output.code, output.stdout.trim()), (0, "ran"), "{output:?}");
}

#[tokio::test]
async fn a_blocked_session_ends_the_command_first() {
    let site = Site::new().await;
    let options = [&MORE[..], &["--ttl", "9s", "--grace", "60s"]].concat();
    let script = "trap '' TERM; echo $$ > pid; while :; do sleep 0.02; done";
    let mut process = site.run(&options, script);
    let job = site.job_pid().await;
    let session = site.locks.show("a/2").await.holder.unwrap().session_id.unwrap();
    let path = format!("/v1/sessions/{session}/block");
    site.locks.0.post(&path, &json!({"reason": "runs away"})).await.expect(200);
    until_true("a free lock", || async {
        let is_free = site.locks.show("a/2").await.state == LockState::Free;
        assert!(!is_free || !is_alive(job), "the lock passed on under a running command");
        is_free
    })
    .await;
    let output = process.ended().await;
    assert_eq!(output.code, 76, "{output:?}");
    assert!(output.stderr.contains("the leases on job, z/1, a/2 were lost"), "{}", output.stderr);
    assert!(output.stderr.contains("runs away"), "{}", output.stderr);
}

/// All of them are taken over from an earlier life.
#[tokio::test]
async fn a_restart_takes_all_of_them_over() {
    let site = Site::new().await;
    let options = [&MORE[..], &["--takeover", "--owner", "svc", "--ttl", "9s"]].concat();
    let mut old = site.run(&options, LIVES_ON);
    site.job_pid().await;
    assert_eq!(code(site.run(&options, "true")).await.code, 0);
    let output = old.ended().await;
    assert_eq!(output.code, 76, "{output:?}");
    let line = output.stderr.lines().last().unwrap();
    assert!(line.contains("superseded"), "{}", output.stderr);
}

#[tokio::test]
async fn what_makes_no_sense_is_64() {
    let site = Site::new().await;
    let lease = fence_tests::key_file::lease_id().to_string();
    let many: Vec<String> = (0..64).map(|n| format!("--lock=n/{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (options, shown) in [
        (vec!["--lock", "job"], "--lock job is given twice"),
        (many, "1 to 64"),
        (vec!["--lock", "a//b"], "a//b"),
        (vec!["--lock", "other", "--takeover-of", &lease], "one --lock"),
        (vec!["--takeover", "--takeover-of", &lease], "--takeover"),
        (vec!["--takeover-of", "no-lease"], "no-lease"),
        (vec!["--incarnation", ""], "incarnation"),
    ] {
        let output = code(site.run(&options, "touch ran")).await;
        assert_eq!(output.code, 64, "{options:?}: {output:?}");
        assert!(output.stderr.contains(shown), "{options:?}: {}", output.stderr);
    }
    assert!(!site.file("ran").exists());
}
