//! A person at a terminal: the command may read from it, and stops and ends as one that the shell
//! had started itself.

use fence_tests::wait::patience;

use super::*;

const PERSON: &str = include_str!("terminal.py");

/// Steps of a person at a terminal in which a shell with job control runs `fence`, in the folder.
async fn person(site: &Site, steps: &[&str]) -> Output {
    let mut person = command("python3");
    person.args(["-c", PERSON, &(patience() / 2).as_secs_f64().to_string()]);
    // Nothing is typed ahead of a prompt: the shell may drop that.
    person.args(["send:PS1='rea''dy> '\n", "expect:ready> "]).args(steps);
    person.args(["--", "bash", "--norc", "--noprofile", "-i"]);
    person.current_dir(site.folder.path()).env("FENCE_SERVER", &site.server.base);
    person.env("PS1", "$ ").env("fence", fence_tests::binaries::path("fence"));
    Process::spawn("a person", person).ended_within(std::time::Duration::from_secs(180)).await
}

/// Types a command line that runs `script` under the lock; `before` and `after` stand around it.
fn typed(before: &str, script: &str, after: &str) -> String {
    format!("send:{before} $fence run --lock job -- sh -c '{script}' {after}\n")
}

/// Input that is a pipe leaves the terminal to the command that asks for it.
#[tokio::test]
async fn a_command_in_a_pipeline_may_ask_at_the_terminal() {
    let site = Site::new().await;
    let script = "printf \"na%s? \" me >/dev/tty; read n </dev/tty; echo to''day $n; cat";
    let line = typed("echo piped |", script, "");
    let steps = [
        &*line,
        "expect:name? ",
        "send:bob\n",
        "expect:today bob",
        "expect:piped",
        "expect:ready> ",
        "send:exit\n",
    ];
    let output = person(&site, &steps).await;
    assert_eq!(output.code, 0, "{output:?}");
}

/// Wherever stdin is: what works on behind a shell that shows "Stopped" would do so without a
/// lease.
#[tokio::test]
async fn ctrl_z_stops_the_command_too() {
    // A shell that is stopped while it starts another program may wait for that one in the kernel.
    let script = "echo $$ > pid; exec sleep 600";
    for before in ["", "echo piped |"] {
        let site = Site::new().await;
        let line = typed(before, script, "");
        let steps = [
            &*line,
            "state:pid:S",
            "send:\x1a",
            "expect:Stopped",
            "expect:ready> ",
            "state:pid:T",
            "send:fg\n",
            "state:pid:S",
            "interrupt:pid",
            "expect:ready> ",
            "send:exit 0\n",
        ];
        let output = person(&site, &steps).await;
        assert_eq!(output.code, 0, "{before} {output:?}");
        until_true("the lock to be free", || async {
            site.locks.show("job").await.state == LockState::Free
        })
        .await;
    }
}

/// In the background it has no terminal to read from: it stops, visibly, and TERM ends it.
#[tokio::test]
async fn a_stopped_command_ends_at_a_terminating_signal() {
    let site = Site::new().await;
    let line = typed("", "echo $$ > pid; read n </dev/tty", "&");
    let steps = [
        &*line,
        "state:pid:T",
        "send:echo $! > fence\n",
        "expect:waits for the terminal",
        "state:fence:T",
        "send:\nkill %1\n",
        "state:pid:gone",
        // A shell that has not seen yet that the job has ended is left by the second.
        "send:exit 0\nexit 0\n",
    ];
    let output = person(&site, &steps).await;
    assert_eq!(output.code, 0, "{output:?}");
}

/// The window is closed while the command waits for an answer.
#[tokio::test]
async fn a_closed_terminal_ends_the_command() {
    let site = Site::new().await;
    let line = typed("echo piped |", "echo $$ > pid; read n </dev/tty; sleep 600", "");
    person(&site, &[&*line, "state:pid:S", "hangup:", "state:pid:gone"]).await;
    until_true("the lock to be free", || async {
        site.locks.show("job").await.state == LockState::Free
    })
    .await;
}
