//! Locks in PostgreSQL under faults: crashes, failovers, backups, lost replies.

use fence_tests::api::{Locks, Reply};
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::lease_id;
use fence_tests::postgres_server::Postgres;
use fence_tests::redis_clock::OwnClock;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{until, until_true};
use serde_json::{Value, json};

/// Short, so that a fault is noticed early, and longer than a stall of a busy machine.
const TIMEOUT: [&str; 2] = ["--store-timeout", "3s"];

/// Time to live of the lease that a failover loses: much longer than the failover takes.
const LOST_MS: u64 = 600_000;

pub(super) fn setup(url: &str) -> Setup {
    Setup::lock_server(url).args(&TIMEOUT)
}

/// These tests are about tokens; others that grants wait.
pub(super) fn granting(url: &str) -> Setup {
    setup(url).args(&["--after-loss", "grant"])
}

fn through(proxy: &FaultProxy) -> String {
    format!("postgres://postgres@{}/postgres", proxy.address())
}

/// The reply to a request, as soon as the store works.
pub(super) async fn answered(locks: &Locks, lock: &str, verb: &str, body: Value) -> Reply {
    until("a reply of a store that works", || async {
        let reply = locks.try_post(lock, verb, body.clone()).await.ok()?;
        (!matches!(reply.status, 503 | 504)).then_some(reply)
    })
    .await
}

pub(super) async fn next_token(locks: &Locks, lock: &str) -> u64 {
    let body = json!({"ttl_ms": 60_000, "lease_id": lease_id()});
    answered(locks, lock, "acquire", body).await.lease().token.get()
}

async fn counter(postgres: &Postgres) -> u64 {
    postgres.sql("SELECT counter FROM fence_locks.namespaces").await.parse().unwrap()
}

#[tokio::test]
async fn a_crash_of_postgresql_forgets_no_lease() {
    let mut postgres = Postgres::start().await;
    let server = setup(&postgres.url()).start().await;
    let locks = server.locks();
    let held = locks.grant("held", 60_000).await;
    let ended = locks.grant("ended", 60_000).await;
    locks.release("ended", ended.lease_id).await.expect(200);
    for _ in 0..2 {
        postgres.kill();
        postgres.start_again().await;
        let body = json!({"lease_id": held.lease_id});
        let renewed = answered(&locks, "held", "renew", body).await;
        assert_eq!(renewed.lease().token, held.token);
    }
    let other = json!({"lease_id": lease_id(), "ttl_ms": 1_000});
    answered(&locks, "held", "acquire", other).await.expect(423);
    let again = json!({"lease_id": ended.lease_id, "ttl_ms": 1_000});
    answered(&locks, "ended", "acquire", again).await.expect(410);
    assert!(next_token(&locks, "next").await > ended.token.get());
}

/// A primary, a replica that is behind it, and the server before both.
async fn failed_over(arguments: &[&str]) -> (Postgres, Server, u64) {
    let mut primary = Postgres::start().await;
    let first = granting(&primary.url()).start().await;
    next_token(&first.locks(), "first").await;
    let mut replica = Postgres::replica_of(&primary, "replica").await;
    let url = format!("postgres://postgres@{},{}/postgres", primary.address(), replica.address());
    let server = setup(&url).args(arguments).start().await;
    let locks = server.locks();
    replica.stop().await;
    let body = json!({"ttl_ms": LOST_MS, "lease_id": lease_id()});
    let before = answered(&locks, "lost", "acquire", body).await.lease().token.get();
    primary.kill();
    replica.start_again().await;
    replica.promote().await;
    (replica, server, before)
}

#[tokio::test]
async fn a_failover_lowers_no_token() {
    let (_replica, server, before) = failed_over(&["--after-loss", "grant"]).await;
    let after = next_token(&server.locks(), "lost").await;
    assert!(after > before, "{after} after {before}");
    assert_eq!(server.metric("fencepost_lock_lineages_begun_total").await, 1);
}

