//! `fence run --takeover`: a command that is started again takes its lock from its own dead self.

use fence_protocol::wire::lock::LockState;

use super::{LIVES_ON, Site, code, is_alive};

const OWNER: [&str; 4] = ["--owner", "billing", "--ttl", "9s"];

/// The earlier life, where it still runs, has its command ended, and says why.
#[tokio::test]
async fn the_superseded_ends_its_command() {
    let site = Site::new().await;
    let mut old = site.run(&[&OWNER[..], &["--takeover", "--grace", "60s"]].concat(), LIVES_ON);
    let job = site.job_pid().await;
    let first = site.locks.show("job").await.holder.unwrap();
    let script = "echo $FENCE_TOKEN > token; while [ ! -e go ]; do sleep 0.02; done";
    let mut new = site.run(&[&OWNER[..], &["--takeover"]].concat(), script);
    let output = old.ended().await;
    assert_eq!(output.code, 76, "{output:?}");
    assert!(!is_alive(job), "two at work");
    let line = output.stderr.lines().last().unwrap();
    for shown in ["fence: the lease on job was lost", "superseded", "ended by SIGKILL"] {
        assert!(line.contains(shown), "{shown}: {}", output.stderr);
    }
    std::fs::write(site.file("go"), "").unwrap();
    assert_eq!(new.ended().await.code, 0);
    let token: u64 = std::fs::read_to_string(site.file("token")).unwrap().trim().parse().unwrap();
    assert!(token > first.info.token.get());
    assert_eq!(site.locks.show("job").await.state, LockState::Free);
}

/// A life that was taken over cannot take the lock back.
#[tokio::test]
async fn two_lives_do_not_take_turns() {
    let site = Site::new().await;
    let life = |incarnation| [&OWNER[..], &["--takeover", "--incarnation", incarnation]].concat();
    let mut first = site.run(&life("1"), LIVES_ON);
    site.job_pid().await;
    let mut second = site.run(&life("2"), "echo > second; while :; do sleep 0.02; done");
    assert_eq!(first.ended().await.code, 76);
    fence_tests::wait::until_true("the second", || async { site.file("second").exists() }).await;
    let output = code(site.run(&life("1"), "touch again")).await;
    assert_eq!(output.code, 75, "{output:?}");
    assert!(output.stderr.contains("takeover-refused"), "{}", output.stderr);
    assert!(!site.file("again").exists());
    assert!(second.is_running());
    second.terminate();
    assert_eq!(second.ended().await.code, 143);
}

/// Without --owner a takeover goes by a name that a restart keeps, and another owner is never
/// taken from.
#[tokio::test]
async fn a_takeover_goes_by_owner() {
    let site = Site::new().await;
    let mut named = site.run(&OWNER, LIVES_ON);
    site.job_pid().await;
    let refused = code(site.run(&["--takeover"], "touch ran")).await;
    assert_eq!(refused.code, 75, "{refused:?}");
    assert!(refused.stderr.contains("never crosses owners"), "{}", refused.stderr);
    assert!(named.is_running());
    named.terminate();
    assert_eq!(named.ended().await.code, 143);
    std::fs::remove_file(site.file("pid")).unwrap();
    let mut old = site.run(&["--takeover", "--ttl", "6s"], LIVES_ON);
    site.job_pid().await;
    let owner = site.locks.show("job").await.holder.unwrap().info.owner;
    assert!(!owner.as_str().contains(':'), "{owner} has a process id in it");
    assert_eq!(code(site.run(&["--takeover"], "true")).await.code, 0);
    assert_eq!(old.ended().await.code, 76);
}

/// The holder is killed outright, and its lease would live for minutes.
#[tokio::test]
async fn a_supervisor_hands_the_lock_of_the_dead_over() {
    let site = Site::new().await;
    let long = ["--owner", "pool", "--ttl", "5m"];
    let mut dead = site.run(&long, LIVES_ON);
    site.job_pid().await;
    let lease = site.locks.show("job").await.holder.unwrap().lease_id.to_string();
    dead.kill();
    assert_eq!(code(site.run(&long, "true")).await.code, 75);
    let output = code(site.run(&[&long[..], &["--takeover-of", &lease]].concat(), "true")).await;
    assert_eq!(output.code, 0, "{output:?}");
    // The same again, on a lock that is free by now.
    let output = code(site.run(&[&long[..], &["--takeover-of", &lease]].concat(), "true")).await;
    assert_eq!(output.code, 0, "{output:?}");
}
