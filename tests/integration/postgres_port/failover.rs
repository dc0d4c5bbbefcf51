//! Failovers: the marks that the next primary has, and sessions that must be its own.

use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::postgres_server::Postgres;
use fence_tests::psql::{DONE, Psql};
use fence_tests::servers::Setup;
use fence_tests::wait::{soon, until};

use serde_json::json;

use super::{database, port, setup, setup_at, shop};

const MARK: &str = "SELECT token FROM fence.marks WHERE lock = 'shop'";
const FLOOR: &str = "SELECT floor FROM fence.meta";

/// A guard that follows the primary among two servers.
fn setup_of(one: &Postgres, two: &Postgres) -> Setup {
    let url = format!("postgres://guard@{},{}/shop", one.address(), two.address());
    setup_at(&url).args(&["--postgres-writer", "writer"])
}

/// Waits until the replica has everything.
async fn caught_up(primary: &Postgres, replica: &Postgres) {
    let written = primary.sql("SELECT pg_current_wal_lsn()").await;
    let sql = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
    until("the replica to catch up", || async { (replica.sql(&sql).await == "t").then_some(()) })
        .await;
}

#[tokio::test]
async fn marks_that_an_asynchronous_failover_lost_are_replaced_by_a_floor() {
    let mut primary = database().await;
    let mut replica = Postgres::replica_of(&primary, "one").await;
    let port = port(&setup_of(&primary, &replica)).await;
    port.log_in(30).await.unwrap().query("INSERT INTO journal VALUES (30, 1)").await.unwrap();
    caught_up(&primary, &replica).await;
    replica.stop().await;
    let mut client = port.log_in(50).await.unwrap();
    client.query("INSERT INTO journal VALUES (50, 1)").await.unwrap();
    primary.kill();
    replica.start_again().await;
    replica.promote().await;
    assert_eq!(shop(&replica, "guard", MARK).await, "30");
    // Another holder of the past, whose mark is lost, and the very one of before.
    let refused = port.log_in(40).await.unwrap_err();
    assert_eq!(refused.code(), "FE412", "{refused:?}");
    assert!(refused.field('D').contains("mark 50"), "{refused:?}");
    assert!(client.query("SELECT 1").await.is_err());
    let mut client = port.log_in(50).await.unwrap();
    assert_eq!(client.query("SELECT max(token) FROM journal").await.unwrap(), ["30"]);
    assert_eq!(shop(&replica, "guard", FLOOR).await, "50");
    // The next failure is not a loss.
    replica.restart().await;
    port.log_in(51).await.unwrap();
    assert_eq!(shop(&replica, "guard", FLOOR).await, "50");
}

/// On a quorum tokens rise lock by lock, so that the highest that was admitted here proves nothing:
/// the lock server states the floor.
#[tokio::test]
async fn the_lock_server_states_the_floor() {
    let before = database().await;
    let after = database().await;
    let proxy = FaultProxy::before(&before.address()).await;
    let locks = Setup::lock_server("memory:").start().await;
    let way = FaultProxy::before(&locks.address()).await;
    let issued = locks.locks().acquire("x", json!({"min_token": 90})).await.lease().token;
    let setup = setup_at(&format!("postgres://guard@{}/shop", proxy.address()));
    let setup = setup.args(&["--postgres-writer", "writer", "--report-to"]);
    let port = port(&setup.arg(format!("http://{}", way.address()))).await;
    port.log_in(5).await.unwrap();
    // Without its word nothing is admitted.
    way.set(Fault::Refuse);
    proxy.redirect(&after.address());
    let refused = port.log_in(issued.get()).await.unwrap_err();
    assert!(refused.field('M').contains("no lock server states the first token"), "{refused:?}");
    way.set(Fault::None);
    assert_eq!(port.log_in(issued.get()).await.unwrap_err().code(), "FE412");
    let next = locks.locks().acquire("y", json!({})).await.lease().token;
    port.log_in(next.get()).await.unwrap();
}

#[tokio::test]
async fn marks_survive_a_synchronous_failover() {
    let mut primary = database().await;
    let replica = Postgres::replica_of(&primary, "one").await;
    primary.sql("ALTER SYSTEM SET synchronous_standby_names = 'one'").await;
    primary.sql("SELECT pg_reload_conf()").await;
    let shown = || async {
        let sql = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'";
        (primary.sql(sql).await == "1").then_some(())
    };
    until("the replica to be a synchronous one", shown).await;
    // Commits wait once the checkpointer has read the setting, which it does before this.
    primary.sql("CHECKPOINT").await;
    let port = port(&setup_of(&primary, &replica)).await;
    let mut client = port.log_in(50).await.unwrap();
    client.query("INSERT INTO journal VALUES (50, 1)").await.unwrap();
    primary.kill();
    replica.promote().await;
    assert_eq!(port.log_in(40).await.unwrap_err().code(), "FE412");
    let mut client = port.log_in(50).await.unwrap();
    assert_eq!(client.query("SELECT token FROM journal").await.unwrap(), ["50"]);
    assert_eq!(shop(&replica, "guard", FLOOR).await, "0");
    let mut newer = port.log_in(51).await.unwrap();
    assert_eq!(client.query("SELECT 1").await.unwrap_err().code(), "FE412");
    assert_eq!(newer.query("SELECT 1").await.unwrap(), ["1"]);
}

