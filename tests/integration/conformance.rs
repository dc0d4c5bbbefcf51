//! The conformance suites over every store.

mod waits;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fence_protocol::Namespace;
use fence_simulation::SimRecords;
use fence_tests::conformance::{fence_store, lock_store, record_store};
use fence_tests::etcd_server::Etcd;
use fence_tests::guards_in_turns::GuardsInTurns;
use fence_tests::in_turns::InTurns;
use fence_tests::postgres_server::Postgres;
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::redis_cluster::RedisCluster;
use fence_tests::redis_sentinel::SentinelGroup;
use fence_tests::redis_server::Redis;
use fence_tests::servers::DataDir;
use fence_tests::store_options::patient;
use fence_tests::wait::patience;
use lock_server::driver::Driver;
use lock_server::engines::contract::ServerId;
use lock_server::engines::etcd::EtcdRecords;
use lock_server::engines::loss::{AfterLoss, LossOptions};
use lock_server::engines::memory::MemoryRecords;
use lock_server::engines::open::StoreUrl;
use lock_server::engines::options::StoreOptions;
use lock_server::engines::postgres::PostgresRecords;
use lock_server::engines::redis::RedisRecords;
use lock_server::guards::Guards;
use lock_server::store::Limits;
use service_kit::Kit;
use service_kit::clock::SystemClock;
use tokio::sync::Mutex;

/// Options for the promises of every store; `redis::loss` tests the pause after a loss. However
/// slow the machine is, the ends of leases are remembered and no server is taken for dead.
fn options() -> StoreOptions {
    let loss = LossOptions { after_loss: AfterLoss::Grant, ..LossOptions::default() };
    let limits = Limits { ended_retention_ms: 600_000, ..Limits::default() };
    StoreOptions { loss, limits, liveness: Duration::from_secs(60), ..patient() }
}

/// A lock store of its own for one case; the guard keeps what is behind it alive.
async fn locks_at(url: &str) -> lock_store::Store {
    let url = url.parse().unwrap();
    let kit = Kit::new("conformance");
    lock_server::engines::open(&url, &options(), &kit).await.unwrap()
}

/// Engine that takes long to start: the cases that run at the same time share one, and the last
/// ends it.
struct Shared<T>(Mutex<Weak<T>>);

impl<T> Shared<T> {
    const fn new() -> Self {
        Self(Mutex::const_new(Weak::new()))
    }

    async fn get(&self, start: impl Future<Output = T>) -> Arc<T> {
        let mut shared = self.0.lock().await;
        if let Some(running) = shared.upgrade() {
            return running;
        }
        let started = Arc::new(start.await);
        *shared = Arc::downgrade(&started);
        started
    }
}

fn namespace_of_its_own() -> Namespace {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("case-{}", NEXT.fetch_add(1, Ordering::Relaxed)).parse().unwrap()
}

/// A lock store in a namespace that no other case of this run has.
async fn locks_of_its_own(url: &str, options: StoreOptions) -> lock_store::Store {
    let options = StoreOptions { namespace: namespace_of_its_own(), ..options };
    let url = url.parse().unwrap();
    let kit = Kit::new("conformance");
    lock_server::engines::open(&url, &options, &kit).await.unwrap()
}

