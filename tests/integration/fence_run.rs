//! `fence run`: the command runs while the lock is held, and never after.

mod groups;
mod kinds;
mod late;
mod limits;
mod several;
mod takeover;
mod terminal;

use std::path::PathBuf;

use fence_protocol::FencingToken;
use fence_protocol::wire::lock::LockState;
use fence_tests::api::Locks;
use fence_tests::process::{Output, Process, command, pause};
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{until, until_true};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A lock server, and a folder in which jobs leave their traces.
struct Site {
    server: Server,
    locks: Locks,
    folder: TempDir,
}

impl Site {
    async fn new() -> Self {
        let server = Setup::lock_server("memory:").start().await;
        let locks = server.locks();
        Self { server, locks, folder: TempDir::new().unwrap() }
    }

    /// `fence run --lock job OPTIONS -- sh -c SCRIPT`, in the folder.
    fn run(&self, options: &[&str], script: &str) -> Process {
        self.command(options, &["sh", "-c", script])
    }

    fn command(&self, options: &[&str], job: &[&str]) -> Process {
        let mut command = command(fence_tests::binaries::path("fence"));
        command.args(["run", "--lock", "job"]).args(options).arg("--").args(job);
        command.current_dir(self.folder.path()).env("FENCE_SERVER", &self.server.base);
        Process::spawn("fence", command)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Waits until the job has written its process id to the file `pid`.
    async fn job_pid(&self) -> Pid {
        self.pid_in("pid").await
    }

    /// Waits until a process has written its id to this file.
    async fn pid_in(&self, file: &str) -> Pid {
        until("the job to run", || async {
            let text = std::fs::read_to_string(self.file(file)).ok()?;
            Pid::from_raw(text.strip_suffix('\n')?.parse().ok()?)
        })
        .await
    }

    async fn until_free(&self) {
        until_true("the lock to be free", || async {
            self.locks.show("job").await.state == LockState::Free
        })
        .await;
    }
}

/// A script that says who it is and then lives on.
const LIVES_ON: &str = "echo $$ > pid; while :; do sleep 0.02; done";

fn is_alive(pid: Pid) -> bool {
    // A dead process that its parent has not waited for yet can do nothing any more.
    let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    test_kill_process(pid).is_ok() && state.is_ok_and(|text| !text.contains(") Z "))
}

async fn until_dead(pid: Pid) {
    until_true("the job to be ended", || async { !is_alive(pid) }).await;
}

async fn code(mut process: Process) -> Output {
    process.ended().await
}

/// FENCE_LOCK is the lock of the command's parent, and no setting.
#[tokio::test]
async fn a_nested_run_does_not_take_its_parents_lock() {
    let site = Site::new().await;
    let fence = fence_tests::binaries::path("fence").display().to_string();
    let nested = format!(
        "{fence} run -- true; echo $?; {fence} run --lock other -- sh -c 'echo $FENCE_LOCK'"
    );
    let output = site.run(&[], &nested).ended().await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "64\nother\n"), "{output:?}");
    assert!(output.stderr.contains("--lock is missing"), "{output:?}");
    assert!(!output.stderr.contains("FENCE_LOCK"), "{output:?}");
}

#[tokio::test]
async fn the_commands_own_end_is_its_end() {
    let site = Site::new().await;
    for (script, expected) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)] {
        let output = code(site.run(&[], script)).await;
        assert_eq!(output.code, expected, "{script}: {output:?}");
        assert_eq!(site.locks.show("job").await.state, LockState::Free, "{script}");
    }
    let output = code(site.run(&[], "echo out; echo err >&2")).await;
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"));
}

#[tokio::test]
async fn the_command_finds_its_lease_in_the_environment() {
    let site = Site::new().await;
    let script = "for name in LOCK TOKEN LEASE_ID HEADER CREDENTIAL DEADLINE_MS; \
                  do name=FENCE_$name; eval echo \"\\\"\\$$name\\\"\"; done; \
                                    echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done";
    let mut process = site.run(&[], script);
    site.job_pid().await;
    let holder = site.locks.show("job").await.holder.unwrap();
    std::fs::write(site.file("go"), "").unwrap();
    let output = process.ended().await;
    assert_eq!(output.code, 0, "{output:?}");
    let [lock, token, lease, header, credential, deadline] =
        output.stdout.lines().collect::<Vec<_>>()[..].try_into().unwrap();
    assert_eq!((lock, token), ("job", holder.info.token.to_string().as_str()));
    assert_eq!(lease, holder.lease_id.to_string());
    let header: FencingToken = header.parse().unwrap();
    assert_eq!((header.token, header.lease), (holder.info.token, holder.lease_id));
    assert_eq!(fence_protocol::credential::parse(credential).unwrap(), [header]);
    assert!(deadline.parse::<u64>().unwrap() > 0);
}