#[tokio::test]
async fn after_a_failover_grants_wait_for_lost_leases() {
    let (replica, server, _) = failed_over(&[]).await;
    let locks = server.locks();
    until("the pause", || async {
        let body = json!({"ttl_ms": 1_000, "lease_id": lease_id()});
        let reply = locks.try_post("lost", "acquire", body).await.ok()?;
        assert_ne!(reply.status, 200, "granted beside a holder that may still believe");
        let text = reply.json().to_string();
        text.contains("no lock is granted for another").then_some(())
    })
    .await;
    let left = "SELECT paused_for_ms > 500000 FROM fence_locks.namespaces";
    assert_eq!(replica.sql(left).await, "t");
}

/// Files from before the last grants come back: once while a lock server runs, which saw more, and
/// once while it is down.
#[tokio::test]
async fn a_restored_backup_lowers_no_token() {
    let mut postgres = Postgres::start().await;
    let proxy = FaultProxy::before(&postgres.address()).await;
    let url = through(&proxy);
    let mut server = granting(&url).start().await;
    let mut before = next_token(&server.locks(), "before").await;
    for is_down in [false, true] {
        postgres.stop().await;
        let mut backup = Postgres::copy_of(&mut postgres, &[]).await;
        postgres.start_again().await;
        for at in 0..5 {
            let after = next_token(&server.locks(), &format!("{is_down}/{at}")).await;
            assert!(after > before, "{after} after {before}");
            before = after;
        }
        if is_down {
            server.process.kill();
            // The restart of the backup lifts the counter by itself: here it looks unchanged.
            backup
                .sql("UPDATE fence_locks.namespaces SET started = pg_postmaster_start_time()")
                .await;
        }
        proxy.move_to(&backup.address());
        if is_down {
            server = granting(&url).start().await;
        }
        let after = next_token(&server.locks(), &format!("{is_down}/restored")).await;
        assert!(after > before, "{after} after {before}");
        // One began with the namespace, and one where the running server noticed.
        let begun = if is_down { 0 } else { 2 };
        assert_eq!(server.metric("fencepost_lock_lineages_begun_total").await, begun);
        before = after;
        std::mem::swap(&mut postgres, &mut backup);
    }
}

#[tokio::test]
async fn a_lost_reply_is_granted_once() {
    let postgres = Postgres::start().await;
    let proxy = FaultProxy::before(&postgres.address()).await;
    let server = setup(&through(&proxy)).start().await;
    let locks = server.locks();
    let other = locks.grant("other", 60_000).await.token.get();
    let body = json!({"ttl_ms": 60_000, "lease_id": lease_id(), "owner": "whose-reply-is-lost"});
    // Its name is in the value that is written, and not in a read.
    proxy.set(Fault::DropRepliesAfter("whose-reply-is-lost"));
    locks.acquire("lost", body.clone()).await.expect(504);
    proxy.heal();
    // PostgreSQL has the commit, and may be at work on it.
    let taken = until("the commit whose reply was lost", || async {
        Some(counter(&postgres).await).filter(|taken| *taken > other)
    })
    .await;
    let retried = answered(&locks, "lost", "acquire", body).await.lease();
    assert_eq!(retried.token.get(), taken);
}

#[tokio::test]
async fn a_paused_server_grants_again_once_it_resumes() {
    let postgres = Postgres::start().await;
    let server = setup(&postgres.url()).start().await;
    let locks = server.locks();
    let before = next_token(&locks, "before").await;
    postgres.pause();
    let body = json!({"ttl_ms": 60_000});
    let reply = locks.acquire("paused", body).await;
    assert!(matches!(reply.status, 503 | 504), "{}", reply.status);
    postgres.resume();
    assert!(next_token(&locks, "after").await > before);
}

