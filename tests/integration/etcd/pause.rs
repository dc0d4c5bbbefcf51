//! A holder is paused for longer than its lease lives, and writes when it resumes.

use fence_tests::etcd_server::Etcd;
use fence_tests::process::{Process, command};
use fence_tests::servers::{Server, Setup};
use serde_json::json;

use super::{LONG_MS, lock_server};

/// A holder that is paused without noticing, writes its result, and prints the reply.
const HOLDER: &str = r#"
kill -STOP $$
curl --silent --show-error --output /dev/null --write-out '%{http_code}' \
    --request PUT --header "Fencing-Token: $TOKEN" --data late "$GUARD/v1/objects/paused"
"#;

fn holder(guard: &Server, fencing_token: &str) -> Process {
    let mut command = command("bash");
    command.args(["-c", HOLDER]).env("TOKEN", fencing_token).env("GUARD", &guard.base);
    Process::spawn("holder", command)
}

/// Returns the reply to a holder that was paused until another one had the lock, and the value in
/// the store at the end. `is_fenced` is whether the other one had written through the guard before.
async fn late_write(is_fenced: bool) -> (String, String) {
    let etcd = Etcd::start().await;
    let guard = Setup::fenced_store("memory:").start().await;
    let server = lock_server(&etcd).await;
    let locks = server.locks();
    let store = guard.guard();
    let old = locks.grant("paused", 5_000).await;
    store.put("paused", &old.fencing_token, "old").await.expect(201);
    let mut stalled = holder(&guard, &old.fencing_token);
    stalled.stopped().await;
    let ask = json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS});
    let new = locks.acquire("paused", ask).await.lease();
    assert!(new.token > old.token, "{} after {}", new.token, old.token);
    if is_fenced {
        store.put("paused", &new.fencing_token, "new").await.expect(204);
    }
    stalled.resume();
    let ended = stalled.ended().await;
    assert_eq!(ended.code, 0, "{ended:?}");
    let found = store.fenced_get("paused", &new.fencing_token).await.expect(200);
    (ended.stdout, String::from_utf8_lossy(&found.body).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_stood_still_writes_too_late() {
    assert_eq!(late_write(true).await, ("412".to_owned(), "new".to_owned()));
}

/// The control: it would have written, had the next holder not been at the guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_holder_would_write_where_no_newer_holder_has_written() {
    assert_eq!(late_write(false).await, ("204".to_owned(), "late".to_owned()));
}