/// The command writes under the owner of its lease, and so do the commands that it starts.
#[tokio::test]
async fn the_command_has_the_owner_that_was_named() {
    let site = Site::new().await;
    let fence = fence_tests::binaries::path("fence").display().to_string();
    let script =
        format!("echo $FENCE_OWNER; {fence} run --lock inner -- {fence} lock show inner -o json");
    std::fs::write(site.file("owner"), "from a file").unwrap();
    let named = site.run(&["--owner", "p1"], &script).ended().await;
    let mut command = command(&fence);
    command.args(["run", "--lock", "job", "--", "sh", "-c", &script]);
    command.env("FENCE_SERVER", &site.server.base).env("FENCE_OWNER_FILE", site.file("owner"));
    let by_file = Process::spawn("fence", command).ended().await;
    for (output, owner) in [(named, "p1"), (by_file, "from a file")] {
        assert_eq!(output.code, 0, "{output:?}");
        let (first, shown) = output.stdout.split_once('\n').unwrap();
        let shown: Value = serde_json::from_str(shown).unwrap();
        assert_eq!((first, shown["holder"]["owner"].as_str()), (owner, Some(owner)));
    }
    let unnamed = site.run(&[], "echo \"<$FENCE_OWNER>\"").ended().await;
    assert_eq!(unnamed.stdout, "<>\n", "a default has this process' id in it: {unnamed:?}");
}

/// Services and containers have no $USER.
#[tokio::test]
async fn the_default_owner_is_of_the_passwd_entry() {
    let site = Site::new().await;
    let mut id = command("sh");
    id.args(["-c", "id -un || echo uid$(id -u)"]);
    let name = code(Process::spawn("id", id)).await.stdout;
    let mut command = command(fence_tests::binaries::path("fence"));
    command.args(["lock", "acquire", "a", "--server", &site.server.base]);
    command.env_remove("USER").env_remove("LOGNAME");
    assert_eq!(code(Process::spawn("fence", command)).await.code, 0);
    let owner = site.locks.show("a").await.holder.unwrap().info.owner;
    assert_eq!(owner.as_str().split('@').next(), Some(name.trim_end()), "{owner}");
}

#[tokio::test]
async fn a_held_lock_is_75_and_nothing_runs() {
    let site = Site::new().await;
    site.locks.grant("job", 60_000).await;
    for options in [&[][..], &["--wait", "100ms"]] {
        let output = code(site.run(options, "touch ran")).await;
        assert_eq!(output.code, 75, "{output:?}");
        assert!(output.stderr.contains("job"), "{}", output.stderr);
    }
    assert!(!site.file("ran").exists());
}

#[tokio::test]
async fn waiting_gets_the_lock() {
    let site = Site::new().await;
    let held = site.locks.grant("job", 60_000).await;
    let mut process = site.run(&["--wait", "60s"], "touch ran");
    site.locks.queue_of("job", 1).await;
    assert!(!site.file("ran").exists());
    site.locks.release("job", held.lease_id).await.expect(200);
    assert_eq!(process.ended().await.code, 0);
    assert!(site.file("ran").exists());
}

#[tokio::test]
async fn ending_it_while_it_waits_leaves_the_queue() {
    let site = Site::new().await;
    site.locks.grant("job", 60_000).await;
    let mut process = site.run(&["--wait", "60s"], "touch ran");
    site.locks.queue_of("job", 1).await;
    process.terminate();
    assert_eq!(process.ended().await.code, 143);
    site.locks.queue_of("job", 0).await;
    assert!(!site.file("ran").exists());
}

