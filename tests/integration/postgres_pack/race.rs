//! COMMIT racing the seal: it is before the seal, or nothing.

use fence_tests::postgres_client::PostgresClient;
use fence_tests::postgres_journal::{CommitRace, TABLES, append};

use super::*;

/// Rounds; `FENCE_LONG=1` for many.
pub(crate) fn rounds() -> u64 {
    if std::env::var_os("FENCE_LONG").is_some() { 10_000 } else { 300 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_races_the_seal_is_before_it_or_nothing() {
    let server = installed().await;
    server.sql(TABLES).await;
    server.sql("grant all on writes, journal_length to app").await;
    server.sql("select fence.guard('writes', 'w'), fence.guard('journal_length', 'w')").await;
    let mut race = CommitRace::default();
    let mut new = session(&server.address()).await;
    for round in 0..rounds() {
        let token = 2 * round + 1;
        let mut old = session(&server.address()).await;
        old.query("begin").await.unwrap();
        old.query(&enter("w", token, OLD)).await.unwrap();
        old.query(&append(token, &token.to_string())).await.unwrap();
        let next = async {
            new.query(&seal("w", token + 1, NEW, 1)).await.unwrap();
            // What follows is one transaction each, which enters first.
            new.query("begin").await.unwrap();
            new.query(&enter("w", token + 1, NEW)).await.unwrap();
            new
        };
        new = race.run(token, &mut old, next).await;
        new.query("commit").await.unwrap();
    }
    race.finish(&mut new).await;
}

pub(crate) async fn session(address: &str) -> PostgresClient {
    PostgresClient::log_in(address, "app", "postgres", "").await.unwrap()
}