async fn fences_at(url: &str) -> fence_store::Store {
    let url = url.parse().unwrap();
    let kit = Kit::new("conformance");
    let options = fenced_store::stores::redis::RedisOptions::default();
    fenced_store::stores::open(&url, &Namespace::default(), options, &kit).await.unwrap().store
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

/// Two servers over the same records: each call goes to another one than the call before.
mod lock_servers {
    use super::*;

    fn store() -> ((), lock_store::Store) {
        let kit = Kit::new("conformance");
        let records = Arc::new(MemoryRecords::new(kit.clock.clone(), 0));
        let server = |n| {
            Driver::shared(records.clone(), ServerId(n), options().liveness, options().limits, &kit)
        };
        ((), Arc::new(InTurns::new(Arc::new(server(1)), Arc::new(server(2)))))
    }

    fence_tests::lock_store_suite!(store());
}

/// Two servers in turns over the engine of the simulation, without its faults.
mod lock_simulation {
    use super::*;

    fn store() -> ((), lock_store::Store) {
        let kit = Kit::new("conformance");
        let [one, two] = SimRecords::calm(kit.clock.clone());
        let server = |n, records: SimRecords| {
            let records = Arc::new(records);
            let options = options();
            Arc::new(Driver::shared(records, ServerId(n), options.liveness, options.limits, &kit))
        };
        ((), Arc::new(InTurns::new(server(1, one), server(2, two))))
    }

    fence_tests::lock_store_suite!(store());
}

/// One etcd for all cases that run at the same time. Nothing here is about what survives the
/// machine, so that it need not wait for the disk.
static ETCD: Shared<Etcd> = Shared::new();

async fn etcd() -> Arc<Etcd> {
    ETCD.get(Etcd::with(&["--unsafe-no-fsync"])).await
}

mod lock_etcd {
    use super::*;

    async fn store() -> (Arc<Etcd>, lock_store::Store) {
        let etcd = etcd().await;
        let store = locks_of_its_own(&etcd.url(), patient()).await;
        (etcd, store)
    }

    fence_tests::lock_store_suite!(store().await);
}

/// One PostgreSQL for all cases that run at the same time, a namespace each.
static POSTGRES: Shared<Postgres> = Shared::new();

async fn postgres() -> Arc<Postgres> {
    POSTGRES.get(Postgres::with(&[("max_connections", "400")])).await
}

mod lock_postgres {
    use super::*;

    async fn store() -> (Arc<Postgres>, lock_store::Store) {
        let postgres = postgres().await;
        let store = locks_of_its_own(&postgres.url(), options()).await;
        (postgres, store)
    }

    fence_tests::lock_store_suite!(store().await);
}

/// Two servers on one PostgreSQL: each call goes to another one than the call before.
mod lock_postgres_servers {
    use super::*;

    async fn store() -> (Arc<Postgres>, lock_store::Store) {
        let postgres = postgres().await;
        let url = postgres.url().parse().unwrap();
        let options = StoreOptions { namespace: namespace_of_its_own(), ..options() };
        let server = async || {
            lock_server::engines::open(&url, &options, &Kit::new("conformance")).await.unwrap()
        };
        let servers = InTurns::new(server().await, server().await);
        (postgres, Arc::new(servers))
    }

    fence_tests::lock_store_suite!(store().await);
}

mod lock_sentinel {
    use super::*;

    pub(super) static GROUP: Shared<SentinelGroup> = Shared::new();

    async fn store() -> (Arc<SentinelGroup>, lock_store::Store) {
        let group = GROUP.get(SentinelGroup::start()).await;
        let store = locks_of_its_own(&group.url(), options()).await;
        (group, store)
    }

    fence_tests::lock_store_suite!(store().await);
}

/// No caller is notified of a grant that the replica does not have.
mod lock_replica {
    use lock_server::engines::redis::ReplicaOptions;

    use super::*;

    async fn store() -> (Arc<SentinelGroup>, lock_store::Store) {
        let group = lock_sentinel::GROUP.get(SentinelGroup::start()).await;
        // The default is for replicas that have a machine of their own.
        let replicas = ReplicaOptions { count: 1, timeout: patience() };
        let options = StoreOptions { replicas, ..options() };
        let store = locks_of_its_own(&group.url_of_one(), options).await;
        (group, store)
    }

    fence_tests::lock_store_suite!(store().await);
}

/// Each case's namespace has a slot of its own, so all three nodes have their part.
mod lock_cluster {
    use super::*;

    static CLUSTER: Shared<RedisCluster> = Shared::new();

    async fn store() -> (Arc<RedisCluster>, lock_store::Store) {
        let cluster = CLUSTER.get(RedisCluster::start()).await;
        let store = locks_of_its_own(&cluster.url(), options()).await;
        (cluster, store)
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
    let options = StoreOptions { namespace: nodes.namespace(), ..patient() };
    let kit = Kit::new("conformance");
    let store = lock_server::engines::open(&url, &options, &kit).await.unwrap();
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

mod fence_postgres {
    use super::*;

    static POSTGRES: Shared<Postgres> = Shared::new();

    /// Guards in a namespace that no other case of this run has.
    pub(super) async fn guards<const N: usize>() -> (Arc<Postgres>, [fence_store::Store; N]) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let namespace = format!("case-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let namespace: Namespace = namespace.parse().unwrap();
        let settings = [("max_connections", "300")];
        let postgres = POSTGRES.get(Postgres::with(&settings)).await;
        let url = postgres.url().parse().unwrap();
        let mut stores = Vec::new();
        for _ in 0..N {
            let kit = Kit::new("conformance");
            let opened = fenced_store::stores::open(&url, &namespace, Default::default(), &kit);
            stores.push(opened.await.unwrap().store);
        }
        (postgres, stores.try_into().unwrap())
    }

    async fn store() -> (Arc<Postgres>, fence_store::Store) {
        let (postgres, [store]) = guards().await;
        (postgres, store)
    }

    fence_tests::fence_store_suite!(store().await);

    /// Guards before one database at once are as safe as one.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn three_guards_race() {
        let (_postgres, stores) = guards::<3>().await;
        fence_store::race(&stores, "three-guards").await;
    }
}

/// Two guards in turns: each call goes to another one than the call before.
mod fence_postgres_guards {
    use super::*;

    async fn store() -> (Arc<Postgres>, fence_store::Store) {
        let (postgres, guards) = fence_postgres::guards().await;
        (postgres, Arc::new(GuardsInTurns::new(guards)))
    }

    fence_tests::fence_store_suite!(store().await);
}

/// G4, L4: what is closed in good order opens again with everything that was answered.
#[tokio::test]
async fn embedded_stores_open_again() {
    let locks = DataDir::new();
    let fences = DataDir::new();
    for round in 0..3_u64 {
        let url = locks.store().parse().unwrap();
        let kit = Kit::new("conformance");
        let store = lock_server::engines::open(&url, &options(), &kit).await.unwrap();
        lock_store::reopened(&store, round).await;
        drop(store);
        kit.tasks.begin_shutdown();
        assert!(kit.tasks.drained(patience()).await, "the store is still in use");
        let store = fences_at(&fences.store()).await;
        fence_store::reopened(&store, round).await;
        let handles = Arc::strong_count(&store);
        assert_eq!(handles, 1, "the store is still in use");
    }
}

/// A namespace of records that no other case of this run has, and two handles on it.
async fn records_at(url: &str) -> record_store::Servers {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let namespace = format!("records-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let options = StoreOptions { namespace: namespace.parse().unwrap(), ..options() };
    (server_at(url, &options).await, server_at(url, &options).await)
}

async fn server_at(url: &str, options: &StoreOptions) -> record_store::Store {
    let kit = Kit::new("conformance");
    let guards = Guards::new(&Default::default(), &options.namespace, &kit.health).unwrap();
    match url.parse().unwrap() {
        StoreUrl::Redis(target) => {
            Arc::new(RedisRecords::start(&target, options, guards, &kit).await.unwrap())
        }
        StoreUrl::Etcd(target) => {
            Arc::new(EtcdRecords::start(&target, options, guards, &kit).await.unwrap())
        }
        StoreUrl::Postgres(target) => {
            Arc::new(PostgresRecords::start(&target, options, guards, &kit).await.unwrap())
        }
        other => panic!("{other:?}"),
    }
}

mod records_memory {
    use super::*;

    fn servers() -> ((), record_store::Servers) {
        let records = MemoryRecords::new(Arc::new(SystemClock::new()), 0);
        ((), (Arc::new(records.clone()), Arc::new(records)))
    }

    fence_tests::record_store_suite!(servers());
}

mod records_simulation {
    use super::*;

    fn servers() -> ((), record_store::Servers) {
        let [one, two] = SimRecords::calm(Arc::new(SystemClock::new()));
        ((), (Arc::new(one), Arc::new(two)))
    }

    fence_tests::record_store_suite!(servers());
}

mod records_redis {
    use super::*;

    static REDIS: Shared<Redis> = Shared::new();

    async fn servers() -> (Arc<Redis>, record_store::Servers) {
        let redis = REDIS.get(Redis::start()).await;
        let servers = records_at(&redis.url()).await;
        (redis, servers)
    }

    fence_tests::record_store_suite!(servers().await);
}

mod records_cluster {
    use super::*;

    static CLUSTER: Shared<RedisCluster> = Shared::new();

    async fn servers() -> (Arc<RedisCluster>, record_store::Servers) {
        let cluster = CLUSTER.get(RedisCluster::start()).await;
        let servers = records_at(&cluster.url()).await;
        (cluster, servers)
    }

    fence_tests::record_store_suite!(servers().await);
}

mod records_etcd {
    use super::*;

    async fn servers() -> (Arc<Etcd>, record_store::Servers) {
        let etcd = etcd().await;
        let servers = records_at(&etcd.url()).await;
        (etcd, servers)
    }

    fence_tests::record_store_suite!(servers().await, bounded);
}

mod records_postgres {
    use super::*;

    async fn servers() -> (Arc<Postgres>, record_store::Servers) {
        let postgres = postgres().await;
        let servers = records_at(&postgres.url()).await;
        (postgres, servers)
    }

    fence_tests::record_store_suite!(servers().await);
}