#[tokio::test]
async fn the_lease_is_renewed_while_the_command_runs() {
    let site = Site::new().await;
    let script = "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done; echo done";
    let mut process = site.run(&["--ttl", "9s"], script);
    site.job_pid().await;
    until_true("two renewals", || async {
        let holder = site.locks.show("job").await.holder.expect("the lease lives");
        holder.renewals >= 2
    })
    .await;
    std::fs::write(site.file("go"), "").unwrap();
    let output = process.ended().await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "done\n"), "{output:?}");
    site.until_free().await;
}

#[tokio::test]
async fn signals_reach_the_whole_group() {
    let site = Site::new().await;
    let script = "trap 'echo outer; wait; exit 3' TERM; \
                  sh -c 'trap \"echo inner; exit 0\" TERM; echo $$ > inner; while :; do sleep 0.02; done' & \
                  echo $$ > pid; while :; do sleep 0.02; done";
    let mut process = site.run(&[], script);
    site.job_pid().await;
    let inner = site.pid_in("inner").await;
    process.terminate();
    let output = process.ended().await;
    assert_eq!(output.code, 3, "{output:?}");
    assert!(output.stdout.contains("outer") && output.stdout.contains("inner"), "{output:?}");
    until_dead(inner).await;
    assert_eq!(site.locks.show("job").await.state, LockState::Free);
}

/// The supervisor is stopped past its lease, as by a suspended machine: once it runs again, its
/// command does not.
#[tokio::test]
async fn stopped_past_the_lease_it_ends_the_command_on_waking() {
    let site = Site::new().await;
    let mut process = site.run(&["--ttl", "5s"], LIVES_ON);
    let job = site.job_pid().await;
    process.pause();
    site.until_free().await;
    process.resume();
    let output = process.ended().await;
    assert_eq!(output.code, 76, "{output:?}");
    assert!(!is_alive(job));
    assert!(output.stderr.contains("lost"), "{}", output.stderr);
}

/// All of it is stopped past the lease, the command too. It never gets to do anything again.
#[tokio::test]
async fn a_stopped_group_is_killed_too() {
    let site = Site::new().await;
    let mut process = site.run(&["--ttl", "5s"], LIVES_ON);
    let job = site.job_pid().await;
    process.pause();
    pause(job).unwrap();
    site.until_free().await;
    process.resume();
    assert_eq!(process.ended().await.code, 76);
    until_dead(job).await;
}

#[tokio::test]
async fn revoked_while_running_is_76() {
    let site = Site::new().await;
    let mut process = site.run(&["--ttl", "9s", "--grace", "60s"], LIVES_ON);
    let job = site.job_pid().await;
    site.locks.revoke("job", "by the test").await.expect(200);
    let output = process.ended().await;
    assert_eq!(output.code, 76, "{output:?}");
    assert!(!is_alive(job));
    assert!(output.stderr.contains("revoked"), "{}", output.stderr);
}

/// The server goes silent: the command is ended before the lease can pass on, and gets TERM first.
#[tokio::test]
async fn an_unreachable_server_means_lost_in_time() {
    let mut site = Site::new().await;
    let script = "trap ': > asked; exit 0' TERM; echo $$ > pid; while :; do sleep 0.02; done";
    let mut process = site.run(&["--ttl", "12s"], script);
    let job = site.job_pid().await;
    site.server.process.kill();
    let output = process.ended().await;
    assert_eq!(output.code, 76, "{output:?}");
    assert!(!is_alive(job));
    assert!(site.file("asked").exists(), "the command was not asked to end first");
}

/// A command that ignores TERM is gone before the next holder is there.
#[tokio::test]
async fn the_next_holder_never_meets_the_old_command() {
    let site = Site::new().await;
    let script = "trap '' TERM; echo $$ > pid; while :; do sleep 0.02; done";
    let mut process = site.run(&["--ttl", "3s", "--grace", "60s"], script);
    let job = site.job_pid().await;
    // Silent, but not gone: its lease runs on until it expires.
    let proxy_free = site.locks.clone();
    let waiting = tokio::spawn(async move {
        let lease = proxy_free.acquire("job", json!({"wait_ms": 60_000})).await.lease();
        (lease, is_alive(job))
    });
    site.locks.queued("job", &waiting).await;
    // kill -9 of the supervisor: no process renews, and the kernel ends the command.
    process.kill();
    let (_, met) = fence_tests::wait::soon("the next holder", waiting).await.unwrap();
    assert!(!met, "two holders at work");
}

