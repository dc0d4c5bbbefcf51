//! The example for fred in docs/guides/redis-pools.md, `pool.rs`, over a hand-over.
//!
//!     fence-guide-fred FIRST OTHER NEXT OTHER_URL
//!
//! FIRST, OTHER and NEXT are credentials of `orders/42`, each with a higher token.

mod pool;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fred::prelude::*;

const JOURNAL: &str = "orders:42:journal";
const SIZE: usize = 16;

/// One write on each client of the pool, at the same time.
async fn on_each(pool: &Pool, value: &'static str) -> Vec<Result<i64, Error>> {
    let mut writes = tokio::task::JoinSet::new();
    for client in pool.clients().to_vec() {
        writes.spawn(async move { client.rpush(JOURNAL, value).await });
    }
    writes.join_all().await
}

fn is_fenced(outcome: &Result<i64, Error>) -> bool {
    outcome.as_ref().is_err_and(|error| error.details().starts_with("FENCED"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().collect();
    let [_, first, other, next, url] = &words[..] else { panic!("{words:?}") };
    let lease = Arc::new(pool::Lease::default());
    lease.0.lock().unwrap().clone_from(first);
    let pool = pool::pool(Arc::clone(&lease))?;
    pool.init().await?;
    let _: i64 = pool.del(JOURNAL).await?;
    assert!(on_each(&pool, "first").await.iter().all(Result::is_ok));

    let mut config = Config::from_url(url)?;
    config.username = Some("fence".to_owned());
    config.password = Some(other.clone());
    let holder = Builder::from_config(config).build()?;
    holder.init().await?;
    let _: i64 = holder.rpush(JOURNAL, "other").await?;
    let late: Result<i64, Error> = pool.rpush(JOURNAL, "late").await;
    assert!(is_fenced(&late), "{late:?}");
    let late = on_each(&pool, "late").await;
    assert!(late.iter().all(Result::is_err), "{late:?}");

    lease.0.lock().unwrap().clone_from(next);
    let end = Instant::now() + Duration::from_secs(20);
    while !on_each(&pool, "next").await.iter().all(Result::is_ok) {
        assert!(Instant::now() < end, "the pool did not present the next lease");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let late: Result<i64, Error> = holder.rpush(JOURNAL, "late").await;
    assert!(is_fenced(&late), "{late:?}");
    let journal: Vec<String> = pool.lrange(JOURNAL, 0, -1).await?;
    let mut expected = vec!["first"; SIZE];
    expected.push("other");
    assert_eq!(journal[..=SIZE], expected);
    assert!(journal[SIZE + 1..].iter().all(|value| value == "next"), "{journal:?}");
    println!("fred 10.1.0: a pool of {SIZE} presents the newest lease by itself");
    Ok(())
}