/// Neither side learns that the connection is gone.
#[tokio::test]
async fn a_half_open_connection_is_replaced() {
    let postgres = Postgres::start().await;
    let proxy = FaultProxy::before(&postgres.address()).await;
    let server = setup(&through(&proxy)).start().await;
    let locks = server.locks();
    let before = next_token(&locks, "before").await;
    proxy.strand();
    assert!(next_token(&locks, "after").await > before);
}

/// A commit waits for the row lock while its session breaks and another lineage begins.
#[tokio::test]
async fn a_late_transaction_of_a_lost_session_changes_nothing() {
    let postgres = Postgres::start().await;
    let proxy = FaultProxy::before(&postgres.address()).await;
    let patient = ["--store-timeout", "30s", "--after-loss", "grant"];
    let server = Setup::lock_server(&through(&proxy)).args(&patient).start().await;
    let locks = server.locks();
    locks.grant("other", 60_000).await;
    let target: postgres_link::PostgresTarget = postgres.url().parse().unwrap();
    let tasks = service_kit::tasks::Tasks::new();
    let holder = target.connect(&Default::default(), &tasks).await.unwrap();
    let begin = "BEGIN; SELECT FROM fence_locks.namespaces FOR UPDATE";
    holder.client().batch_execute(begin).await.unwrap();
    let late = locks.clone();
    // With an id: a grant under an id that its client does not know would be returned.
    let body = json!({"ttl_ms": 60_000, "lease_id": lease_id()});
    let late = tokio::spawn(async move { late.acquire("late", body).await });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                   AND query LIKE '%pg_temp.commit%'";
    until_true("the commit to wait", async || postgres.sql(waiting).await == "1").await;
    proxy.cut();
    late.await.unwrap().expect(504);
    assert_eq!(postgres.sql(waiting).await, "1", "the transaction is not there any more");
    let end = "UPDATE fence_locks.namespaces SET lineage = 'another one'; COMMIT";
    holder.client().batch_execute(end).await.unwrap();
    until_true("the commit to end", async || postgres.sql(waiting).await == "0").await;
    let late = "SELECT count(*) FROM fence_locks.records WHERE key = 'lock:late'";
    assert_eq!(postgres.sql(late).await, "0");
    let body = json!({"ttl_ms": 60_000, "lease_id": lease_id()});
    answered(&locks, "late", "acquire", body).await.expect(200);
}

#[tokio::test]
async fn what_loses_data_by_design_is_refused() {
    let postgres = Postgres::start().await;
    let server = setup(&postgres.url()).start().await;
    server.locks().grant("a", 60_000).await;
    let replica = Postgres::replica_of(&postgres, "replica").await;
    let refused = setup(&replica.url()).refused().await;
    assert!(refused.stderr.contains("accepts no writes"), "{}", refused.stderr);
    postgres.sql("ALTER TABLE fence_locks.items SET UNLOGGED").await;
    let refused = setup(&postgres.url()).refused().await;
    assert!(refused.stderr.contains("unlogged (items)"), "{}", refused.stderr);
}

#[tokio::test]
async fn records_that_are_over_are_removed() {
    let postgres = Postgres::start().await;
    let server = setup(&postgres.url()).args(&["--ended-retention", "100ms"]).start().await;
    let locks = server.locks();
    for at in 0..20 {
        let lock = format!("short/{at}");
        let lease = locks.grant(&lock, 60_000).await;
        locks.release(&lock, lease.lease_id).await.expect(200);
    }
    let kept = locks.grant("kept", 60_000).await;
    let rows = "SELECT string_agg(key, ' ') FROM fence_locks.records";
    until_true("the rows to go", async || postgres.sql(rows).await == "lock:kept").await;
    locks.renew("kept", kept.lease_id).await.expect(200);
}