#[tokio::test]
async fn what_cannot_run_releases_the_lock() {
    let site = Site::new().await;
    let output = code(site.command(&[], &["no-such-program-here"])).await;
    assert_eq!(output.code, 127, "{output:?}");
    assert!(output.stderr.contains("no-such-program-here"), "{}", output.stderr);
    assert_eq!(site.locks.show("job").await.state, LockState::Free);
    std::fs::write(site.file("data"), "no program").unwrap();
    let output = code(site.command(&[], &["./data"])).await;
    assert_eq!(output.code, 126, "{output:?}");
    assert_eq!(site.locks.show("job").await.state, LockState::Free);
}

#[tokio::test]
async fn wrong_usage_is_64() {
    let site = Site::new().await;
    let fence = |args: &[&str]| {
        let mut command = command(fence_tests::binaries::path("fence"));
        command.args(args).env("FENCE_SERVER", &site.server.base);
        Process::spawn("fence", command)
    };
    for (args, shown) in [
        (&["run", "--", "true"][..], "--lock"),
        (&["run", "--lock", "job"], "CMD"),
        (&["run", "--lock", "a//b", "--", "true"], "a//b"),
        (&["run", "--lock", "job", "--ttl", "0s", "--", "true"], "0"),
        (&["run", "--lock", "job", "--ttl", "soon", "--", "true"], "soon"),
        (&["run", "--lock", "job", "--colour", "--", "true"], "--colour"),
        (&["run", "--lock", "job", "--progress-within", "0s", "--", "true"], "0s"),
        (&["run", "--lock", "job", "--max-hold", "9d", "--", "true"], "9d"),
        (&["run", "--lock", "job", "--max-hold", "5s", "--warn-before", "5s", "--", "true"], "5s"),
        (&["run", "--lock", "job", "--warn-signal", "USR1", "--", "true"], "--warn-before"),
        (
            &["run", "--lock", "job", "--warn-before", "1s", "--warn-signal", "KILL", "--", "true"],
            "KILL",
        ),
        (&["elect", "--name", "office"], "CMD"),
        (&["elect", "--", "true"], "--name"),
        (&["elect", "--name", "a//b", "--", "true"], "a//b"),
        (&["elect", "--name", "office", "--observe", "--", "true"], "--observe"),
        (&["elect", "--name", "office", "--metadata", "{", "--", "true"], "JSON"),
        (&["walk"], "walk"),
    ] {
        let output = code(fence(args)).await;
        assert_eq!(output.code, 64, "{args:?}: {output:?}");
        assert!(output.stderr.contains(shown), "{args:?}: {}", output.stderr);
    }
}

#[tokio::test]
async fn no_server_is_69() {
    let site = Site::new().await;
    let absent = format!("http://127.0.0.1:{}", fence_tests::ports::unused());
    let output = code(site.run(&["--server", &absent], "touch ran")).await;
    assert_eq!(output.code, 69, "{output:?}");
    assert!(output.stderr.contains(&absent), "{}", output.stderr);
    assert!(!site.file("ran").exists());
}

/// `sd_watchdog_enabled` and `sd_listen_fds` look whether they are meant.
#[tokio::test]
async fn a_service_manager_s_variables_name_the_command() {
    let site = Site::new().await;
    let fence = fence_tests::binaries::path("fence");
    let job = "echo $$ $WATCHDOG_PID $LISTEN_PID $OTHER_PID";
    let script =
        "WATCHDOG_PID=$$ LISTEN_PID=$$ OTHER_PID=$$ exec \"$0\" run --lock job -- sh -c \"$1\"";
    let mut shell = command("sh");
    shell.args(["-c", script]).arg(fence).arg(job).env("FENCE_SERVER", &site.server.base);
    let mut process = Process::spawn("fence", shell);
    let pid = process.pid().to_string();
    let output = process.ended().await;
    let words: Vec<&str> = output.stdout.split_whitespace().collect();
    let [own, watchdog, listen, other] = words[..] else { panic!("{output:?}") };
    assert_eq!((watchdog, listen), (own, own), "{output:?}");
    assert_eq!(other, pid, "{output:?}");
}
