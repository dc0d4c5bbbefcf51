//! Installation and checks at the start of the guard, and at each new connection.

use fence_protocol::Code;
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::postgres_server::Postgres;
use fence_tests::servers::Setup;
use fence_tests::wait::until_true;
use fenced_store::stores::postgres::pack;
use fenced_store::stores::postgres::pack::Installation;

#[tokio::test]
async fn a_guard_installs_the_pack_in_an_empty_database() {
    let postgres = Postgres::start().await;
    let setup = Setup::fenced_store(&postgres.url());
    // Both find nothing, and one installs.
    let (one, two) = tokio::join!(setup.start(), setup.start());
    one.guard().put("a", &unsigned(1, "a", lease_id()), "x").await.expect(201);
    two.guard().put("b", &unsigned(1, "b", lease_id()), "x").await.expect(201);
    let version = postgres.sql("SELECT version FROM fence.meta").await;
    assert_eq!(version, pack::VERSION.to_string());
}

#[tokio::test]
async fn a_role_without_rights_is_refused_with_the_command_that_helps() {
    let postgres = Postgres::start().await;
    postgres.sql("CREATE ROLE guard LOGIN").await;
    let url = format!("postgres://guard@{}/postgres", postgres.address());
    let setup = Setup::fenced_store(&url);
    let output = setup.refused().await;
    assert!(output.stderr.contains("postgres install --guard guard"), "{output:?}");
    postgres.sql(&pack::sql()).await;
    let output = setup.refused().await;
    assert!(output.stderr.contains("--guard ROLE"), "{output:?}");
    let installation = Installation { guards: vec!["guard".to_owned()], ..Installation::default() };
    postgres.sql(&installation.sql(true)).await;
    let server = setup.start().await;
    let guard = server.guard();
    let token = unsigned(2, "a", lease_id());
    guard.put("a", &token, "x").await.expect(201);
    guard.fenced_get("a", &token).await.expect(200);
    guard.put("a", &unsigned(1, "a", lease_id()), "x").await.problem(Code::StaleToken);
    guard.0.post("/v1/floor", &serde_json::json!({"floor": 9})).await.expect(200);
    let denied = format!("postgres://guard@{}/postgres", postgres.address());
    let mut client = fence_tests::psql::Psql::start(&denied);
    assert_eq!(client.run("UPDATE fence.marks SET token = 1;").await, "42501");
}

#[tokio::test]
async fn another_version_of_the_pack_is_refused() {
    let postgres = Postgres::start().await;
    postgres.sql(&pack::sql()).await;
    postgres.sql("UPDATE fence.meta SET version = 99").await;
    let output = Setup::fenced_store(&postgres.url()).refused().await;
    assert!(output.stderr.contains("version 99"), "{output:?}");
}

/// A pack that was removed has taken its marks along: a guard that runs does not go on with an
/// empty one, also on connections that stayed open; nor with a restored one, which has the same id.
#[tokio::test]
async fn marks_that_vanish_stop_a_running_guard() {
    let postgres = Postgres::start().await;
    for id in ["gen_random_uuid()", "(SELECT id FROM dump)"] {
        let server = Setup::fenced_store(&postgres.url()).start().await;
        let guard = server.guard();
        let stale = unsigned(33, "a", lease_id());
        guard.put("a", &unsigned(34, "a", lease_id()), "x").await.expect(201);
        postgres.sql("DROP TABLE IF EXISTS dump; CREATE TABLE dump AS TABLE fence.meta").await;
        postgres.sql(&pack::uninstall_sql()).await;
        postgres.sql(&pack::sql()).await;
        postgres.sql(&format!("UPDATE fence.meta SET id = {id}")).await;
        for reply in [guard.put("a", &stale, "late").await, guard.fenced_get("a", &stale).await] {
            let problem = reply.problem(Code::StoreUnavailable);
            assert!(problem.detail.contains("another database"), "{problem:?}");
        }
        until_true("no readiness", || async { guard.0.get("/readyz").await.status == 503 }).await;
        assert_eq!(postgres.sql("SELECT count(*) FROM fence.objects").await, "0");
    }
}

/// Nothing shows that marks were removed: the guard presents those that it remembers again.
#[tokio::test]
async fn marks_that_were_removed_in_place_admit_nothing_lower() {
    let postgres = Postgres::start().await;
    let server = Setup::fenced_store(&postgres.url()).start().await;
    let guard = server.guard();
    let lease = lease_id();
    guard.put("a", &unsigned(34, "a", lease), "x").await.expect(201);
    postgres.sql("TRUNCATE fence.marks, fence.seals, fence.sessions").await;
    let stale = unsigned(33, "a", lease_id());
    guard.fenced_get("a", &stale).await.problem(Code::StaleToken);
    guard.put("a", &stale, "late").await.problem(Code::StaleToken);
    guard.put("a", &unsigned(34, "a", lease_id()), "twin").await.problem(Code::TokenCollision);
    // A read brings the mark back too: another guard could admit what is lower.
    postgres.sql("TRUNCATE fence.marks, fence.seals, fence.sessions").await;
    guard.fenced_get("a", &unsigned(34, "a", lease)).await.expect(200);
    assert_eq!(postgres.sql("SELECT token FROM fence.marks WHERE lock = 'a'").await, "34");
    guard.put("a", &unsigned(34, "a", lease), "y").await.expect(204);
    assert_eq!(guard.fence("a").await.mark.map(|mark| mark.get()), Some(34));
}
