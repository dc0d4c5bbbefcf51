//! Processes that are stopped while PostgreSQL writes to them: what their transactions hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fence_protocol::Code;
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::postgres_server::Postgres;
use fence_tests::process::pause;
use fence_tests::psql::{DONE, Psql};
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until, until_true};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::task::JoinHandle;

use super::locks::answered;

/// Back ends that wait for their peer to read.
const WRITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'";
/// Waits for the gate, and then locks objects. The reply is larger than what buffers take.
const GATE: &str = "CREATE TABLE gate (); \
    ALTER FUNCTION fence.lock_objects(text, text[]) RENAME TO lock_now; \
    CREATE FUNCTION fence.lock_objects(n text, k text[]) RETURNS TABLE (key text, etag text) \
    LANGUAGE plpgsql SET lock_timeout = 0 AS $$ \
    BEGIN LOCK TABLE public.gate IN SHARE MODE; RETURN QUERY SELECT * FROM fence.lock_now(n, k) \
    UNION ALL SELECT 'another', repeat('x', 16 << 20); END $$";
/// Waits for the gate in each commit of a lock server, without the row lock.
const GATE_OF_COMMITS: &str = "CREATE TABLE gate (); \
    CREATE FUNCTION await_gate() RETURNS trigger LANGUAGE plpgsql AS $$ \
    BEGIN LOCK TABLE public.gate IN SHARE MODE; RETURN NEW; END $$; \
    CREATE TRIGGER gate BEFORE UPDATE ON fence_locks.namespaces \
    FOR EACH ROW EXECUTE FUNCTION await_gate()";

/// Locks that a guard seals at a time.
const AT_ONCE: usize = 16;
/// Locks whose holders do not end.
const STUCK: usize = AT_ONCE + 4;

/// Process of the back end that waits for a lock in a statement with these words.
async fn waiting(postgres: &Postgres, words: &str) -> String {
    let sql = format!(
        "SELECT pid FROM pg_stat_activity \
         WHERE query LIKE '%{words}%' AND wait_event_type = 'Lock'"
    );
    until("a statement to wait", || async {
        let pid = postgres.sql(&sql).await;
        (!pid.is_empty()).then_some(pid)
    })
    .await
}

/// A guard that was stopped within its transaction, which raised the mark to 34: the server waits
/// for it to read the tags of objects.
struct StoppedGuard {
    postgres: Postgres,
    guard: Server,
    /// Header of token 34.
    token: String,
    write: JoinHandle<u16>,
}

impl StoppedGuard {
    async fn new() -> Self {
        let postgres = Postgres::start().await;
        let guard = Setup::fenced_store(&postgres.url()).start().await;
        guard.guard().put("a", &unsigned(33, "a", lease_id()), "old").await.expect(201);
        postgres.sql(GATE).await;
        let mut gate = Psql::start(&postgres.url());
        assert_eq!(gate.run("BEGIN; LOCK TABLE gate;").await, DONE);
        let token = unsigned(34, "a", lease_id());
        let writer = guard.guard();
        let header = token.clone();
        let write = tokio::spawn(async move { writer.put("a", &header, "late").await.status });
        waiting(&postgres, "lock_objects").await;
        guard.process.pause();
        assert_eq!(gate.run("COMMIT;").await, DONE);
        until_true("the server to wait for the guard", || async {
            postgres.sql(WRITING).await == "1"
        })
        .await;
        Self { postgres, guard, token, write }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_reads_no_batch_is_ended_by_a_seal() {
    let StoppedGuard { postgres, guard, token, write } = StoppedGuard::new().await;
    let other = Setup::fenced_store(&postgres.url()).start().await;
    let new = unsigned(35, "a", lease_id());
    other.guard().put("a", &new, "new").await.expect(204);
    assert_eq!(postgres.sql(WRITING).await, "0");
    guard.process.resume();
    assert_eq!(soon("the end of the write", write).await.unwrap(), 503);
    until_true("the guard to work again", || async {
        guard.guard().fenced_get("a", &token).await.status == 412
    })
    .await;
    assert_eq!(guard.guard().fenced_get("a", &new).await.expect(200).body.as_ref(), b"new");
}

/// No seal ends the transaction of the same token: the server does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_reads_no_batch_holds_its_marks_for_seconds() {
    let StoppedGuard { postgres, guard, token, .. } = StoppedGuard::new().await;
    let other = Setup::fenced_store(&postgres.url()).start().await;
    until_true("a write with the same token", || async {
        other.guard().put("a", &token, "same").await.status == 204
    })
    .await;
    assert!(guard.process.is_stopped());
}

/// A back end that is stopped itself takes no signal: the refusal says which it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_does_not_end_is_named() {
    let postgres = Postgres::start().await;
    let server = Setup::fenced_store(&postgres.url()).start().await;
    let mut client = Psql::start(&postgres.url());
    let enter = format!("BEGIN; SELECT fence.enter('a', 5, '{}');", lease_id());
    assert_eq!(client.run(&enter).await, DONE);
    let open = "SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction'";
    let pid = postgres.sql(open).await;
    let backend = Pid::from_raw(pid.parse().unwrap()).unwrap();
    pause(backend).unwrap();
    let new = unsigned(6, "a", lease_id());
    let refused = server.guard().put("a", &new, "six").await.problem(Code::StoreUnavailable);
    assert!(refused.detail.contains(&format!("sessions: {pid},")), "{}", refused.detail);
    kill_process(backend, Signal::CONT).unwrap();
    until_true("a write", || async { server.guard().put("a", &new, "six").await.status == 201 })
        .await;
}

