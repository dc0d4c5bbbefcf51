//! Ways to change a table that later versions have: each needs the token of its lock.

use fence_tests::psql::DONE;
use fence_tests::wait::until_true;

use super::*;

/// A way to change a table.
struct Form {
    /// The version that has it.
    since: u32,
    change: &'static str,
    /// Locks of what it changes.
    locks: &'static [&'static str],
}

const fn form(since: u32, change: &'static str, locks: &'static [&'static str]) -> Form {
    Form { since, change, locks }
}

const FORMS: [Form; 13] = [
    form(
        17,
        "merge into docs using (values (2)) s (id) on s.id = docs.id
           when not matched by source then delete;",
        &["docs/1", "docs/3"],
    ),
    form(
        17,
        "merge into docs using (values (2)) s (id) on s.id = docs.id
           when matched then update set v = 'x' returning merge_action(), docs.*;",
        &["docs/2"],
    ),
    form(17, "copy docs from stdin with (on_error ignore);\n9\tx\nnone\ty\n\\.", &["docs/9"]),
    form(18, "update docs set v = 'x' where id = 1 returning old.v, new.v;", &["docs/1"]),
    form(18, "delete from docs where id = 3 returning old.*, new.*;", &["docs/3"]),
    form(
        18,
        "insert into docs values (1, 'x') on conflict (id) do update set v = 'x'
           returning old.v, new.v;",
        &["docs/1"],
    ),
    form(18, "insert into rooms values (2, '[5,6)', '[2026-01-01,2026-02-01)');", &["rooms/2"]),
    form(18, "update rooms set during = '[2026-01-01,2026-03-01)' where id = 1;", &["rooms/1"]),
    form(18, "update rooms set id = 3 where area = '[1,2)';", &["rooms/1", "rooms/3"]),
    form(18, "insert into stays values (1, '[1,2)', '[2026-01-05,2026-01-06)');", &["stays/1"]),
    form(18, "insert into notes values (2, -7);", &["notes/2"]),
    form(18, "delete from docs where id = 1;", &["docs/1"]),
    form(18, "insert into sums values (1, 2);", &["sums/1"]),
];

/// Tables whose kinds of keys, constraints and columns 18 has.
const TABLES_OF_18: &str = "
    create table rooms (id int, area int4range, during daterange,
      primary key (area, during without overlaps));
    create table stays (id int, area int4range, during daterange,
      foreign key (area, period during) references rooms (area, period during));
    create table notes (id int, doc int check (doc > 0) not enforced
      references docs (id) on delete cascade not enforced);
    create table sums (id int, one int, twice int generated always as (one * 2));
    insert into rooms values (1, '[1,2)', '[2026-01-01,2026-02-01)');
    insert into notes values (1, 1);
    grant all on rooms, stays, notes, sums to app;
    select fence.guard('rooms', 'rooms/{id}'), fence.guard('stays', 'stays/{id}'),
      fence.guard('notes', 'notes/{id}'), fence.guard('sums', 'sums/{id}')";

async fn content(server: &Postgres, version: u32) -> String {
    let tables: &[&str] =
        if version >= 18 { &["docs", "rooms", "stays", "notes", "sums"] } else { &["docs"] };
    let mut text = String::new();
    for table in tables {
        text += &server.sql(&format!("select * from {table} order by 1")).await;
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_form_of_a_change_needs_the_newest_token() {
    for (engine, version) in [("postgres-17", 17), ("postgres-18", 18)] {
        let server = Postgres::newer(engine, &[]).await;
        install_on(&server).await;
        if version >= 18 {
            server.sql(TABLES_OF_18).await;
        }
        let before = content(&server, version).await;
        for form in FORMS.iter().filter(|form| form.since <= version) {
            refuse_all_but_the_newest(&server, form).await;
            assert_eq!(content(&server, version).await, before, "{}", form.change);
        }
    }
}

/// Runs a form without a token, with others', and with an older and the newest one.
async fn refuse_all_but_the_newest(server: &Postgres, form: &Form) {
    let Form { change, locks, .. } = form;
    let mut client = app(server);
    // psql has no SQLSTATE of a COPY: the content shows it.
    let is_copy = change.starts_with("copy");
    let begins = |token: u64, locks: &[&str]| {
        let entered: String = locks.iter().map(|lock| enter(lock, token, OLD)).collect();
        format!("begin; {entered}")
    };
    for locks in [&["docs/77"][..], &locks[1..]] {
        assert_eq!(client.run(&begins(5, locks)).await, DONE);
        let code = client.run(change).await;
        assert!(is_copy || code == "FE428", "{code}: {change}");
        // What it wrote, it wrote in this transaction.
        assert_eq!(client.run("commit;").await, DONE);
    }
    for lock in *locks {
        assert_eq!(client.run(&seal(lock, 6, OLD, 1)).await, DONE);
    }
    assert_eq!(client.run(&begins(5, &locks[..1])).await, "FE412", "{change}");
    // psql would read the data of a COPY that fails at once as statements.
    if !is_copy {
        assert_eq!(client.run(change).await, "25P02", "{change}");
    }
    assert_eq!(client.run("commit;").await, DONE);
    assert_eq!(client.run(&begins(6, locks)).await, DONE);
    assert_eq!(client.run(change).await, DONE, "{change}");
    assert_eq!(client.run("rollback;").await, DONE);
}

/// No trigger sees its value: every change would be refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_virtual_generated_column_names_no_lock() {
    let server = Postgres::newer("postgres-18", &[]).await;
    install_on(&server).await;
    server
        .sql("create table t (id int, twice int generated always as (id * 2)); grant all on t to app")
        .await;
    let refused = server.try_sql("select fence.guard('t', 't/{twice}')").await;
    assert!(refused.stderr.contains("column twice is a virtual generated one"), "{refused:?}");
    assert!(refused.stderr.contains("Name a stored column"), "{refused:?}");
    server.sql("alter table t drop twice, add twice int generated always as (id * 2) stored").await;
    server.sql("select fence.guard('t', 't/{twice}')").await;
    let mut client = app(&server);
    assert_eq!(client.run("insert into t values (1);").await, "FE428");
    assert_eq!(client.run(&format!("begin; {}", enter("t/2", 5, OLD))).await, DONE);
    assert_eq!(client.run("insert into t values (1); commit;").await, DONE);
    // The server lets it become one.
    server.sql("alter table t drop twice, add twice int generated always as (id * 2)").await;
    let gap = server.sql("select * from fence.gaps()").await;
    assert!(gap.contains("column twice is a virtual generated one"), "{gap}");
    assert_eq!(client.run("delete from t;").await, "FE400");
}

/// A client's role can do neither; attached again, the partition is guarded again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_is_guarded_again_once_it_is_attached() {
    for server in [Postgres::start().await, Postgres::newer("postgres-18", &[]).await] {
        install_on(&server).await;
        server
            .sql(
                "create table slices (id int, v text) partition by range (id);
                 create table slices1 partition of slices for values from (0) to (10);
                 create table slices2 partition of slices for values from (10) to (20);
                 insert into slices values (1, 'first'); grant all on slices, slices1 to app;
                 select fence.guard('slices', 'slices/{id}')",
            )
            .await;
        let mut client = app(&server);
        for change in ["detach partition slices1", "detach partition slices1 concurrently"] {
            let detach = format!("alter table slices {change};");
            assert_eq!(client.run(&detach).await, "42501");
            server.sql(&detach).await;
            // What is no part of a guarded table is not guarded.
            assert_eq!(client.run("update slices1 set v = v;").await, DONE);
            server
                .sql("alter table slices attach partition slices1 for values from (0) to (10)")
                .await;
            assert_eq!(server.sql("select * from fence.gaps()").await, "");
            for write in [
                "update slices1 set v = 'x';",
                "insert into slices values (2, 'x');",
                "update slices set id = 11;",
                "delete from slices;",
                "truncate slices1;",
            ] {
                assert_eq!(client.run(write).await, "FE428", "{change}: {write}");
            }
        }
        assert_eq!(client.run(&format!("begin; {}", enter("slices/1", 5, OLD))).await, DONE);
        assert_eq!(client.run(&enter("slices/11", 5, OLD)).await, DONE);
        assert_eq!(client.run("update slices set id = 11; commit;").await, DONE);
        assert_eq!(server.sql("select id, v from slices2").await, "11|first");
    }
}

/// The publisher's generated column may name the lock of the subscriber's row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_generated_column_names_the_lock_at_the_subscriber() {
    let server = Postgres::newer("postgres-18", &[("wal_level", "logical")]).await;
    install_on(&server).await;
    server
        .sql(
            "create table t (id int primary key, part int); grant all on t to app;
             select fence.guard('t', 't/{part}')",
        )
        .await;
    let publisher = server.create("publisher").await;
    publisher
        .sql(
            "create table t (id int primary key, part int generated always as (id * 10) stored);
             create publication p for table t with (publish_generated_columns = stored)",
        )
        .await;
    publisher.sql("select pg_create_logical_replication_slot('s', 'pgoutput')").await;
    let from = format!("host=127.0.0.1 port={} user=postgres dbname=publisher", server.port());
    let with = "create_slot = false, slot_name = 's', copy_data = false";
    server
        .sql(&format!("create subscription s connection '{from}' publication p with ({with})"))
        .await;
    publisher.sql("insert into t values (1)").await;
    let failed = "select apply_error_count > 0 from pg_stat_subscription_stats";
    until_true("the worker to fail", || async { server.sql(failed).await == "t" }).await;
    assert_eq!(server.sql("select count(*) from t").await, "0");
    server.sql("select fence.unguard('t')").await;
    until_true("the row", || async { server.sql("select part from t").await == "10" }).await;
}
