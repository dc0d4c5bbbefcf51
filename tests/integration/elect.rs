//! `fence elect`: the command runs on one machine at a time, and again where it is needed.

use std::path::PathBuf;

use fence_protocol::wire::lock::LockState;
use fence_tests::api::Locks;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::process::{Process, command};
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{until, until_true};
use rustix::process::{Pid, test_kill_process};
use tempfile::TempDir;

struct Site {
    server: Server,
    locks: Locks,
    folder: TempDir,
}

/// Writes its process id and its term behind those before, and leads on.
const LEADS: &str = "echo $$ $FENCE_TOKEN >> $FENCE_OWNER; while :; do sleep 0.02; done";

impl Site {
    async fn new() -> Self {
        let server = Setup::lock_server("memory:").start().await;
        let locks = server.locks();
        Self { server, locks, folder: TempDir::new().unwrap() }
    }

    fn fence(&self, owner: &str, arguments: &[&str]) -> Process {
        let mut command = command(fence_tests::binaries::path("fence"));
        command.args(["elect", "--name", "office"]).args(arguments);
        command.env("FENCE_SERVER", &self.server.base).env("FENCE_OWNER", owner);
        command.current_dir(self.folder.path());
        Process::spawn("fence", command)
    }

    fn candidate(&self, owner: &str, options: &[&str], script: &str) -> Process {
        self.fence(owner, &[options, &["--", "sh", "-c", script]].concat())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The process and the token of the term which is this candidate's `count`th.
    async fn term(&self, owner: &str, count: usize) -> (Pid, u64) {
        until(&format!("term {count} of {owner}"), || async {
            let text = std::fs::read_to_string(self.file(owner)).ok()?;
            let (pid, token) = text.lines().nth(count - 1)?.split_once(' ')?;
            Some((Pid::from_raw(pid.parse().ok()?)?, token.parse().ok()?))
        })
        .await
    }

    async fn leader(&self) -> Option<String> {
        Some(self.locks.show("office").await.holder?.info.owner.to_string())
    }
}

fn is_alive(pid: Pid) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    test_kill_process(pid).is_ok() && state.is_ok_and(|text| !text.contains(") Z "))
}

/// A candidate takes a shell's command line as `fence run` does, and has no code for a conflict.
#[tokio::test]
async fn a_shells_command_line_leads() {
    let site = Site::new().await;
    let output = site.fence("a", &["-c", "echo $FENCE_LOCK && false || exit 7"]).ended().await;
    assert_eq!((output.code, output.stdout.as_str()), (7, "office\n"), "{output:?}");
    for refused in [
        &["-c", "true", "--", "true"][..],
        &["-c", "true", "--observe"],
        &["-c", "true", "--conflict-exit-code", "9"],
        &[],
    ] {
        let output = site.fence("a", refused).ended().await;
        assert_eq!(output.code, 64, "{refused:?}: {output:?}");
    }
}

/// Beside a command it would make a candidate of what is meant to watch.
#[tokio::test]
async fn follow_is_refused_without_observe() {
    let site = Site::new().await;
    for refused in [&["--follow"][..], &["--follow", "--", "touch", "led"]] {
        let output = site.fence("a", refused).ended().await;
        assert_eq!(output.code, 64, "{refused:?}: {output:?}");
        assert_eq!(output.stderr.lines().count(), 1, "{refused:?}: {output:?}");
        assert!(output.stderr.contains("give --observe"), "{refused:?}: {output:?}");
    }
    assert!(!site.file("led").exists());
}

#[tokio::test]
async fn a_leader_that_dies_is_followed_by_the_next() {
    let site = Site::new().await;
    let mut first = site.candidate("a", &["--ttl", "8s"], LEADS);
    let (old, old_token) = site.term("a", 1).await;
    let _second = site.candidate("b", &["--ttl", "8s"], LEADS);
    site.locks.queue_of("office", 1).await;
    assert!(!site.file("b").exists(), "two lead");
    first.kill();
    let (_, token) = site.term("b", 1).await;
    assert!(token > old_token);
    assert!(!is_alive(old), "the new leader met the old one's command");
    assert_eq!(site.leader().await.as_deref(), Some("b"));
}

/// Stopped past its lease, as by a suspended machine: on waking its command is ended, and it stands
/// again behind who leads now.
#[tokio::test]
async fn a_leader_that_slept_ends_its_command_and_stands_again() {
    let site = Site::new().await;
    let mut first = site.candidate("a", &["--ttl", "8s"], LEADS);
    let (old, old_token) = site.term("a", 1).await;
    let second = site.candidate("b", &["--ttl", "8s"], LEADS);
    site.locks.queue_of("office", 1).await;
    first.pause();
    let (_, token) = site.term("b", 1).await;
    assert!(token > old_token);
    first.resume();
    until_true("the old command to be ended", || async { !is_alive(old) }).await;
    site.locks.queue_of("office", 1).await;
    assert_eq!(site.leader().await.as_deref(), Some("b"));
    second.terminate();
    let (again, last_token) = site.term("a", 2).await;
    assert!(last_token > token);
    first.terminate();
    let output = first.ended().await;
    assert_eq!(output.code, 143, "{output:?}");
    assert!(output.stderr.contains("standing again"), "{}", output.stderr);
    assert!(!is_alive(again));
    assert_eq!(site.locks.show("office").await.state, LockState::Free, "not resigned");
}

