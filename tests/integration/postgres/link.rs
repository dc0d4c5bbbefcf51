//! The connection to PostgreSQL: verified, replaced, never replayed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use fence_tests::postgres_server::Postgres;
use fence_tests::wait::{patience, until};
use postgres_link::{
    ConnectOptions, LinkError, LinkOptions, LinkState, NOTIFICATIONS_MAX, PostgresConnection,
    PostgresLink, PostgresTarget, Verifier,
};
use service_kit::tasks::Tasks;

#[derive(Debug, Default)]
struct Counting(AtomicU32);

#[async_trait]
impl Verifier for Counting {
    async fn verify(&self, _connection: &PostgresConnection) -> Result<(), String> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Limits that a server on a busy machine keeps.
fn patient() -> LinkOptions {
    LinkOptions { connect: unhurried(), reply_timeout: patience(), ..LinkOptions::default() }
}

fn unhurried() -> ConnectOptions {
    ConnectOptions { connect_timeout: patience(), ..ConnectOptions::default() }
}

async fn select(link: &PostgresLink, statement: &str) -> Result<(), LinkError> {
    let run = async |connection: &PostgresConnection| {
        connection.client().simple_query(statement).await.map(drop)
    };
    link.run(run).await
}

#[tokio::test]
async fn a_broken_connection_is_replaced_after_a_verification() {
    let mut server = Postgres::start().await;
    let tasks = Tasks::new();
    let verifier = Arc::new(Counting::default());
    let target: PostgresTarget = server.url().parse().unwrap();
    let link = PostgresLink::start(target, patient(), verifier.clone(), &tasks).await.unwrap();
    select(&link, "SELECT 1").await.unwrap();
    let refused = select(&link, "SELECT 1/0").await.unwrap_err();
    assert!(matches!(refused, LinkError::Server { ref code, .. } if code == "22012"), "{refused}");
    // A FATAL error in reply to a statement proves nothing.
    let ended = "SELECT pg_terminate_backend(pg_backend_pid())";
    let lost = select(&link, ended).await.unwrap_err();
    assert!(matches!(lost, LinkError::Unknown(_)), "{lost}");
    until("another connection", || async { select(&link, "SELECT 1").await.ok() }).await;
    assert_eq!(verifier.0.load(Ordering::Relaxed), 2);
    server.kill();
    until("a link that is down", || async {
        matches!(link.state(), LinkState::Down(_)).then_some(())
    })
    .await;
    let down = select(&link, "SELECT 1").await.unwrap_err();
    assert!(matches!(down, LinkError::Down(_)), "{down}");
    server.start_again().await;
    until("a third connection", || async { select(&link, "SELECT 1").await.ok() }).await;
    tasks.begin_shutdown();
}

#[tokio::test]
async fn a_paused_server_leaves_the_outcome_unknown() {
    let server = Postgres::start().await;
    let tasks = Tasks::new();
    let target: PostgresTarget = server.url().parse().unwrap();
    let options = LinkOptions { reply_timeout: Duration::from_secs(3), ..patient() };
    let verifier = Arc::new(Counting::default());
    let link = PostgresLink::start(target, options, verifier, &tasks).await.unwrap();
    server.pause();
    let lost = select(&link, "SELECT 1").await.unwrap_err();
    assert!(matches!(lost, LinkError::Unknown(_)), "{lost}");
    server.resume();
    until("a new connection", || async { select(&link, "SELECT 1").await.ok() }).await;
    tasks.begin_shutdown();
}

#[tokio::test]
async fn of_several_hosts_the_one_is_used_that_accepts_writes() {
    let primary = Postgres::start().await;
    let replica = Postgres::replica_of(&primary, "replica").await;
    let tasks = Tasks::new();
    let url = format!("postgres://postgres@{},{}/postgres", replica.address(), primary.address());
    let target: PostgresTarget = url.parse().unwrap();
    let connection = target.connect(&unhurried(), &tasks).await.unwrap();
    assert_eq!(connection.address(), primary.address());
    let alone: PostgresTarget = replica.url().parse().unwrap();
    let refused = alone.connect(&unhurried(), &tasks).await.unwrap_err();
    assert!(refused.contains("accepts no writes"), "{refused}");
    replica.promote().await;
    let promoted = alone.connect(&unhurried(), &tasks).await.unwrap();
    assert_eq!(promoted.address(), replica.address());
    tasks.begin_shutdown();
}

/// Every role of the database may send some, as many as it likes.
#[tokio::test]
async fn notifications_that_wait_are_bounded() {
    let server = Postgres::start().await;
    let tasks = Tasks::new();
    let target: PostgresTarget = server.url().parse().unwrap();
    let connection = target.connect(&unhurried(), &tasks).await.unwrap();
    connection.client().batch_execute("LISTEN flooded").await.unwrap();
    let flood = "SELECT count(pg_notify('flooded', at::text)) FROM generate_series(1, 50000) at";
    server.sql(flood).await;
    // They come before the reply to a statement that begins after them.
    connection.client().batch_execute("SELECT 1").await.unwrap();
    let mut notifications = connection.take_notifications().unwrap();
    let waiting = std::iter::from_fn(|| notifications.try_recv().ok()).count();
    assert_eq!(waiting, NOTIFICATIONS_MAX);
    // Later ones come again.
    server.sql("NOTIFY flooded, 'later'").await;
    let later = notifications.recv().await.unwrap();
    assert_eq!(later.payload(), "later");
    tasks.begin_shutdown();
}