#[tokio::test]
async fn a_floor_that_an_operator_states_holds() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut client = port.log_in(5).await.unwrap();
    let floor = serde_json::json!({"floor": 9});
    assert_eq!(port.server.guard().0.post("/v1/floor", &floor).await.status, 200);
    assert_eq!(client.query("SELECT 1").await.unwrap_err().code(), "FE412");
    assert_eq!(port.log_in(8).await.unwrap_err().code(), "FE412");
    port.log_in(9).await.unwrap();
    drop(port);
    let port = super::port(&setup(&postgres).args(&["--floor", "12"])).await;
    assert_eq!(port.log_in(11).await.unwrap_err().code(), "FE412");
    port.log_in(12).await.unwrap();
}

/// A floor ends lower sessions before it commits.
#[tokio::test]
async fn a_session_that_a_floor_ended_gets_its_error() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    // A busy machine takes longer than the port's two seconds to show that it waits.
    let patient = "ALTER FUNCTION fence.await_seal(text, text) SET lock_timeout = '25s'";
    shop(&postgres, "postgres", patient).await;
    let mut client = port.log_in(5).await.unwrap();
    let mut operator = Psql::start(&format!("postgres://guard@{}/shop", postgres.address()));
    assert_eq!(operator.run("BEGIN; SELECT fence.set_floor(9);").await, DONE);
    let ended = tokio::spawn(async move { client.rows().await.unwrap_err() });
    let waits = "SELECT count(*) FROM pg_stat_activity \
                 WHERE query LIKE '%fence.await_seal%' AND wait_event_type = 'Lock'";
    until("the port to wait", || async {
        (shop(&postgres, "postgres", waits).await == "1").then_some(())
    })
    .await;
    assert_eq!(operator.run("COMMIT;").await, DONE);
    assert_eq!(soon("the error", ended).await.unwrap().code(), "FE412");
}

/// No connection shows it: the guard compares with what it remembers.
#[tokio::test]
async fn marks_that_were_removed_in_place_admit_nothing_lower() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    drop(port.log_in(5).await.unwrap());
    let tables = "TRUNCATE fence.marks, fence.seals, fence.sessions";
    shop(&postgres, "guard", tables).await;
    let refused = port.log_in(4).await.unwrap_err();
    assert_eq!(refused.code(), "FE412", "{refused:?}");
    port.log_in(5).await.unwrap();
}

#[tokio::test]
async fn a_session_is_registered_at_its_own_server() {
    let before = database().await;
    let after = database().await;
    // An address that is moved while the former server runs, and with it idle connections.
    let proxy = FaultProxy::before(&before.address()).await;
    let setup = setup_at(&format!("postgres://guard@{}/shop", proxy.address()));
    let port = port(&setup.args(&["--postgres-writer", "writer"])).await;
    port.log_in(5).await.unwrap();
    proxy.redirect(&after.address());
    let mut client = port.log_in(6).await.unwrap();
    let pid = client.query("SELECT pg_backend_pid()").await.unwrap().remove(0);
    let registered = "SELECT pid FROM fence.sessions WHERE token = 6 AND lock = 'shop'";
    assert_eq!(shop(&after, "guard", registered).await, pid);
    assert_eq!(shop(&before, "guard", registered).await, "");
    assert_eq!(shop(&before, "guard", MARK).await, "5");
    // The new one is another database, which has lost every mark of this guard.
    assert_eq!(shop(&after, "guard", FLOOR).await, "5");
    port.log_in(7).await.unwrap();
    assert_eq!(client.query("SELECT 1").await.unwrap_err().code(), "FE412");
}

/// Two primaries for a while: a seal is made at the one that new connections reach.
#[tokio::test]
async fn a_seal_is_made_at_the_server_of_new_sessions() {
    let before = database().await;
    let after = database().await;
    let proxy = FaultProxy::before(&before.address()).await;
    let setup = setup_at(&format!("postgres://guard@{}/shop", proxy.address()));
    let port = port(&setup.args(&["--postgres-writer", "writer"])).await;
    let guard = port.server.guard();
    guard.sealed("shop", &unsigned(5, "shop", lease_id())).await;
    proxy.redirect(&after.address());
    guard.sealed("shop", &unsigned(6, "shop", lease_id())).await;
    assert_eq!(shop(&after, "guard", MARK).await, "6");
    assert_eq!(shop(&before, "guard", MARK).await, "5");
}
