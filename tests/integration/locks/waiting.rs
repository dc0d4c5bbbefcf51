//! The queue over HTTP: order, patience, and waiters that go away.

use fence_protocol::Code;
use fence_tests::key_file::lease_id;
use fence_tests::raw_http;
use fence_tests::servers::Setup;
use fence_tests::wait::soon;
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::memory;

#[tokio::test]
async fn waiters_are_served_first_come_first_served() {
    let server = memory().await;
    let locks = server.locks();
    let mut last = locks.grant("fifo", 60_000).await;
    let mut queue = Vec::new();
    for place in 1..=5 {
        let own = locks.clone();
        let owner = format!("waiter {place}");
        queue.push(tokio::spawn(async move {
            let ask = json!({"ttl_ms": 60_000, "wait_ms": 60_000, "owner": owner});
            own.acquire("fifo", ask).await.lease()
        }));
        locks.queue_of("fifo", place).await;
    }
    for (index, waiting) in queue.into_iter().enumerate() {
        locks.release("fifo", last.lease_id).await.expect(200);
        let next = soon("the next grant", waiting).await.unwrap();
        assert_eq!(next.owner.as_str(), format!("waiter {}", index + 1));
        assert!(next.token > last.token);
        last = next;
    }
}

#[tokio::test(start_paused = true)]
async fn patience_ends_in_423() {
    let server = memory().await;
    let locks = server.locks();
    locks.grant("patience", 60_000).await;
    let reply = locks.acquire("patience", json!({"wait_ms": 10_000})).await;
    assert_eq!(reply.problem(Code::LockHeld).extension::<usize>("queue_length"), Some(0));
    assert_eq!(locks.show("patience").await.queue_length, 0);
}

/// Also if bytes follow its request: the HTTP library does not look at the socket while it holds
/// them.
#[tokio::test]
async fn a_waiter_that_disconnects_leaves_the_queue() {
    let server = Setup::lock_server("memory:").start().await;
    let locks = server.locks();
    let wait = json!({"wait_ms": 60_000});
    // An id that the server makes up, and one that the client could ask for again.
    for (body, behind) in [
        (&wait, ""),
        (&json!({"wait_ms": 60_000, "lease_id": lease_id()}), ""),
        (&wait, "\r\n"),
        (&wait, "x"),
        (&wait, "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    ] {
        let first = locks.grant("gone", 60_000).await;
        let body = body.to_string();
        let mut stream = raw_http::connect(&server.base).await;
        let request = format!(
            "POST /v1/locks/gone/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}{behind}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        locks.queue_of("gone", 1).await;
        drop(stream);
        locks.queue_of("gone", 0).await;
        locks.release("gone", first.lease_id).await.expect(200);
        let next = locks.grant("gone", 60_000).await;
        locks.release("gone", next.lease_id).await.expect(200);
    }
}

#[tokio::test(start_paused = true)]
async fn expiry_wakes_the_next_waiter() {
    let server = memory().await;
    let locks = server.locks();
    let first = locks.grant("wakes", 15_000).await;
    let ask = json!({"wait_ms": 60_000});
    let next = soon("the grant after expiry", locks.acquire("wakes", ask)).await.lease();
    assert!(next.token > first.token);
    assert!((14_000..60_000).contains(&next.waited_ms), "{}", next.waited_ms);
}

#[tokio::test]
async fn a_full_queue_answers_429() {
    let server = Setup::lock_server("memory:").args(&["--max-waiters-per-lock", "1"]);
    let server = server.in_process().await;
    let locks = server.locks();
    locks.grant("full", 60_000).await;
    let own = locks.clone();
    let waiting =
        tokio::spawn(async move { own.try_acquire("full", json!({"wait_ms": 60_000})).await });
    locks.queue_of("full", 1).await;
    let reply = locks.acquire("full", json!({"wait_ms": 60_000})).await;
    assert!(reply.problem(Code::LimitReached).detail.contains('1'));
    assert!(!reply.header("retry-after").is_empty());
    waiting.abort();
}

/// Waiters hold their connections; each tenth connection, rounded up, is left to the others.
#[tokio::test]
async fn waiters_leave_a_connection_to_probes_and_releases() {
    let server = Setup::lock_server("memory:").args(&["--max-connections", "20"]).start().await;
    let locks = server.locks();
    let held = locks.grant("crowded", 60_000).await;
    let body = json!({"wait_ms": 60_000}).to_string();
    let request = format!(
        "POST /v1/locks/crowded/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut waiting = Vec::new();
    for place in 1..=18 {
        let mut stream = raw_http::connect(&server.base).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        locks.queue_of("crowded", place).await;
        waiting.push(stream);
    }
    let reply = locks.acquire("crowded", json!({"wait_ms": 60_000})).await;
    let problem = reply.problem(Code::LimitReached);
    assert!(problem.detail.contains("--max-connections"), "{problem:?}");
    // What can be granted at once does not wait.
    locks.acquire("quiet", json!({"wait_ms": 60_000})).await.expect(200);
    locks.release("crowded", held.lease_id).await.expect(200);
    let reply = soon("the grant", raw_http::read_reply(&mut waiting[0])).await;
    assert_eq!(raw_http::status(&reply), Some(200), "{reply}");
    drop(waiting);
    locks.queue_of("crowded", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_asked_to_end_keeps_no_waiter() {
    let mut server = Setup::lock_server("memory:").start().await;
    let locks = server.locks();
    locks.grant("draining", 60_000).await;
    let own = locks.clone();
    let waiting =
        tokio::spawn(async move { own.try_acquire("draining", json!({"wait_ms": 60_000})).await });
    locks.queue_of("draining", 1).await;
    server.process.terminate();
    let reply = soon("the reply to the waiter", waiting).await.unwrap();
    reply.expect("an answer, not a cut connection").problem(Code::ShuttingDown);
    assert_eq!(server.process.ended().await.code, 0);
}
