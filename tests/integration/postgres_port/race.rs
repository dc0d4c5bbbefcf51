//! COMMIT racing the seal: once a new holder was admitted, nothing of the old one appears any more.

use fence_tests::postgres_client::frame;
use fence_tests::wait::PATIENCE;

use super::{database, port, setup, shop};

/// Rounds; `FENCE_LONG=1` for many.
fn rounds() -> u64 {
    if std::env::var_os("FENCE_LONG").is_some() { 10_000 } else { 60 }
}

#[tokio::test]
async fn a_commit_races_the_seal() {
    let postgres = database().await;
    let port = port(&setup(&postgres)).await;
    let mut landed = 0;
    for round in 1..=rounds() {
        let old_token = 2 * round;
        let new_token = 2 * round + 1;
        let mut old = port.log_in(old_token).await.unwrap();
        old.query("BEGIN").await.unwrap();
        old.query(&format!("INSERT INTO journal VALUES ({old_token}, 1)")).await.unwrap();
        let next = port.log_in(new_token);
        let commit = async {
            // Spreads the commit over the time of a hand-over.
            tokio::time::sleep(std::time::Duration::from_micros(round * 97 % 6000)).await;
            old.send(&frame(b'Q', b"COMMIT\0")).await;
        };
        let (new, ()) = tokio::join!(next, commit);
        let mut new = new.unwrap();
        let count = format!("SELECT count(*) FROM journal WHERE token = {old_token}");
        let first = new.query(&count).await.unwrap();
        let outcome = tokio::time::timeout(PATIENCE, old.rows()).await.unwrap();
        let last = new.query(&count).await.unwrap();
        assert_eq!(first, last, "round {round}: the old transaction appeared late: {outcome:?}");
        match outcome {
            // An acknowledged commit is not lost.
            Ok(_) => assert_eq!(first, ["1"], "round {round}"),
            Err(error) => assert_eq!(error.code(), "FE412", "round {round}: {error:?}"),
        }
        landed += u64::from(first == ["1"]);
        new.query(&format!("INSERT INTO journal VALUES ({new_token}, 1)")).await.unwrap();
    }
    println!("{landed} of {} commits landed before the seal", rounds());
    let order = "SELECT count(*) FROM journal WHERE token % 2 = 1";
    assert_eq!(shop(&postgres, "postgres", order).await, rounds().to_string());
}
