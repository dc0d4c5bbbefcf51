//! A wait for a lock: its bound, what is shown of it, and its position in the queue.

use fence_protocol::wire::lock::LockState;
use fence_tests::ports;
use fence_tests::process::{Output, Process, command};
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::servers::Setup;
use fence_tests::wait::until_true;
use serde_json::json;

fn fence(server: &str, args: &[&str]) -> Process {
    let mut command = command(fence_tests::binaries::path("fence"));
    command.args(args).env("FENCE_SERVER", server);
    Process::spawn("fence", command)
}

async fn ended(server: &str, args: &[&str]) -> Output {
    fence(server, args).ended().await
}

/// The first failure is reported, and not only the last: the user can start the server.
#[tokio::test]
async fn a_refused_connection_is_reported_while_the_wait_lasts() {
    let address = format!("127.0.0.1:{}", ports::unused());
    let url = format!("http://{address}");
    for locks in [&["--lock", "a"][..], &["--lock", "a", "--lock", "b"]] {
        let args = [&["run"], locks, &["--wait", "1m", "--", "true"]].concat();
        let mut waits = fence(&url, &args);
        let said = format!("fence: cannot reach {url}: ");
        until_true("a first report", || async { waits.stderr().contains(&said) }).await;
        assert!(waits.stderr().contains("; trying again for "), "{}", waits.stderr());
        let _server = Setup::lock_server("memory:").listen(&address).start().await;
        let output = waits.ended().await;
        assert_eq!(output.code, 0, "{output:?}");
        assert_eq!(output.stderr.matches("cannot reach").count(), 1, "{output:?}");
    }
}

#[tokio::test]
async fn an_unreachable_server_ends_the_wait() {
    let url = format!("http://127.0.0.1:{}", ports::unused());
    for args in [
        &["run", "--lock", "a", "--wait", "3s", "--", "true"][..],
        &["run", "--lock", "a", "--lock", "b", "--wait", "3s", "--", "true"],
        &["lock", "acquire", "a", "--wait", "3s"],
    ] {
        let output = ended(&url, args).await;
        assert_eq!(output.code, 69, "{args:?}: {output:?}");
        assert!(output.stderr.contains("trying again for"), "{args:?}: {output:?}");
    }
    // Without a wait there is one attempt.
    let output = ended(&url, &["run", "--lock", "a", "--", "true"]).await;
    assert_eq!(output.code, 69, "{output:?}");
    assert!(!output.stderr.contains("trying again"), "{output:?}");
}

/// Two of three nodes are dead: nothing is granted, and the wait ends. Sessions are not offered,
/// however long the wait is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_ends_a_wait_too() {
    let mut nodes = QuorumNodes::start(3).await;
    let server = Setup::lock_server(&nodes.url()).start().await;
    let output =
        ended(&server.base, &["run", "--lock", "a", "--lock", "b", "--wait", "1h", "--", "true"]);
    let output = output.await;
    assert_eq!(output.code, 64, "{output:?}");
    assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
    assert!(output.stderr.contains("several locks need a session"), "{output:?}");
    nodes.node_mut(0).kill();
    nodes.node_mut(1).kill();
    let output = ended(&server.base, &["run", "--lock", "a", "--wait", "1s", "--", "true"]).await;
    assert!([69, 74].contains(&output.code), "{output:?}");
}

/// In a log a wait is one line, which names holder, position and the end of the lease.
#[tokio::test]
async fn a_wait_is_one_line_in_a_log() {
    let server = Setup::lock_server("memory:").start().await;
    let held = server.locks().acquire("a", json!({"ttl_ms": 60_000, "owner": "alice"})).await;
    let held = held.lease();
    let other = server.locks();
    let first = tokio::spawn(async move { other.acquire("a", json!({"wait_ms": 60_000})).await });
    server.locks().queue_of("a", 1).await;
    let mut waits = fence(&server.base, &["run", "--lock", "a", "--wait", "10m", "--", "true"]);
    let shown = "fence: waiting for a behind alice, position 2 of 2, lease ends in ";
    until_true("the line", || async { waits.stderr().contains(shown) }).await;
    first.abort();
    server.locks().release("a", held.lease_id).await.expect(200);
    let output = waits.ended().await;
    assert_eq!((output.code, output.stderr.lines().count()), (0, 1), "{output:?}");
}

/// On a terminal the line is repainted, and gone when the command runs.
#[tokio::test]
async fn a_wait_is_a_line_that_changes_on_a_terminal() {
    let server = Setup::lock_server("memory:").start().await;
    let held = server.locks().acquire("a", json!({"ttl_ms": 60_000, "owner": "alice"})).await;
    let held = held.lease();
    let fence = fence_tests::binaries::path("fence");
    let line = format!("{} run --lock a --wait 10m -- echo runs", fence.display());
    let mut terminal = command("script");
    terminal.args(["-qec", &line, "/dev/null"]).env("FENCE_SERVER", &server.base);
    terminal.env("TERM", "xterm");
    let mut terminal = Process::spawn("script", terminal);
    let shown = "\rfence: waiting for a behind alice, position 1 of 1";
    until_true("two looks", || async { terminal.stdout().matches(shown).count() > 1 }).await;
    server.locks().release("a", held.lease_id).await.expect(200);
    let output = terminal.ended().await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stdout.trim_end().ends_with("\r\u{1b}[Kruns"), "{output:?}");
}

/// A request with the lease id of one that waits takes over its entry: a wait that is longer than a
/// request may be keeps its position.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_request_keeps_the_position() {
    const FIRST_MS: u64 = 8_000;
    let server = Setup::lock_server("memory:").start().await;
    let locks = server.locks();
    let held = locks.grant("a", 60_000).await;
    let id = fence_tests::key_file::lease_id();
    let wish = move |wait_ms: u64| json!({"lease_id": id, "wait_ms": wait_ms, "owner": "first"});
    let one = server.locks();
    let two = server.locks();
    let first = tokio::spawn(async move { one.acquire("a", wish(FIRST_MS)).await });
    locks.queue_of("a", 1).await;
    let behind = tokio::spawn(async move {
        two.acquire("a", json!({"wait_ms": 60_000, "owner": "second"})).await.lease()
    });
    locks.queue_of("a", 2).await;
    let three = server.locks();
    let next = tokio::spawn(async move { three.acquire("a", wish(60_000)).await.lease() });
    until_true("the first request's wait to be over", || async {
        let queue = locks.show("a").await.queue;
        queue.first().is_some_and(|waiter| waiter.waiting_ms > FIRST_MS + 500)
    })
    .await;
    first.abort();
    assert_eq!(locks.show("a").await.state, LockState::Held);
    locks.release("a", held.lease_id).await.expect(200);
    let granted = next.await.unwrap();
    locks.release("a", granted.lease_id).await.expect(200);
    assert!(granted.token < behind.await.unwrap().token);
}
