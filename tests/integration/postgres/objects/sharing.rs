//! Objects, direct clients and the PostgreSQL port share the marks of one database.

use fence_protocol::Code;
use fence_tests::api::Guard;
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::postgres_server::Postgres;
use fence_tests::psql::{DONE, Psql};
use fence_tests::servers::Setup;
use fence_tests::wait::{soon, until_true};

use crate::postgres_port;

/// Rounds at most. In each one a busy machine may be slow enough for the transaction to be ended
/// before the other lock's write is over.
const ROUNDS: u64 = 5;

/// Has a higher token's write wait for an open transaction, which it ends, and writes to another
/// lock meanwhile; `true` if that write did not wait for the first one.
async fn writes_beside_a_seal(postgres: &Postgres, guard: &Guard, round: u64) -> bool {
    let lower = 10 * round;
    let mut client = Psql::start(&postgres.url());
    let lease = lease_id();
    let entered = format!(
        "BEGIN; SELECT fence.enter('slow', {lower}, '{lease}'); INSERT INTO journal VALUES (1);"
    );
    assert_eq!(client.run(&entered).await, DONE);
    let status = if round == 1 { 201 } else { 204 };
    let slow = guard.clone();
    let higher = tokio::spawn(async move {
        slow.put("slow", &unsigned(lower + 1, "slow", lease_id()), "higher").await.expect(status);
    });
    let aside = "SELECT count(*) FROM pg_stat_activity \
                 WHERE query LIKE 'SELECT fence.seal(%slow%' AND wait_event_type = 'Lock'";
    let is_aside = async || postgres.sql(aside).await == "1";
    until_true("the seal to wait", || async { higher.is_finished() || is_aside().await }).await;
    guard.put("fast", &unsigned(round, "fast", lease_id()), "at once").await.expect(status);
    let still_waits = is_aside().await;
    soon("the higher token's write", higher).await.unwrap();
    assert_eq!(postgres.sql("SELECT count(*) FROM journal").await, "0", "it was rolled back");
    guard.put("slow", &unsigned(lower, "slow", lease), "late").await.problem(Code::StaleToken);
    still_waits
}

/// A transaction that entered a fence is ended before a higher token writes; until then the other
/// locks' operations go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_lower_transaction_ends_and_holds_up_its_own_lock_alone() {
    let postgres = Postgres::start().await;
    let server = Setup::fenced_store(&postgres.url()).start().await;
    let guard = server.guard();
    postgres.sql("CREATE TABLE journal (number integer)").await;
    for round in 1..=ROUNDS {
        if writes_beside_a_seal(&postgres, &guard, round).await {
            return;
        }
    }
    panic!("the other lock's write waited for the seal, {ROUNDS} times");
}

/// An object's token is as good as any: a stale transaction does not enter.
#[tokio::test]
async fn a_mark_of_an_object_refuses_a_transaction() {
    let postgres = Postgres::start().await;
    let server = Setup::fenced_store(&postgres.url()).start().await;
    server.guard().put("a", &unsigned(34, "a", lease_id()), "x").await.expect(201);
    let mut client = Psql::start(&postgres.url());
    let stale = format!("SELECT fence.enter('a', 33, '{}');", lease_id());
    assert_eq!(client.run(&stale).await, "FE412");
}

/// One process with both doors: a write to an object ends the sessions of lower tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_and_the_objects_have_one_mark() {
    let postgres = postgres_port::database().await;
    let url = format!("postgres://guard@{}/shop", postgres.address());
    let setup = postgres_port::setup(&postgres).args(&["--store", &url]);
    let port = postgres_port::port(&setup).await;
    let guard = port.server.guard();
    let mut session = port.log_in(5).await.unwrap();
    session.query("BEGIN").await.unwrap();
    session.query("INSERT INTO journal VALUES (5, 1)").await.unwrap();
    let new = unsigned(6, "shop", lease_id());
    guard.put("shop", &new, "six").await.expect(201);
    session.query("COMMIT").await.unwrap_err();
    let count = postgres_port::shop(&postgres, "postgres", "SELECT count(*) FROM journal").await;
    assert_eq!(count, "0");
    assert_eq!(port.log_in(5).await.unwrap_err().code(), "FE412");
    port.log_in(7).await.unwrap();
    guard.put("shop", &new, "late").await.problem(Code::StaleToken);
    // A floor at the start is for both doors.
    drop(port);
    let port = postgres_port::port(&setup.args(&["--floor", "20"])).await;
    assert_eq!(port.log_in(19).await.unwrap_err().code(), "FE412");
    let late = unsigned(19, "other", lease_id());
    port.server.guard().put("other", &late, "late").await.problem(Code::StaleToken);
    port.log_in(20).await.unwrap();
}

#[tokio::test]
async fn the_port_and_the_objects_must_be_in_one_database() {
    let postgres = postgres_port::database().await;
    let setup = postgres_port::setup(&postgres).args(&["--store", &postgres.url()]);
    let output = setup.spawn().ended().await;
    assert!(output.stderr.contains("name different databases"), "{}", output.stderr);
}
