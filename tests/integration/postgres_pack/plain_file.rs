//! The file for those who have psql alone.

use fence_tests::process::{Output, Process, command};
use fence_tests::psql::DONE;

use super::*;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/deploy/postgres/fence-pack.sql");

#[test]
fn the_file_is_the_pack() {
    let made = pack::plain_file();
    if std::env::var("FENCE_REGENERATE").is_ok_and(|value| value == "1") {
        std::fs::write(FILE, made).unwrap();
        return;
    }
    assert!(
        std::fs::read_to_string(FILE).is_ok_and(|written| written == made),
        "run FENCE_REGENERATE=1 cargo test -p fence-tests -- plain_file"
    );
}

async fn run_file(server: &Postgres, variables: &[&str]) -> Output {
    let mut psql = command("psql");
    psql.args(["-X", "-q", "-d"]).arg(server.url());
    psql.args(variables.iter().flat_map(|variable| ["-v", variable])).args(["-f", FILE]);
    Process::spawn("psql", psql).ended().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn psql_installs_it_with_a_table_and_a_client() {
    let server = Postgres::start().await;
    server.sql("create table \"My docs\" (id int, v text); create role app login").await;
    server.sql("grant all on \"My docs\" to app").await;
    let variables = ["client=app", "table=\"My docs\"", "lock=docs/{id}"];
    for _ in 0..2 {
        let ended = run_file(&server, &variables).await;
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    }
    let mut client = app(&server);
    let insert = "insert into \"My docs\" values (1, 'x');";
    assert_eq!(client.run(insert).await, "FE428");
    assert_eq!(client.run(&format!("begin; {}", enter("docs/1", 33, OLD))).await, DONE);
    assert_eq!(client.run(&format!("{insert} commit;")).await, DONE);
    assert_eq!(client.run(&seal("docs/1", 34, NEW, 1)).await, DONE);
    assert_eq!(client.run(&enter("docs/1", 33, OLD)).await, "FE412");
    // The command and the file install the same.
    assert_eq!(run_file(&server, &[]).await.code, 0);
    assert_eq!(server.sql("select lock from fence.guarded").await, "docs/{id}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_key_clients_need_a_signature() {
    let server = Postgres::start().await;
    server.sql("create role app login").await;
    let key = format!("key={}", "ab".repeat(32));
    let ended = run_file(&server, &["client=app", "kid=k1", &key]).await;
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    assert_eq!(app(&server).run(&enter("docs/1", 33, OLD)).await, "42501");
    assert_eq!(app(&server).run("select fence.enter('33');").await, "FE400");
    // Without the key, which the database has, clients still need a signature.
    assert_eq!(run_file(&server, &["client=app"]).await.code, 0);
    assert_eq!(app(&server).run(&enter("docs/1", 33, OLD)).await, "42501");
    let clients = vec!["app".to_owned()];
    let unsigned = pack::Installation { clients, ..Default::default() }.sql(true);
    let refused = server.try_sql(&unsigned).await;
    assert!(refused.stderr.contains("verifies signatures"), "{}", refused.stderr);
    let failed = run_file(&server, &["table=none", "lock=x"]).await;
    assert_eq!(failed.code, 3, "{}", failed.stderr);
}