/// Locks whose holders do not end keep no other lock's hand-over waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn back_ends_that_do_not_end_hold_up_no_other_lock() {
    let postgres = Postgres::start().await;
    let server = Setup::fenced_store(&postgres.url()).start().await;
    let enter = |lock: &str| format!("BEGIN; SELECT fence.enter('{lock}', 5, '{}');", lease_id());
    let mut clients = Vec::new();
    for number in 0..STUCK {
        let mut client = Psql::start(&postgres.url());
        assert_eq!(client.run(&enter(&format!("stuck/{number}"))).await, DONE);
        clients.push(client);
    }
    let open = "SELECT string_agg(pid::text, ' ') FROM pg_stat_activity \
                WHERE state = 'idle in transaction'";
    let pids = postgres.sql(open).await;
    let pids = pids.split(' ').map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap());
    let pids: Vec<Pid> = pids.collect();
    pids.iter().for_each(|pid| pause(*pid).unwrap());
    let mut client = Psql::start(&postgres.url());
    assert_eq!(client.run(&enter("other")).await, DONE);
    // The server looks itself: so many are there at once for a few seconds only.
    let full = format!(
        "DO $$ BEGIN LOOP PERFORM pg_stat_clear_snapshot(); \
         EXIT WHEN (SELECT count(*) FROM pg_stat_activity \
         WHERE query LIKE 'SELECT fence.seal(%stuck%' AND state = 'active') = {AT_ONCE}; \
         PERFORM pg_sleep(0.01); END LOOP; END $$;"
    );
    let mut watch = Psql::start(&postgres.url());
    assert_eq!(watch.run("SELECT 1;").await, DONE);
    let answered = Arc::new(AtomicUsize::new(0));
    let stuck: Vec<JoinHandle<()>> = (0..STUCK)
        .map(|number| {
            let guard = server.guard();
            let answered = answered.clone();
            tokio::spawn(async move {
                let key = format!("stuck/{number}");
                guard.put(&key, &unsigned(6, &key, lease_id()), "six").await;
                answered.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    assert_eq!(watch.run(&full).await, DONE, "as many seals as may be");
    // Its own holder is ended.
    server.guard().put("other", &unsigned(6, "other", lease_id()), "six").await.expect(201);
    assert!(answered.load(Ordering::SeqCst) < AT_ONCE, "it waited for seals of others");
    pids.iter().for_each(|pid| kill_process(*pid, Signal::CONT).unwrap());
    for task in stuck {
        soon("the end of a write", task).await.unwrap();
    }
}

/// A commit that lost its race holds the namespace's row while it replies: that must be short.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_lock_server_holds_up_no_other() {
    let postgres = Postgres::start().await;
    // Shorter than the server waits for a peer that reads nothing.
    let setup = |timeout| Setup::lock_server(&postgres.url()).args(&["--store-timeout", timeout]);
    let other = setup("8s").start().await;
    let server = setup("60s").start().await;
    let locks = server.locks();
    let lease = locks.grant("large", 60_000).await;
    other.locks().grant("first", 60_000).await;
    postgres.sql(GATE_OF_COMMITS).await;
    let mut gate = Psql::start(&postgres.url());
    assert_eq!(gate.run("BEGIN; LOCK TABLE gate;").await, DONE);
    let renewal = json!({"lease_id": lease.lease_id, "ttl_ms": 60_000});
    let renewed = tokio::spawn(async move { answered(&locks, "large", "renew", renewal).await });
    let pid = waiting(&postgres, "pg_temp.commit").await;
    server.process.pause();
    // One more member of the map, which no server knows.
    let change = "UPDATE fence_locks.records SET version = version + 1000000, \
                  value = set_byte(value, 0, get_byte(value, 0) + 1) \
                      || decode('a17ac6', 'hex') || int4send(20000000) \
                      || decode(repeat('20', 20000000), 'hex') \
                  WHERE key = 'lock:large'; COMMIT;";
    assert_eq!(gate.run(change).await, DONE);
    let is_over = format!(
        "SELECT state = 'idle' OR wait_event = 'ClientWrite' FROM pg_stat_activity \
         WHERE pid = {pid}"
    );
    until_true("the commit to end, or to reply", || async { postgres.sql(&is_over).await == "t" })
        .await;
    other.locks().grant("second", 60_000).await;
    server.process.resume();
    let renewed = soon("the renewal", renewed).await.unwrap();
    assert_eq!(renewed.lease().token, lease.token);
}
