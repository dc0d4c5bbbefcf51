//! Guarded tables: every way to change one needs its lock's token.

use fence_tests::psql::DONE;

use super::*;

/// Tables of each kind: by row, whole, partitioned by both scopes.
async fn tables() -> Postgres {
    tables_of(Postgres::start().await).await
}

async fn tables_of(server: Postgres) -> Postgres {
    install_on(&server).await;
    server
        .sql(
            "create table lines (id int primary key, doc int references docs (id)
               on update cascade on delete cascade);
             create table whole (id int primary key, v text);
             create table parts (id int, v text) partition by range (id);
             create table parts1 partition of parts for values from (0) to (10);
             create table slices (id int, v text) partition by range (id);
             create table slices1 partition of slices for values from (0) to (10);
             create table slices2 partition of slices for values from (10) to (20);
             insert into lines values (1, 1); insert into whole values (1, 'first');
             insert into parts values (1, 'first'); insert into slices values (1, 'first');
             grant all on lines, whole, parts, parts1, slices, slices1, slices2 to app;
             select fence.guard('lines', 'lines'), fence.guard('whole', 'whole'),
               fence.guard('parts', 'parts'), fence.guard('slices', 'slices/{id}')",
        )
        .await;
    server
}

const CHANGES: [&str; 24] = [
    "insert into docs values (9, 'x');",
    "update docs set v = 'x' where id = 1;",
    "update docs set id = 9 where id = 2;",
    "delete from docs where id = 2;",
    "truncate docs cascade;",
    "insert into docs values (1, 'x') on conflict (id) do update set v = 'x';",
    "merge into docs using (values (1)) s (id) on s.id = docs.id when matched then delete;",
    "copy docs from stdin;\n9\tx\n\\.",
    "with gone as (delete from docs where id = 2 returning id) select * from gone;",
    "insert into lines values (2, 2);",
    "delete from lines;",
    "truncate lines;",
    "update whole set v = 'x' where false;",
    "truncate whole;",
    "copy whole from stdin;\n9\tx\n\\.",
    "insert into parts values (2, 'x');",
    "insert into parts1 values (2, 'x');",
    "update parts1 set v = 'x';",
    "truncate parts;",
    "truncate parts1;",
    "insert into slices1 values (2, 'x');",
    "update slices set id = 11 where id = 1;",
    "delete from slices1;",
    "truncate slices1;",
];

/// psql has no SQLSTATE of a COPY: the content shows that it was refused.
async fn assert_refused(client: &mut Psql, change: &str) {
    let code = client.run(change).await;
    assert!(code == "FE428" || change.starts_with("copy"), "{code}: {change}");
}

