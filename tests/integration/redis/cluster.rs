//! lock-server on a Redis Cluster of three real nodes: a namespace is in one slot, which may move
//! to another node or whose node may fail over.

mod apart;
mod followed;

use fence_protocol::Code;
use fence_protocol::wire::lock::LeaseReply;
use fence_tests::api::{Locks, Reply};
use fence_tests::campaign::load::Clients;
use fence_tests::checks::{one_grant_an_id, overlaps, tokens_rise};
use fence_tests::key_file::lease_id;
use fence_tests::redis_cluster::RedisCluster;
use fence_tests::redis_server::Redis;
use fence_tests::seed::Seed;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until, until_true};
use redis_link::slot_of;
use serde_json::json;
use tokio::task::JoinHandle;

use super::recorded_locks::{RecordedLocks, has_all};

const PREFIX: &str = "{fence:default}:";

fn slot() -> u16 {
    slot_of(PREFIX.as_bytes())
}

async fn server(cluster: &RedisCluster, args: &[&str]) -> Server {
    Setup::lock_server(&cluster.url()).args(args).start().await
}

/// A request that waits in a task of its own, once it is in the queue.
async fn waiter(locks: &Locks, lock: &'static str) -> JoinHandle<Reply> {
    let own = locks.clone();
    // Short, because grants wait for it after a loss.
    let ask = json!({"ttl_ms": 6_000, "wait_ms": 300_000, "owner": "waiter"});
    let waiting = tokio::spawn(async move { own.acquire(lock, ask).await });
    locks.queued(lock, &waiting).await;
    waiting
}

/// Asks until a script gets the reply of a slot that is on its way: it is not run at all. A busy
/// node may refuse, or reply too late, for other reasons before.
async fn is_not_run(ask: impl AsyncFn() -> Reply) {
    until_true("the refusal for a slot on its way", || async {
        let reply = ask().await;
        assert!(matches!(reply.status, 503 | 504), "{reply:?}");
        if reply.status == 504 {
            return false;
        }
        let problem = reply.problem(Code::StoreUnavailable);
        problem.detail.contains("on its way to another node")
    })
    .await;
}

/// Finds what does not fit together of what the script writes together: a token above the counter,
/// and items without their record.
const TORN: &str = r#"
local counter, torn = tonumber(redis.call('GET', KEYS[1])), {}
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. 'lock:*')) do
  if string.sub(key, -1) == '#' then
    if redis.call('EXISTS', string.sub(key, 1, -2)) == 0 then
      torn[#torn + 1] = key .. ' are the items of nothing'
    end
  else
    local value = redis.call('GET', key)
    for token in string.gmatch(string.sub(value, 25), '"t":(-?%d+)') do
      token = tonumber(token)
      -- A token that the write took is its distance from the counter before it.
      if token < 0 then
        token = tonumber(string.sub(value, 9, 23)) - token
      end
      if token > counter then
        torn[#torn + 1] = key .. ' has ' .. token .. ', the counter is at ' .. counter
      end
    end
  end
end
return torn"#;

/// Looks at the node that owns the slot, in one step.
async fn nothing_is_half_done(cluster: &RedisCluster) {
    let counter = format!("{PREFIX}token");
    let torn: Vec<String> = cluster.run(PREFIX, &["EVAL", TORN, "1", &counter, PREFIX]).await;
    assert_eq!(torn, Vec::<String>::new());
}

/// No script is run while keys of one lock may be at two nodes; then leases, queue and counter are
/// all at the new node, and messages reach a server that still listens at the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_on_its_way_is_left_alone() {
    let cluster = RedisCluster::start().await;
    let args = ["--after-loss", "grant", "--liveness", "60s"];
    let servers = [server(&cluster, &args).await, server(&cluster, &args).await];
    let [one, two] = [servers[0].locks(), servers[1].locks()];
    let held = one.grant("a", 600_000).await;
    let waiting = waiter(&two, "a").await;
    let counter = format!("{PREFIX}token");
    let before: u64 = cluster.run(PREFIX, &["GET", &counter]).await;

    let from = cluster.owner(slot()).await;
    let to = (from + 1) % 3;
    cluster.begin_move(slot(), from, to).await;
    let text = slot().to_string();
    let keys: Vec<String> =
        cluster.node(from).run(&["CLUSTER", "GETKEYSINSLOT", &text, "100"]).await;
    assert!(keys.len() > 5, "{keys:?}");
    // The one that every script names is the last to go.
    let (named, found): (Vec<_>, Vec<_>) = keys.iter().partition(|key| key.ends_with(":lineage"));
    for key in [None].into_iter().chain(found.into_iter().chain(named).map(Some)) {
        if let Some(key) = key {
            // The events are sent all the time, and may have gone by themselves.
            cluster.move_key(slot(), from, to, Some(key)).await;
        }
        for locks in [&one, &two] {
            is_not_run(async || locks.acquire("new", json!({"ttl_ms": 60_000})).await).await;
            is_not_run(async || locks.renew("a", held.lease_id).await).await;
            is_not_run(async || locks.release("a", held.lease_id).await).await;
            let repeat = json!({"lease_id": held.lease_id});
            is_not_run(async || locks.acquire("a", repeat.clone()).await).await;
        }
    }
    while cluster.move_key(slot(), from, to, None).await {}
    cluster.finish_move(slot(), from, to).await;

    for locks in [&one, &two] {
        until("the lease at the new node", || async {
            let reply = locks.renew("a", held.lease_id).await;
            (reply.status != 503).then(|| assert_eq!(reply.lease().token, held.token))
        })
        .await;
    }
    assert!(!waiting.is_finished(), "the lock is held");
    nothing_is_half_done(&cluster).await;
    two.queue_of("a", 1).await;
    one.release("a", held.lease_id).await.expect(200);
    let next = soon("the grant", waiting).await.unwrap().lease();
    assert!(next.token.get() > before, "{} after {before}", next.token);
}

/// A slot that goes around under load: no lease is granted twice, none has a token that is not
/// above those before it, and nothing that scripts write together is torn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_under_load() {
    let cluster = RedisCluster::start().await;
    let args = ["--after-loss", "grant"];
    let servers = [server(&cluster, &args).await, server(&cluster, &args).await];
    let clients = Clients::start(
        &[servers[0].locks(), servers[1].locks()],
        8,
        &mut Seed::of_run("slots_move_under_load"),
    );
    for _ in 0..fence_tests::seed::rounds(3, 60) {
        clients.progress(40).await.unwrap();
        let from = cluster.owner(slot()).await;
        cluster.move_slot(slot(), from, (from + 1) % 3).await;
    }
    clients.progress(40).await.unwrap();
    nothing_is_half_done(&cluster).await;
    let mut grants = clients.stop().await.history.grants();
    tokens_rise(&grants).unwrap();
    one_grant_an_id(&grants).unwrap();
    // Nothing is lost on the way. A waiter's time counts from before it asked: how long it waited
    // is known to its server alone, which receives the grant a moment later.
    grants.iter_mut().for_each(|grant| grant.kept_ns = None);
    assert_eq!(overlaps(&grants), Vec::<String>::new());
}

