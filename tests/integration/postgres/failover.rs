//! Locks where replicas are promoted, and where two servers accept writes at once.

use fence_tests::key_file::lease_id;
use fence_tests::postgres_server::Postgres;
use fence_tests::wait::{until, until_true};
use serde_json::json;

use super::locks::{answered, granting, next_token, setup};

/// A primary whose commits wait for its replica.
async fn synchronous() -> (Postgres, Postgres) {
    let primary = Postgres::start().await;
    let standby = Postgres::replica_of(&primary, "standby").await;
    primary.sql("ALTER SYSTEM SET synchronous_standby_names = 'standby'").await;
    primary.sql("SELECT pg_reload_conf()").await;
    let states = "SELECT sync_state FROM pg_stat_replication";
    until_true("a synchronous replica", async || primary.sql(states).await == "sync").await;
    // Commits wait once the checkpointer has read the setting, which it does before this.
    primary.sql("CHECKPOINT").await;
    (primary, standby)
}

fn url_of(one: &Postgres, two: &Postgres) -> String {
    format!("postgres://postgres@{},{}/postgres", one.address(), two.address())
}

#[tokio::test]
async fn a_synchronous_standby_has_every_grant() {
    let (mut primary, standby) = synchronous().await;
    let server = setup(&url_of(&primary, &standby)).start().await;
    let locks = server.locks();
    let mut leases = Vec::new();
    for at in 0..20 {
        leases.push(locks.grant(&format!("kept/{at}"), 60_000).await);
    }
    // In the midst of the last one.
    primary.kill();
    standby.promote().await;
    for lease in &leases {
        let body = json!({"lease_id": lease.lease_id});
        let renewed = answered(&locks, lease.lock.as_str(), "renew", body).await;
        assert_eq!(renewed.expect(200).lease().token, lease.token);
    }
    let shown = standby.sql("SELECT counter FROM fence_locks.namespaces").await;
    let last = leases.iter().map(|lease| lease.token.get()).max().unwrap();
    assert!(shown.parse::<u64>().unwrap() > last);
}

/// The former primary is up and reachable, and its replica was promoted: it acknowledges nothing
/// any more, so the two never give a token, or a lock, twice.
#[tokio::test]
async fn of_two_primaries_the_one_without_its_standby_grants_nothing() {
    let (former, promoted) = synchronous().await;
    let old = granting(&former.url()).start().await;
    let before = next_token(&old.locks(), "before").await;
    promoted.promote().await;
    let new = granting(&promoted.url()).start().await;
    let after = next_token(&new.locks(), "a").await;
    assert!(after > before, "{after} after {before}");
    for lock in ["a", "b"] {
        let reply = old.locks().acquire(lock, json!({"ttl_ms": 60_000})).await;
        assert!(matches!(reply.status, 503 | 504), "{lock}: {}", reply.status);
    }
    assert!(next_token(&new.locks(), "b").await > after);
}

/// A standby that is unreachable: an acknowledged grant is one that it has.
#[tokio::test]
async fn without_its_standby_a_primary_acknowledges_nothing() {
    let (primary, standby) = synchronous().await;
    let server = setup(&primary.url()).start().await;
    let locks = server.locks();
    locks.grant("before", 60_000).await;
    standby.pause();
    let body = json!({"ttl_ms": 60_000, "lease_id": lease_id()});
    let reply = locks.acquire("cut", body.clone()).await;
    assert!(matches!(reply.status, 503 | 504), "{}", reply.status);
    standby.resume();
    // Under the same id it is one grant, whatever became of the first request.
    let granted = answered(&locks, "cut", "acquire", body.clone()).await.expect(200).lease();
    let again = answered(&locks, "cut", "acquire", body).await.expect(200).lease();
    assert_eq!(again.token, granted.token);
}

/// One URL names two servers that know nothing of each other, which is a mistake: tokens rise all
/// the same in each move of a lock server, because it remembers.
#[tokio::test]
async fn a_move_between_two_primaries_lowers_no_token() {
    let mut one = Postgres::start().await;
    let mut two = Postgres::start().await;
    let server = granting(&url_of(&one, &two)).start().await;
    let locks = server.locks();
    let mut before = next_token(&locks, "a").await;
    for at in 1..=2 {
        one.kill();
        let after = next_token(&locks, &format!("a/{at}")).await;
        assert!(after > before, "{after} after {before}");
        assert_eq!(server.metric("fencepost_lock_lineages_begun_total").await, 1 + at);
        before = after;
        one.start_again().await;
        std::mem::swap(&mut one, &mut two);
    }
}

/// With the default, grants wait for the leases of the server before.
#[tokio::test]
async fn after_a_move_between_two_primaries_grants_wait() {
    let mut one = Postgres::start().await;
    let two = Postgres::start().await;
    let server = setup(&url_of(&one, &two)).start().await;
    let locks = server.locks();
    locks.grant("a", 60_000).await;
    one.kill();
    until("the pause", || async {
        let body = json!({"ttl_ms": 1_000, "lease_id": lease_id()});
        let reply = locks.try_post("a", "acquire", body).await.ok()?;
        assert_ne!(reply.status, 200, "granted beside a holder that may still believe");
        reply.json().to_string().contains("no lock is granted for another").then_some(())
    })
    .await;
}
