//! Renewal that follows the work: progress, the longest hold, warnings.

use super::*;

/// The command's reports are all that keeps its lock.
#[tokio::test]
async fn a_command_that_reports_outlives_its_limit_by_far() {
    let site = Site::new().await;
    // Long enough for a command on a busy machine.
    let options = ["--ttl", "60s", "--progress-within", "6s"];
    let script = "echo $$ > pid; i=0; while [ ! -e go ]; do echo >&$FENCE_PROGRESS_FD; \
                  i=$((i+1)); echo $i > reports; sleep 0.05; done; echo $FENCE_PROGRESS_FD";
    let mut process = site.run(&options, script);
    let started = fence_client::clock::now();
    site.job_pid().await;
    until_true("two limits to pass", || async {
        fence_client::clock::now() >= started.plus_ms(13_000)
    })
    .await;
    let token = site.locks.show("job").await.holder.unwrap().info.token;
    std::fs::write(site.file("go"), "").unwrap();
    let output = process.ended().await;
    assert_eq!(output.code, 0, "{output:?}");
    // A number that every shell understands.
    assert!(output.stdout.trim().parse::<u8>().unwrap() <= 9, "{output:?}");
    assert_eq!(site.locks.grant("job", 1000).await.token.get(), token.get() + 1);
}

/// The lease is renewed and the supervisor is well: only the command stalls.
#[tokio::test]
async fn a_command_that_stalls_is_ended_before_its_lock_passes_on() {
    let site = Site::new().await;
    let options = ["--ttl", "60s", "--progress-within", "6s", "--grace", "100ms"];
    let script =
        "trap '' TERM; echo $$ > pid; while :; do echo >&$FENCE_PROGRESS_FD; sleep 0.02; done";
    let mut process = site.run(&options, script);
    let job = site.job_pid().await;
    let locks = site.locks.clone();
    let next = tokio::spawn(async move {
        let lease = locks.acquire("job", json!({"wait_ms": 60_000})).await.lease();
        (lease, is_alive(job))
    });
    site.locks.queued("job", &next).await;
    if let Err(error) = pause(job) {
        // On a machine that is busy enough it was ended already.
        assert!(!is_alive(job), "{error}");
    }
    let output = process.ended().await;
    assert_eq!(output.code, 76, "{output:?}");
    assert!(output.stderr.contains("no progress was reported for 6s"), "{}", output.stderr);
    let (_, met) = fence_tests::wait::soon("the next holder", next).await.unwrap();
    assert!(!met, "the next holder met the old command");
}

#[tokio::test]
async fn progress_can_be_reported_by_a_signal_that_is_not_passed_on() {
    let site = Site::new().await;
    let options = ["--ttl", "60s", "--progress-within", "6s"];
    // USR2 would end it.
    let script = "echo $$ > pid; n=0; while [ $n -lt 180 ]; do kill -USR2 $FENCE_PROGRESS_PID; \
                  n=$((n+1)); sleep 0.05; done; echo reported";
    let output = code(site.run(&options, script)).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "reported\n"), "{output:?}");
    let silent = code(site.run(&options, "sleep 60")).await;
    assert_eq!(silent.code, 76, "{silent:?}");
    // Where no reports are wanted, it is a signal like others.
    let mut process = site
        .run(&[], "trap 'echo asked; exit 4' USR2; echo $$ > pid2; while :; do sleep 0.02; done");
    until_true("the job to run", || async { site.file("pid2").exists() }).await;
    process.signal(Signal::USR2);
    let output = process.ended().await;
    assert_eq!((output.code, output.stdout.as_str()), (4, "asked\n"), "{output:?}");
}

#[tokio::test]
async fn the_longest_hold_ends_a_command_that_was_warned() {
    let site = Site::new().await;
    let options =
        ["--ttl", "60s", "--max-hold", "8s", "--warn-before", "2s", "--warn-signal", "usr1"];
    let script = "trap 'echo warned' USR1; trap 'echo asked; exit 0' TERM; echo $$ > pid; \
                  while :; do sleep 0.02; done";
    let output = code(site.run(&options, script)).await;
    assert_eq!((output.code, output.stdout.as_str()), (76, "warned\nasked\n"), "{output:?}");
    assert!(output.stderr.contains("will be lost in"), "{}", output.stderr);
    assert!(output.stderr.contains("held for 8s, the longest"), "{}", output.stderr);
    assert_eq!(site.locks.show("job").await.state, LockState::Free, "given back, not expired");
    // In time, there is neither warning nor end.
    let output = code(site.run(&["--max-hold", "1h", "--warn-before", "1s"], "echo done")).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "done\n"), "{output:?}");
    assert_eq!(output.stderr, "");
}

/// A command that can be warned can finish in time, and that is then its own end.
#[tokio::test]
async fn a_warning_lets_the_command_end_by_itself() {
    let site = Site::new().await;
    let options =
        ["--ttl", "60s", "--progress-within", "9s", "--warn-before", "4s", "--warn-signal", "USR1"];
    let script =
        "trap 'w=1' USR1; echo $$ > pid; while [ -z $w ]; do sleep 0.5 || exit 9; done; exit 5";
    let output = code(site.run(&options, script)).await;
    assert_eq!(output.code, 5, "{output:?}");
    assert_eq!(site.locks.show("job").await.state, LockState::Free);
}

#[tokio::test]
async fn failing_renewals_are_warned_of() {
    let mut site = Site::new().await;
    let options = ["--ttl", "12s", "--warn-before", "1h", "--warn-signal", "USR1"];
    let script = "trap ': > warned' USR1; echo $$ > pid; while :; do sleep 0.02; done";
    let mut process = site.run(&options, script);
    site.job_pid().await;
    until_true("a renewal", || async {
        site.locks.show("job").await.holder.is_some_and(|holder| holder.renewals > 0)
    })
    .await;
    assert!(!site.file("warned").exists(), "renewals that succeed are warned of");
    site.server.process.kill();
    let output = process.ended().await;
    assert_eq!(output.code, 76, "{output:?}");
    assert!(site.file("warned").exists(), "{output:?}");
    assert!(output.stderr.contains("renewals fail"), "{}", output.stderr);
}