/// A replica takes over, first by command and then because its master died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_fails_over_under_load() {
    let mut cluster = RedisCluster::start().await;
    let first = cluster.owner(slot()).await;
    let second = cluster.add_replica(first).await;
    cluster.settled().await;
    let servers = [server(&cluster, &[]).await, server(&cluster, &[]).await];
    let locks = [servers[0].locks(), servers[1].locks()];
    let clients = Clients::start(&locks, 8, &mut Seed::of_run("a_node_fails_over_under_load"));
    // A lease that is not released for a while: its waiter continues to wait.
    let held = locks[0].grant("held", 2_000).await;
    let waiting = waiter(&locks[1], "held").await;
    clients.progress(40).await.unwrap();
    cluster.fail_over(second, slot()).await;
    clients.progress(40).await.unwrap();
    cluster.follows(first, second).await;
    cluster.node_mut(second).kill();
    until_true("the other one to take over", || async {
        cluster.try_owner(slot()).await == Some(first)
    })
    .await;
    clients.progress(40).await.unwrap();
    let next = soon("the grant", waiting).await.unwrap().lease();
    assert!(next.token > held.token);
    nothing_is_half_done(&cluster).await;
    let grants = clients.stop().await.history.grants();
    tokens_rise(&grants).unwrap();
    one_grant_an_id(&grants).unwrap();
}

/// A cluster that does not serve the slot says so; leases are there when it does again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_no_node_serves_is_unavailable() {
    let cluster = RedisCluster::start().await;
    let server = server(&cluster, &[]).await;
    let locks = server.locks();
    let lease = lease_id();
    let ask = json!({"lease_id": lease, "ttl_ms": 60_000});
    let token = locks.acquire("a", ask.clone()).await.lease().token;
    let owner = cluster.owner(slot()).await;
    let slot = slot().to_string();
    let _: () = cluster.node(owner).run(&["CLUSTER", "DELSLOTS", &slot]).await;
    let said = Setup::lock_server(&cluster.url()).refused().await;
    let reasons = [
        "the cluster does not serve the slot",
        "says that no node owns slot",
        "says who owns slot",
    ];
    assert!(reasons.iter().any(|reason| said.stderr.contains(reason)), "{}", said.stderr);
    locks.acquire("b", json!({"ttl_ms": 60_000})).await.problem(Code::StoreUnavailable);
    let _: () = cluster.node(owner).run(&["CLUSTER", "ADDSLOTS", &slot]).await;
    until_true("the same lease", || async {
        let reply = locks.acquire("a", ask.clone()).await;
        reply.status == 200 && reply.lease().token == token
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_cluster_and_who_is_no_node_is_said() {
    let cluster = RedisCluster::start().await;
    let redis = Redis::start().await;
    let said = Setup::lock_server(&cluster.node(0).url()).refused().await;
    assert!(said.stderr.contains("write redis-cluster://"), "{}", said.stderr);
    let url = format!("redis-cluster://{}", redis.address());
    let said = Setup::lock_server(&url).refused().await;
    assert!(said.stderr.contains("is not part of a cluster; write redis://"), "{}", said.stderr);
    let said = Setup::lock_server("redis-cluster://127.0.0.1:1,127.0.0.1:2").refused().await;
    assert!(said.stderr.contains("no node of the cluster says"), "{}", said.stderr);

    let fresh = ["init", "--fresh", "--store", &cluster.url()];
    let output = fence_tests::process::run("lock-server", &fresh).await;
    assert_eq!(output.code, 0, "{output:?}");
    let server = server(&cluster, &[]).await;
    assert_eq!(server.locks().grant("a", 60_000).await.token.get(), 1);
}
