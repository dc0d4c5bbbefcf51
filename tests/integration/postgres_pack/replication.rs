//! Logical replication: what a subscriber has of the marks, and what guarded tables refuse there.

use fence_tests::psql::DONE;
use fence_tests::wait::until_true;

use super::*;

const LOGICAL: [(&str, &str); 1] = [("wal_level", "logical")];

/// Tables whose first copy is over: their later changes come by the worker.
const COPIED: &str = "select count(*) from pg_subscription_rel where srsubstate = 'r'";

/// A publisher, and a subscriber with the pack and the same tables, which it does not guard.
async fn replicated() -> (Postgres, Postgres) {
    let publisher = installed_with(&LOGICAL, &pack::sql()).await;
    publisher
        .sql(
            "create table whole (id int primary key, v text); grant all on whole to app;
             select fence.guard('whole', 'whole');
             create publication p for table docs, whole, fence.marks, fence.seals",
        )
        .await;
    let subscriber = installed_with(&LOGICAL, &pack::sql()).await;
    subscriber
        .sql(
            "select fence.unguard('docs'); truncate docs;
             create table whole (id int primary key, v text); grant all on whole to app",
        )
        .await;
    let from = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", publisher.port());
    subscriber.sql(&format!("create subscription s connection '{from}' publication p")).await;
    (publisher, subscriber)
}

async fn arrives(subscriber: &Postgres, query: &str, expected: &str) {
    until_true(query, || async { subscriber.sql(query).await == expected }).await;
}

/// A change of the publisher's, with a token.
async fn change(publisher: &Postgres, lock: &str, token: u64, change: &str) {
    let mut client = app(publisher);
    assert_eq!(client.run(&format!("begin; {}", enter(lock, token, OLD))).await, DONE);
    assert_eq!(client.run(&format!("{change}; commit;")).await, DONE);
}

/// Published with the tables, a mark arrives in one transaction with what was written under it: a
/// subscriber that takes over refuses what the publisher would have refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marks_arrive_with_the_data() {
    let (publisher, subscriber) = replicated().await;
    change(&publisher, "docs/1", 33, "update docs set v = 'old' where id = 1").await;
    assert_eq!(app(&publisher).run(&seal("docs/1", 34, NEW, 1)).await, DONE);
    arrives(&subscriber, "select v from docs where id = 1", "old").await;
    arrives(&subscriber, "select token from fence.marks where lock = 'docs/1'", "34").await;
    // It takes over.
    subscriber.sql("drop subscription s").await;
    subscriber.sql("select fence.guard('docs', 'docs/{id}')").await;
    assert_eq!(app(&subscriber).run(&enter("docs/1", 33, OLD)).await, "FE412");
    assert_eq!(app(&subscriber).run("delete from docs;").await, "FE428");
    change(&subscriber, "docs/1", 35, "update docs set v = 'new' where id = 1").await;
    assert_eq!(document(&subscriber).await, "new");
}

/// Its worker has no token: it cannot change rows of tables that are guarded by row, and waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_guarded_by_row_refuses_the_worker() {
    let (publisher, subscriber) = replicated().await;
    arrives(&subscriber, COPIED, "4").await;
    assert_eq!(subscriber.sql("select count(*) from docs").await, "3");
    subscriber.sql("select fence.guard('docs', 'docs/{id}')").await;
    change(&publisher, "docs/1", 33, "update docs set v = 'late' where id = 1").await;
    let failed = "select apply_error_count > 0 from pg_stat_subscription_stats";
    arrives(&subscriber, failed, "t").await;
    assert_eq!(document(&subscriber).await, "first");
    // In one transaction with it.
    assert_eq!(subscriber.sql("select count(*) from fence.marks").await, "0");
    subscriber.sql("select fence.unguard('docs')").await;
    arrives(&subscriber, "select v from docs where id = 1", "late").await;
    arrives(&subscriber, "select token from fence.marks", "33").await;
}

/// The worker runs no statement triggers but those of TRUNCATE: the changes of a table with one
/// lock pass, and its first copy and TRUNCATE are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_with_one_lock_lets_the_worker_s_rows_pass() {
    let (publisher, subscriber) = replicated().await;
    arrives(&subscriber, COPIED, "4").await;
    subscriber.sql("select fence.guard('whole', 'whole')").await;
    change(&publisher, "whole", 5, "insert into whole values (1, 'row')").await;
    arrives(&subscriber, "select v from whole", "row").await;
    assert_eq!(app(&subscriber).run("update whole set v = 'x';").await, "FE428");
    change(&publisher, "whole", 6, "truncate whole").await;
    let failed = "select apply_error_count > 0 from pg_stat_subscription_stats";
    arrives(&subscriber, failed, "t").await;
    assert_eq!(subscriber.sql("select v from whole").await, "row");
}
