//! `RecordStore` on PostgreSQL: other lineages, many records, other settings.

use std::sync::Arc;

use fence_tests::conformance::record_store::{
    Store, batch, group, keep, lock, must_put, named, no_update_is_lost, put, put_for, read,
    remove, session, take, write,
};
use fence_tests::postgres_server::Postgres;
use fence_tests::wait::until_true;
use lock_server::engines::contract::{Batch, Key, Version, Write};
use lock_server::engines::open::StoreUrl;
use lock_server::engines::postgres::PostgresRecords;
use lock_server::guards::Guards;
use lock_server::store::ListQuery;
use service_kit::Kit;

async fn server(postgres: &Postgres) -> Store {
    let StoreUrl::Postgres(target) = postgres.url().parse().unwrap() else { unreachable!() };
    let options = fence_tests::store_options::patient();
    let kit = Kit::new("records");
    let guards = Guards::new(&Default::default(), &options.namespace, &kit.health).unwrap();
    Arc::new(PostgresRecords::start(&target, &options, guards, &kit).await.unwrap())
}

/// A batch that begins a lease of a minute. No token: none is granted in the pause.
fn leases(key: &Key) -> Batch {
    let groups = vec![group(&[(key, Version::ABSENT)], vec![put(key, "held")])];
    Batch { lives_ms: 60_000, ..batch(groups) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_sent_again_says_how_long_its_leases_live() {
    let postgres = Postgres::start().await;
    let store = server(&postgres).await;
    store.commit(leases(&lock("a"))).await.unwrap();
    // Another server has begun a lineage, of a backup.
    let restored = "UPDATE fence_locks.namespaces SET lineage = 'another', lives_until_ms = 0";
    postgres.sql(restored).await;
    store.commit(leases(&lock("b"))).await.unwrap();
    let lives = "SELECT lives_until_ms > 0 FROM fence_locks.namespaces";
    assert_eq!(postgres.sql(lives).await, "t");
}

/// Whatever is read: what is missing may have been lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_and_counts_are_of_the_lineage() {
    let postgres = Postgres::start().await;
    let store = server(&postgres).await;
    let key = session();
    let all = ListQuery { prefix: String::new(), after: None, limit: 9, owner: None };
    for what in ["locks", "sessions", "items", "count"] {
        // As in an empty database: nothing is stored, and no lineage.
        postgres.sql("UPDATE fence_locks.namespaces SET lineage = ''").await;
        let found = match what {
            "locks" => store.locks(&all).await.unwrap().0.len(),
            "sessions" => store.sessions(None, 9).await.unwrap().0.len(),
            "items" => store.items(&key, None, 9).await.unwrap().len(),
            _ => store.item_count(&key).await.unwrap(),
        };
        assert_eq!(found, 0, "{what}");
        let begun = "SELECT lineage <> '' FROM fence_locks.namespaces";
        assert_eq!(postgres.sql(begun).await, "t", "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_records_than_one_call_reads_come_in_their_order() {
    let postgres = Postgres::start().await;
    let store = server(&postgres).await;
    let keys: Vec<Key> = (0..2_500).map(|at| lock(&format!("many/{at}"))).collect();
    for at in [0, 999, 1_000, 1_999, 2_499] {
        must_put(&store, Version::ABSENT, put(&keys[at], &at.to_string())).await;
    }
    let (found, _) = store.read(&keys).await.unwrap();
    assert_eq!(found.len(), keys.len());
    assert!(found.iter().zip(&keys).all(|(found, key)| found.key == *key));
    let values = found.iter().enumerate().filter(|(_, found)| found.version != Version::ABSENT);
    let values: Vec<bool> =
        values.map(|(at, found)| found.value == at.to_string().into_bytes()).collect();
    assert_eq!(values, [true; 5]);
}

/// A stricter isolation would refuse commits of two servers at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_isolation_of_the_database_does_not_matter() {
    let strict = [("default_transaction_isolation", "serializable")];
    let postgres = Postgres::with(&strict).await;
    no_update_is_lost(&(server(&postgres).await, server(&postgres).await)).await;
}

/// Starts and verifications use up no id of a namespace, of which there are two thousand million.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_has_one_id() {
    let postgres = Postgres::start().await;
    for _ in 0..3 {
        let store = server(&postgres).await;
        postgres.sql("UPDATE fence_locks.namespaces SET lineage = 'another'").await;
        take(&store, 1).await.unwrap();
        read(&store, &lock("a")).await;
    }
    let ids = "SELECT last_value FROM fence_locks.namespaces_id_seq";
    assert_eq!(postgres.sql(ids).await, "1");
}

/// Plans that were made for empty tables are kept: none may read a whole namespace for its records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_found_by_their_keys() {
    let plans = [
        ("session_preload_libraries", "auto_explain"),
        ("auto_explain.log_min_duration", "0"),
        ("auto_explain.log_nested_statements", "on"),
        ("autovacuum", "off"),
    ];
    let postgres = Postgres::with(&plans).await;
    let store = server(&postgres).await;
    let [key, over] = [lock("a"), lock("over")];
    let items = named(&[("one", Some("x"))]);
    let version = must_put(&store, Version::ABSENT, Write { items, ..put(&key, "x") }).await;
    write(&store, Version::ABSENT, put(&key, "y")).await.unwrap_err();
    write(&store, version, keep(&key, &[("one", None)])).await.unwrap();
    write(&store, version, remove(&key)).await.unwrap();
    let absent = async || read(&store, &over).await.version == Version::ABSENT;
    for _ in 0..2 {
        // The second put replaces what is over, unless the sweep was faster.
        must_put(&store, Version::ABSENT, put_for(&over, "x", Some(1))).await;
        until_true("the end", absent).await;
    }
    let rows = "SELECT count(*) FROM fence_locks.records";
    until_true("the sweep", async || postgres.sql(rows).await == "0").await;
    let log = postgres.process().stderr();
    let filters = log.lines().filter(|line| line.contains("Join Filter") && line.contains("key"));
    assert_eq!(filters.collect::<Vec<_>>(), Vec::<&str>::new());
    let joined = log.matches("(namespace = ($1 + (0 * ").count();
    assert!(joined >= 10, "{joined} joins in\n{log}");
}