#[tokio::test]
async fn a_namespace_that_is_new_begins_at_one() {
    let postgres = Postgres::start().await;
    let fresh = ["init", "--fresh", "--store", &postgres.url()];
    let init = async || fence_tests::process::run("lock-server", &fresh).await;
    let made = init().await;
    assert_eq!(made.code, 0, "{}", made.stderr);
    let again = init().await;
    assert!(again.code != 0 && again.stderr.contains("is in use"), "{}", again.stderr);
    let server = setup(&postgres.url()).start().await;
    assert_eq!(next_token(&server.locks(), "first").await, 1);
    let late = init().await;
    assert!(late.code != 0 && late.stderr.contains("is in use"), "{}", late.stderr);
}

#[tokio::test]
async fn a_namespace_in_use_is_not_new_after_a_failover() {
    let postgres = Postgres::start().await;
    let server = setup(&postgres.url()).start().await;
    server.locks().grant("kept", 60_000).await;
    drop(server);
    postgres.sql("UPDATE fence_locks.namespaces SET timeline = timeline + 1").await;
    let lineages = "SELECT lineage FROM fence_locks.namespaces";
    let lineage = postgres.sql(lineages).await;
    let fresh = ["init", "--fresh", "--store", &postgres.url()];
    let late = fence_tests::process::run("lock-server", &fresh).await;
    assert!(late.code != 0 && late.stderr.contains("is in use"), "{}", late.stderr);
    assert_eq!(postgres.sql(lineages).await, lineage);
}

/// Files of a backup look like this, too: nothing was issued yet, and PostgreSQL has started.
#[tokio::test]
async fn a_namespace_that_is_new_is_so_in_one_run_of_postgresql() {
    let mut postgres = Postgres::start().await;
    let fresh = ["init", "--fresh", "--store", &postgres.url()];
    let made = fence_tests::process::run("lock-server", &fresh).await;
    assert_eq!(made.code, 0, "{}", made.stderr);
    postgres.restart().await;
    let server = setup(&postgres.url()).start().await;
    assert!(next_token(&server.locks(), "first").await > 1);
}

/// Each server by its own name and rights: the role that owns nothing but its schema.
#[tokio::test]
async fn a_role_with_the_least_rights_is_enough() {
    let postgres = Postgres::start().await;
    postgres.sql("CREATE ROLE locks LOGIN").await;
    postgres.sql("GRANT CREATE, TEMPORARY ON DATABASE postgres TO locks").await;
    let url = format!("postgres://locks@{}/postgres", postgres.address());
    let servers = [setup(&url).start().await, setup(&url).start().await];
    let [one, two] = [servers[0].locks(), servers[1].locks()];
    let lease = one.grant("a", 60_000).await;
    let waiting = two.clone();
    let waiting = tokio::spawn(async move {
        waiting.acquire("a", json!({"ttl_ms": 60_000, "wait_ms": 60_000})).await
    });
    one.queue_of("a", 1).await;
    one.release("a", lease.lease_id).await.expect(200);
    let granted = waiting.await.unwrap().lease();
    assert!(granted.token > lease.token);
    let ready = one.0.get("/readyz?verbose").await.body;
    let ready = String::from_utf8_lossy(&ready);
    assert!(ready.contains("fsync is off"), "{ready}");
}

/// By an hour, forward and back: to a running server that is no hour of a lease.
#[tokio::test]
async fn no_client_is_granted_beside_a_holder_when_the_clock_of_postgresql_jumps() {
    let clock = OwnClock::at(0);
    let postgres = Postgres::with_clock(&clock).await;
    let server = setup(&postgres.url()).start().await;
    let locks = server.locks();
    let held = locks.grant("held", 60_000).await;
    for (offset_s, jumps) in [(3_600, 1), (0, 2)] {
        clock.step(offset_s);
        for _ in 0..3 {
            let other = json!({"lease_id": lease_id(), "ttl_ms": 1_000});
            answered(&locks, "held", "acquire", other).await.expect(423);
        }
        let renewed = locks.renew("held", held.lease_id).await.expect(200).lease();
        assert!((50_000..=60_000).contains(&renewed.ttl_ms), "{}", renewed.ttl_ms);
        assert_eq!(server.metric("fencepost_lock_clock_jumps_total").await, jumps);
    }
}
