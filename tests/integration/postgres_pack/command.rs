//! `fenced-store postgres`.

use fence_tests::process::run;
use fence_tests::psql::DONE;

use super::*;

/// Runs the command at a server.
pub(super) async fn postgres(server: &Postgres, action: &str) -> fence_tests::process::Output {
    let text = format!("--unsigned postgres {action} --database {}", server.url());
    run("fenced-store", &text.split_whitespace().collect::<Vec<_>>()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn installed_again_shown_and_removed() {
    let server = Postgres::start().await;
    server.sql("create table docs (id int, v text); create role app login").await;
    server.sql("grant all on docs to app").await;
    server.sql("create role auditor login noinherit in role pg_read_all_data").await;
    let install = "install --table docs --lock docs/{id} --client app";
    let shown = postgres(&server, &format!("{install} --dry-run")).await;
    assert!(shown.stdout.contains("select fence.guard('docs', 'docs/{id}', 'default');"));
    assert_eq!(server.sql("select to_regnamespace('fence')").await, "");
    for _ in 0..2 {
        let ended = postgres(&server, install).await;
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    }
    assert_eq!(app(&server).run("insert into docs values (1, 'x');").await, "FE428");
    assert_eq!(app(&server).run(&enter("docs/1", 7, OLD)).await, DONE);
    let status = postgres(&server, "status").await;
    assert_eq!(status.code, 0, "{}", status.stderr);
    for line in [
        "version: 3",
        "highest mark: 7",
        "table: public.docs by default docs/{id}",
        "reads keys: auditor",
    ] {
        assert!(status.stdout.contains(line), "{}", status.stdout);
    }
    assert_eq!(status.stdout.matches("reads keys").count(), 1, "{}", status.stdout);
    // Marks survive an installation.
    assert_eq!(postgres(&server, install).await.code, 0);
    assert_eq!(app(&server).run(&enter("docs/1", 6, OLD)).await, "FE412");
    server.sql("alter table docs disable trigger fence_change").await;
    assert_eq!(postgres(&server, "status").await.code, 1);
    let ended = postgres(&server, "uninstall").await;
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(app(&server).run("insert into docs values (1, 'x');").await, DONE);
    assert_eq!(server.sql("select to_regnamespace('fence')").await, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_installed_is_said() {
    let server = Postgres::start().await;
    server.sql("create role weak login; grant create on database postgres to weak").await;
    let refused = |ended: fence_tests::process::Output, words: &str| {
        assert_eq!(ended.code, 1, "{}", ended.stdout);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    };
    let weak = server.url().replace("postgres@", "weak@");
    let args = ["postgres", "install", "--database", weak.as_str()];
    refused(run("fenced-store", &args).await, "pg_signal_backend");
    refused(postgres(&server, "install --table none --lock x").await, "42P01");
    assert_eq!(postgres(&server, "install --table none").await.code, 64);
    assert_eq!(server.sql("select to_regnamespace('fence')").await, "");
    server.sql("create schema fence authorization weak").await;
    refused(postgres(&server, "install").await, "belongs to another role");
    server.sql("drop schema fence").await;
    assert_eq!(postgres(&server, "install").await.code, 0);
    server.sql("update fence.meta set version = 99").await;
    refused(postgres(&server, "install").await, "55000");
    assert_eq!(server.sql("select version from fence.meta").await, "99");
}
