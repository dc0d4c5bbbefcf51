//! COMMIT racing the seal: once a new holder was admitted, nothing of the old one appears any more.

use fence_tests::postgres_journal::{CommitRace, TABLES, append};

use super::{database, port, setup, shop};
use crate::postgres_pack::race::rounds;

#[tokio::test]
async fn a_commit_races_the_seal() {
    let postgres = database().await;
    shop(&postgres, "writer", TABLES).await;
    let port = port(&setup(&postgres)).await;
    let mut race = CommitRace::default();
    for round in 0..rounds() {
        let token = 2 * round + 1;
        let mut old = port.log_in(token).await.unwrap();
        old.query("BEGIN").await.unwrap();
        old.query(&append(token, &token.to_string())).await.unwrap();
        race.run(token, &mut old, async { port.log_in(token + 1).await.unwrap() }).await;
    }
    race.finish(&mut port.log_in(2 * rounds()).await.unwrap()).await;
}
