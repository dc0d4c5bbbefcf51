//! Waiting at two servers of every engine that servers share.

use fence_simulation::clock::SimClock;
use tokio::time::Instant;

use super::*;

/// Two servers on one store that started an hour apart, by their clocks.
async fn servers_apart(url: &str, options: StoreOptions) -> lock_store::Servers {
    let url = url.parse().unwrap();
    let server = async |age_ms| {
        let clock = Arc::new(SimClock::new(Instant::now(), age_ms));
        let kit = Kit::new("conformance").with_clock(clock);
        lock_server::engines::open(&url, &options, &kit).await.unwrap()
    };
    [server(3_600_000).await, server(0).await]
}

async fn servers_of_its_own(url: &str) -> lock_store::Servers {
    servers_apart(url, StoreOptions { namespace: namespace_of_its_own(), ..options() }).await
}

mod redis {
    use super::*;

    async fn servers() -> (Redis, lock_store::Servers) {
        let redis = Redis::start().await;
        let servers = servers_of_its_own(&redis.url()).await;
        (redis, servers)
    }

    fence_tests::waits_suite!(servers().await);
}

mod etcd {
    use super::*;

    async fn servers() -> (Arc<Etcd>, lock_store::Servers) {
        let etcd = etcd().await;
        let servers = servers_of_its_own(&etcd.url()).await;
        (etcd, servers)
    }

    fence_tests::waits_suite!(servers().await);
}

mod postgres {
    use super::*;

    async fn servers() -> (Arc<Postgres>, lock_store::Servers) {
        let postgres = postgres().await;
        let servers = servers_of_its_own(&postgres.url()).await;
        (postgres, servers)
    }

    fence_tests::waits_suite!(servers().await);
}

mod quorum {
    use super::*;

    async fn servers() -> (Arc<QuorumNodes>, lock_store::Servers) {
        let nodes = QuorumNodes::shared(3).await;
        let options = StoreOptions { namespace: nodes.namespace(), ..patient() };
        let servers = servers_apart(&nodes.url(), options).await;
        (nodes, servers)
    }

    fence_tests::waits_suite!(servers().await);
}