#[tokio::test]
async fn a_command_that_ends_resigns() {
    let site = Site::new().await;
    let mut first = site.candidate(
        "a",
        &["--ttl", "60s"],
        "echo $$ 0 >> a; while [ ! -e go ]; do sleep 0.02; done; exit 7",
    );
    site.term("a", 1).await;
    let _second = site.candidate("b", &["--ttl", "60s"], LEADS);
    site.locks.queue_of("office", 1).await;
    std::fs::write(site.file("go"), "").unwrap();
    assert_eq!(first.ended().await.code, 7);
    site.term("b", 1).await;
}

#[tokio::test]
async fn a_deposed_leader_stands_again_by_itself() {
    let site = Site::new().await;
    let _first = site.candidate("a", &["--ttl", "6s"], LEADS);
    let (old, old_token) = site.term("a", 1).await;
    site.locks.revoke("office", "by the test").await.expect(200);
    let (_, token) = site.term("a", 2).await;
    assert!(token > old_token);
    assert!(!is_alive(old), "two commands of one candidate");
}

/// The leader's renewals go on, and its command hangs: the office passes on all the same.
#[tokio::test]
async fn a_leader_that_makes_no_progress_is_followed_by_the_next() {
    let site = Site::new().await;
    let options = ["--ttl", "60s", "--progress-within", "1s", "--grace", "0s"];
    let _first = site.candidate("a", &options, LEADS);
    let (old, _) = site.term("a", 1).await;
    let _second = site.candidate("b", &["--ttl", "60s"], LEADS);
    site.term("b", 1).await;
    assert!(!is_alive(old));
}

#[tokio::test]
async fn ending_a_candidate_leaves_the_queue() {
    let site = Site::new().await;
    site.locks.grant("office", 60_000).await;
    let mut candidate = site.candidate("a", &[], LEADS);
    site.locks.queue_of("office", 1).await;
    candidate.terminate();
    let output = candidate.ended().await;
    assert_eq!(output.code, 143, "{output:?}");
    site.locks.queue_of("office", 0).await;
    assert!(!site.file("a").exists());
}

#[tokio::test]
async fn observers_see_who_leads() {
    let site = Site::new().await;
    let none = site.fence("c", &["--observe"]).ended().await;
    assert_eq!((none.code, none.stdout.as_str()), (1, ""), "{none:?}");
    let _leader = site.candidate("a", &["--metadata", r#"{"port":80}"#], LEADS);
    let (_, token) = site.term("a", 1).await;
    let seen = site.fence("c", &["--observe"]).ended().await;
    assert_eq!(seen.code, 0, "{seen:?}");
    assert!(seen.stdout.contains("leader   a\n"), "{}", seen.stdout);
    let seen = site.fence("c", &["--observe", "--output", "json"]).ended().await;
    let json: serde_json::Value = serde_json::from_str(&seen.stdout).unwrap();
    assert_eq!(json["owner"], "a");
    assert_eq!(json["token"], token);
    assert_eq!(json["metadata"]["port"], 80);
    assert_eq!(site.locks.show("office").await.queue_length, 0, "an observer stands");
}

/// A server that cannot be reached is no reason to end: a candidate waits for it.
#[tokio::test]
async fn a_candidate_waits_for_its_server() {
    let site = Site::new().await;
    let proxy = FaultProxy::before(&site.server.address()).await;
    proxy.set(Fault::Refuse);
    let behind = |arguments: &[&str]| {
        let url = format!("http://{}", proxy.address());
        site.fence("a", &[&["--server", &url], arguments].concat())
    };
    let missing = behind(&["--observe"]).ended().await;
    assert_eq!(missing.code, 69, "{missing:?}");
    let mut candidate = behind(&["--log", "fence_client::acquire=debug", "--", "sh", "-c", LEADS]);
    until_true("a failed attempt", || async { candidate.stderr().contains("acquire") }).await;
    proxy.set(Fault::None);
    site.term("a", 1).await;
    candidate.terminate();
    assert_eq!(candidate.ended().await.code, 143);
}

/// A slow network makes no candidate end, and a leader that is killed outright leaves nothing of
/// its command to the next.
#[tokio::test]
async fn a_slow_candidate_leads_in_the_end_and_leaves_nothing_behind() {
    let site = Site::new().await;
    let proxy = FaultProxy::before(&site.server.address()).await;
    let url = format!("http://{}", proxy.address());
    proxy.set(Fault::Delay(std::time::Duration::from_millis(900)));
    let options = ["--server", &url, "--ttl", "2s", "--log", "fence_client=debug"];
    let started = format!("({LEADS}) & wait");
    // A subshell has the process id of its shell in $$; this one writes its own.
    let started = started.replace("$$", "$(exec sh -c 'echo $PPID')");
    let mut first = site.candidate("a", &options, &started);
    until_true("a reply that is too late", || async {
        first.stderr().contains("replies take too long")
    })
    .await;
    proxy.set(Fault::None);
    let (grandchild, _) = site.term("a", 1).await;
    let _second = site.candidate("b", &["--ttl", "2s"], LEADS);
    site.locks.queue_of("office", 1).await;
    first.kill();
    site.term("b", 1).await;
    assert!(!is_alive(grandchild), "the new leader met what the old one started");
}
