//! The conformance suites over every store.

use std::sync::Arc;

use fence_protocol::Namespace;
use fence_tests::conformance::{fence_store, lock_store};
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::redis_server::Redis;
use fence_tests::servers::DataDir;
use lock_server::store::StoreOptions;
use service_kit::Kit;

/// A lock store of its own for one case; the guard keeps what is behind it alive.
async fn locks_at(url: &str) -> lock_store::Store {
    let url = url.parse().unwrap();
    let kit = Kit::new("conformance");
    lock_server::store::open(&url, &StoreOptions::default(), &kit).await.unwrap()
}

async fn fences_at(url: &str) -> fence_store::Store {
    let url = url.parse().unwrap();
    let kit = Kit::new("conformance");
    let options = fenced_store::store::redis::RedisOptions::default();
    fenced_store::store::open(&url, &Namespace::default(), options, &kit).await.unwrap().store
}

mod lock_memory {
    fence_tests::lock_store_suite!(((), super::locks_at("memory:").await));
}

mod lock_embedded {
    use super::*;

    async fn store() -> (DataDir, lock_store::Store) {
        let data = DataDir::new();
        let store = locks_at(&data.store()).await;
        (data, store)
    }

    fence_tests::lock_store_suite!(store().await);
}

mod lock_redis {
    use super::*;

    async fn store() -> (Redis, lock_store::Store) {
        let redis = Redis::start().await;
        let store = locks_at(&redis.url()).await;
        (redis, store)
    }

    fence_tests::lock_store_suite!(store().await);
}

/// Three nodes for all cases, a namespace each.
mod lock_quorum_3 {
    fence_tests::lock_store_suite!(
        crate::conformance::quorum_of(3).await,
        offers core,
        lacks namespace takeover kinds groups delays sessions
    );
}

mod lock_quorum_5 {
    fence_tests::lock_store_suite!(
        crate::conformance::quorum_of(5).await,
        offers core,
        lacks namespace takeover kinds groups delays sessions
    );
}

async fn quorum_of(n: usize) -> (Arc<QuorumNodes>, lock_store::Store) {
    let nodes = QuorumNodes::shared(n).await;
    let url = nodes.url().parse().unwrap();
    let options = StoreOptions { namespace: nodes.namespace(), ..StoreOptions::default() };
    let kit = Kit::new("conformance");
    let store = lock_server::store::open(&url, &options, &kit).await.unwrap();
    (nodes, store)
}

mod fence_memory {
    fence_tests::fence_store_suite!(((), super::fences_at("memory:").await));
}

mod fence_embedded {
    use super::*;

    async fn store() -> (DataDir, fence_store::Store) {
        let data = DataDir::new();
        let store = fences_at(&data.store()).await;
        (data, store)
    }

    fence_tests::fence_store_suite!(store().await);
}

mod fence_redis {
    use super::*;

    async fn store() -> (Redis, fence_store::Store) {
        let redis = Redis::start().await;
        let store = fences_at(&redis.url()).await;
        (redis, store)
    }

    fence_tests::fence_store_suite!(store().await);

    /// Two guards before one Redis at once are as safe as one.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_guards_race() {
        let redis = Redis::start().await;
        let stores = [fences_at(&redis.url()).await, fences_at(&redis.url()).await];
        fence_store::race(&stores, "two-guards").await;
    }
}

/// G4, L4: what is closed in good order opens again with everything that was answered.
#[tokio::test]
async fn embedded_stores_open_again() {
    let (locks, fences) = (DataDir::new(), DataDir::new());
    for round in 0..3_u64 {
        let store = locks_at(&locks.store()).await;
        lock_store::reopened(&store, round).await;
        drop(store);
        let store = fences_at(&fences.store()).await;
        fence_store::reopened(&store, round).await;
        let handles = Arc::strong_count(&store);
        assert_eq!(handles, 1, "the store is still in use");
    }
}
