//! The command's process group: nothing of it continues without the lock, unless that is asked for.

use super::*;

/// Starts a member of the group in the background, whose id it writes to `member`; `SETUP` is done
/// in it first.
fn member(setup: &str) -> String {
    format!(
        "sh -c '{setup} echo $$ > member; while :; do sleep 0.02; done' & \
         while [ ! -s member ]; do sleep 0.02; done"
    )
}

/// Waits for the lock in the queue; whether the member was alive when it was granted.
fn next_holder(site: &Site, member: Pid) -> tokio::task::JoinHandle<bool> {
    let locks = site.locks.clone();
    tokio::spawn(async move {
        locks.acquire("job", json!({"wait_ms": 60_000})).await.lease();
        is_alive(member)
    })
}

async fn met_by(next: tokio::task::JoinHandle<bool>) -> bool {
    fence_tests::wait::soon("the next holder", next).await.unwrap()
}

#[tokio::test]
async fn what_a_killed_command_leaves_is_ended_before_the_lock_is_free() {
    let site = Site::new().await;
    let script = format!("{}; while [ ! -e go ]; do sleep 0.02; done; kill -KILL $$", member(""));
    let mut process = site.run(&[], &script);
    let left = site.pid_in("member").await;
    let next = next_holder(&site, left);
    site.locks.queue_of("job", 1).await;
    std::fs::write(site.file("go"), "").unwrap();
    assert!(!met_by(next).await, "the next holder met what the command left");
    let output = process.ended().await;
    assert_eq!(output.code, 137, "{output:?}");
    assert!(output.stderr.contains("--leave-background"), "{}", output.stderr);
}

/// One that ignores TERM and was stopped: it gets KILL after the grace, and the lease is renewed
/// until it is gone. The kernel sends HUP to a stopped group that it finds orphaned.
#[tokio::test]
async fn a_stopped_member_is_killed_while_the_lock_is_held() {
    let site = Site::new().await;
    let setup = "trap \"\" TERM HUP;";
    let script = format!("{}; while [ ! -e go ]; do sleep 0.02; done; exit 3", member(setup));
    let mut process = site.run(&["--ttl", "9s", "--grace", "1s"], &script);
    let left = site.pid_in("member").await;
    pause(left).unwrap();
    let next = next_holder(&site, left);
    site.locks.queue_of("job", 1).await;
    std::fs::write(site.file("go"), "").unwrap();
    assert!(!met_by(next).await, "the next holder met what the command left");
    let output = process.ended().await;
    assert_eq!(output.code, 3, "the command's own end: {output:?}");
}

#[tokio::test]
async fn what_may_stay_continues_and_is_warned_of() {
    let site = Site::new().await;
    let output = code(site.run(&["--leave-background"], &member(""))).await;
    let left = site.pid_in("member").await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stderr.contains("continue without the lock on job"), "{}", output.stderr);
    assert!(is_alive(left));
    assert_eq!(site.locks.show("job").await.state, LockState::Free);
    kill_process(left, Signal::KILL).unwrap();
}

/// A member that still writes the last output ends by itself, and is neither signalled nor
/// reported. It resumes when the command ends, which closes the FIFO.
#[tokio::test]
async fn a_member_that_ends_with_the_command_is_left_alone() {
    let site = Site::new().await;
    let script = "rm -f f; mkfifo f; (read x; sleep 0.05; echo last) <f & exec 3>f; exit 4";
    let mut outputs = Vec::new();
    // On a busy machine it may end later than it is waited for.
    for _ in 0..5 {
        let output = code(site.run(&[], script)).await;
        assert_eq!(output.code, 4, "{output:?}");
        if output.stdout == "last\n" && output.stderr.is_empty() {
            return;
        }
        outputs.push(output);
    }
    panic!("no member ended by itself: {outputs:?}");
}

/// `fence` is killed outright: the kernel ends the command, and its watcher what that has started.
#[tokio::test]
async fn a_killed_fence_leaves_no_grandchild() {
    let site = Site::new().await;
    let mut process = site.run(&["--ttl", "60s"], &format!("{}; wait", member("")));
    let grandchild = site.pid_in("member").await;
    process.kill();
    until_dead(grandchild).await;
}

/// A command that moves to the group of its parent is signalled by its own number.
#[tokio::test]
async fn a_command_that_left_its_group_is_ended() {
    let moves = "import os, time\n\
                 os.setpgid(0, os.getpgid(os.getppid()))\n\
                 print(os.getpid(), file=open('pid', 'w'))\n\
                 time.sleep(600)";
    for (is_revoked, expected) in [(false, 143), (true, 76)] {
        let site = Site::new().await;
        let mut process = site.command(&["--ttl", "9s"], &["python3", "-c", moves]);
        let command = site.job_pid().await;
        match is_revoked {
            true => drop(site.locks.revoke("job", "by the test").await.expect(200)),
            false => process.terminate(),
        }
        let output = process.ended().await;
        assert_eq!(output.code, expected, "{output:?}");
        assert!(!is_alive(command), "{output:?}");
    }
}

/// A process that leaves the group cannot be found; its zombie that stays in the group delays
/// nothing.
#[tokio::test]
async fn a_process_that_left_the_group_continues_and_is_warned_of() {
    let site = Site::new().await;
    let script = "sh -c 'true & exec setsid sh -c \"echo \\$\\$ > gone; exec sleep 600\"' & \
                  while [ ! -s gone ]; do sleep 0.02; done";
    let output = code(site.run(&["--grace", "100ms"], script)).await;
    let gone = site.pid_in("gone").await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stderr.contains("continue without the lock on job"), "{}", output.stderr);
    assert!(is_alive(gone));
    assert_eq!(site.locks.show("job").await.state, LockState::Free);
    kill_process(gone, Signal::KILL).unwrap();
}