async fn content(server: &Postgres) -> String {
    let tables = ["docs", "lines", "whole", "parts", "slices"];
    let mut text = String::new();
    for table in tables {
        text += &server.sql(&format!("select * from {table} order by 1")).await;
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_without_the_token() {
    let server = tables().await;
    let before = content(&server).await;
    let mut client = app(&server);
    for change in CHANGES {
        assert_refused(&mut client, change).await;
        // A token of another lock is none.
        let entered = format!("begin; {}", enter("docs/77", 1, OLD));
        assert_eq!(client.run(&entered).await, DONE);
        assert_refused(&mut client, change).await;
        assert_eq!(client.run("rollback;").await, DONE);
    }
    // The owner as well, where replication's role would run no usual trigger.
    let mut owner = Psql::start(&server.url());
    assert_eq!(owner.run("set session_replication_role = replica;").await, DONE);
    for change in CHANGES {
        assert_refused(&mut owner, change).await;
    }
    assert_eq!(content(&server).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_with_the_tokens() {
    let server = tables().await;
    let mut client = app(&server);
    let locks = ["docs/1", "docs/2", "docs/9", "lines", "whole", "parts", "slices/1", "slices/2"];
    let entered: String = locks.iter().map(|lock| enter(lock, 5, OLD)).collect();
    for change in CHANGES {
        assert_eq!(
            client.run(&format!("begin; {entered} {}", enter("slices/11", 5, OLD))).await,
            DONE
        );
        let is_refused = ["truncate docs", "truncate slices"].iter().any(|w| change.starts_with(w));
        let expected = if is_refused { "FE428" } else { DONE };
        assert_eq!(client.run(change).await, expected, "{change}");
        assert_eq!(client.run("rollback;").await, DONE);
    }
}

/// A changed key needs both locks, and a foreign key's action the other table's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_moves_needs_both_locks() {
    let server = tables().await;
    let mut client = app(&server);
    for (locks, expected) in [
        (&["docs/1", "lines"][..], "FE428"),
        (&["docs/9", "lines"], "FE428"),
        (&["docs/1", "docs/9"], "FE428"),
        (&["docs/1", "docs/9", "lines"], DONE),
    ] {
        let entered: String = locks.iter().map(|lock| enter(lock, 5, OLD)).collect();
        assert_eq!(client.run(&format!("begin; {entered}")).await, DONE);
        assert_eq!(client.run("update docs set id = 9 where id = 1;").await, expected, "{locks:?}");
        assert_eq!(client.run("rollback;").await, DONE);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_is_no_part_of_a_name_is_refused() {
    let server = installed().await;
    server.sql("create table names (id text); grant all on names to app").await;
    server.sql("select fence.guard('names', 'names/{id}')").await;
    let mut client = app(&server);
    for value in ["null", "''", "'a/b'", "'..'", "'ä'", "'a b'", "repeat('x', 300)"] {
        let insert = format!("insert into names values ({value});");
        assert!(["FE400", "FE428"].contains(&client.run(&insert).await.as_str()), "{value}");
    }
    for bad in ["'docs', 'docs/{none}'", "'docs', '/x'", "'pg_locks', 'x'", "'docs', 'a{'"] {
        let ended = server.try_sql(&format!("select fence.guard({bad})")).await;
        assert_ne!(ended.code, 0, "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_partition_is_a_gap_until_its_table_is_guarded_again() {
    let server = tables().await;
    assert_eq!(server.sql("select * from fence.gaps()").await, "");
    server.sql("create table parts2 partition of parts for values from (10) to (20)").await;
    assert_eq!(server.sql("select * from fence.gaps()").await, "parts2|fence_truncate");
    server.sql("select fence.guard('parts', 'parts')").await;
    assert_eq!(server.sql("select * from fence.gaps()").await, "");
    server.sql("alter table whole disable trigger fence_change").await;
    assert_eq!(server.sql("select * from fence.gaps()").await, "whole|fence_change");
}

/// A dump has the marks; an older one is below the tokens issued since, until a floor is set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_dump_keeps_the_marks() {
    let server = tables_of(Postgres::of_debian().await).await;
    assert_eq!(app(&server).run(&enter("docs/1", 40, OLD)).await, DONE);
    let folder = tempfile::TempDir::new().unwrap();
    let file = |format: &str| folder.path().join(format).display().to_string();
    for format in ["plain", "custom"] {
        run_tool("pg_dump", &["-F", format, "-f", &file(format), "-d", &server.url()]).await;
    }
    // Issued and used after the dump.
    assert_eq!(app(&server).run(&enter("docs/1", 41, NEW)).await, DONE);
    for (format, tool, flag) in [("plain", "psql", "-f"), ("custom", "pg_restore", "-e")] {
        server.sql(&format!("create database {format}")).await;
        let url = format!("postgres://postgres@{}/{format}", server.address());
        run_tool(tool, &["-d", &url, flag, &file(format)]).await;
        let mut owner = Psql::start(&url);
        assert_eq!(owner.run("select 1 / (count(*) = 0)::int from fence.gaps();").await, DONE);
        let mut old = Psql::start(&url.replace("postgres@", "app@"));
        assert_eq!(old.run(&enter("docs/1", 39, OLD)).await, "FE412");
        assert_eq!(old.run("update docs set v = 'x';").await, "FE428");
        assert_eq!(old.run(&enter("docs/1", 40, OLD)).await, DONE);
        assert_eq!(owner.run("select fence.set_floor(42);").await, DONE);
        assert_eq!(old.run(&enter("docs/1", 40, OLD)).await, "FE412");
        assert_eq!(old.run(&enter("docs/1", 41, NEW)).await, "FE412");
        assert_eq!(old.run(&enter("docs/1", 42, NEW)).await, DONE);
    }
}

async fn run_tool(name: &str, args: &[&str]) {
    let mut tool = fence_tests::process::command(name);
    tool.args(args);
    let ended = fence_tests::process::Process::spawn(name, tool).ended().await;
    assert_eq!(ended.code, 0, "{name}: {}", ended.stderr);
}

/// A table that is changed through another one runs none of its own statement triggers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guarded_table_that_becomes_a_part_is_a_gap() {
    let server = tables().await;
    server.sql("create table root (id int, v text) partition by range (id)").await;
    server.sql("alter table whole drop constraint whole_pkey").await;
    server.sql("alter table root attach partition whole for values from (0) to (10)").await;
    let gap = server.sql("select * from fence.gaps()").await;
    assert_eq!(gap, "whole|a trigger for changes through public.root");
    assert_ne!(server.try_sql("select fence.guard('whole', 'whole')").await.code, 0);
}

/// The client's settings write some types: a lock's name would be its choice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn types_that_settings_write_name_no_lock() {
    let server = installed().await;
    server.sql("create domain code as text; create domain codes as code; create type kind as enum ('a')").await;
    server.sql("create domain four as char(4); create domain padded as four").await;
    for (kind, is_taken) in [
        ("timestamptz", false),
        ("float8", false),
        ("interval", false),
        ("money", false),
        ("bytea", false),
        ("char(4)", false),
        ("padded", false),
        ("int[]", false),
        ("bigint", true),
        ("uuid", true),
        ("varchar(9)", true),
        ("code", true),
        ("codes", true),
        ("kind", true),
        ("date", true),
    ] {
        server.sql(&format!("create table t (id {kind})")).await;
        let ended = server.try_sql("select fence.guard('t', 't/{id}')").await;
        assert_eq!(ended.code == 0, is_taken, "{kind}: {}", ended.stderr);
        assert!(is_taken || ended.stderr.contains("varchar, not char"), "{}", ended.stderr);
        server.sql("drop table t; delete from fence.guarded where relation::text !~ 'docs'").await;
    }
}

/// A column may change after its table was guarded: `status` shows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_that_names_no_lock_any_more_is_a_gap() {
    let server = installed().await;
    server.sql("create table t (id varchar(8), v text); grant all on t to app").await;
    server.sql("select fence.guard('t', 't/{id}'), fence.guard('docs', 'docs/{id}')").await;
    for (change, flaw) in [
        ("alter table t alter id type char(4)", "column id has type char(n)"),
        ("alter table t alter id type timestamptz using now()", "a type that names no lock"),
        ("alter table t rename id to other", "table public.t has no column id"),
        ("alter table t drop other", "table public.t has no column id"),
    ] {
        server.sql(change).await;
        let gap = server.sql("select * from fence.gaps()").await;
        assert!(gap.starts_with("t|a column for its lock (") && gap.contains(flaw), "{gap}");
        let mut client = app(&server);
        assert_eq!(client.run(&format!("begin; {}", enter("t/ab", 1, OLD))).await, DONE);
        let code = client.run("insert into t (v) values ('x');").await;
        assert!(["FE400", "FE428"].contains(&code.as_str()), "{change}: {code}");
    }
    server.sql("alter table t add id varchar(8); select fence.guard('t', 't/{id}')").await;
    assert_eq!(server.sql("select * from fence.gaps()").await, "");
}
