//! Nodes that may have forgotten and are in trouble, and what that costs the others.

use std::time::Duration;

use fence_protocol::wire::lock::LockPage;
use fence_tests::conformance::lock_store::Store;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::redis_server::Redis;
use fence_tests::wait::{until, until_true};
use lock_server::store::ListQuery;
use service_kit::Kit;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::membership::count;
use super::opening::{
    LONG_MS, granted, released, request, store_at, token_of, unless_late, until_all_vote,
    until_held, until_said,
};

const META: &str = "{fence:default}:q:meta";
const HOUR_MS: u64 = 3_600_000;

async fn state_of(node: &Redis) -> Option<String> {
    node.run(&["HGET", META, "state"]).await
}

/// A node waits for the leases that were granted, not for those that were requested in vain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_was_refused_keeps_no_node_away() {
    let nodes = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    let held = granted(&store, "a", 10_000).await;
    until_held(&store, "a", HOUR_MS).await;
    released(&store, "a", &held).await;
    nodes.node(2).run::<()>(&["FLUSHALL"]).await;
    until_said(&kit, "it has rejoined, and votes within").await;
    until_all_vote(&kit).await;
}

/// A node that is to come back and cannot write: the others are asked for one view, and grant in
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_node_that_forgot_costs_the_others_one_view() {
    let mut nodes = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    nodes.node_mut(1).kill();
    nodes.node(2).run::<()>(&["FLUSHALL"]).await;
    until_true("the node to be unverified", || async {
        state_of(nodes.node(2)).await.as_deref() == Some("doubt")
    })
    .await;
    nodes.node(2).run::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    nodes.node_mut(1).start_again().await;
    until_said(&kit, "has not rejoined yet: Redis answered OOM").await;
    // Time enough for some more attempts, while the others continue.
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        let grant = granted(&store, "a", LONG_MS).await;
        released(&store, "a", &grant).await;
    }
    assert_eq!(count(&kit, "fencepost_lock_quorum_view_bumps"), 1);
    let view: String = nodes.node(0).run(&["HGET", META, "view"]).await;
    assert_eq!((view.as_str(), state_of(nodes.node(2)).await.as_deref()), ("2", Some("doubt")));
    nodes.node(2).run::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    until_said(&kit, "it has rejoined, and votes within").await;
    assert_eq!(count(&kit, "fencepost_lock_quorum_view_bumps"), 1);
}

/// The highest token of a node falls, and no message reaches it that it is unverified: its word
/// counts for nothing, and its loss is counted when the message arrives, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_fell_has_no_vote_before_it_knows() {
    let nodes = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    token_of(&store, "a").await;
    let node = nodes.node(1);
    let buckets = || async {
        let fields: Vec<String> = node.run(&["HKEYS", META]).await;
        fields.into_iter().filter(|field| field.strip_prefix('p').is_some_and(is_number))
    };
    let bucket = until("the node's vote", || async { buckets().await.next() }).await;
    node.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    node.run::<()>(&["HDEL", META, &bucket]).await;
    until_said(&kit, "is to be kept from voting: Redis answered OOM").await;
    // Some more looks, each of which finds the same.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        (count(&kit, "fencepost_lock_quorum_amnesia"), state_of(node).await.as_deref()),
        (0, Some("ready"))
    );
    let report = kit.health.report(false).text();
    assert!(report.contains("is to be kept from voting"), "{report}");
    node.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    until_true("a view bump", || async { count(&kit, "fencepost_lock_quorum_view_bumps") == 1 })
        .await;
    assert_eq!(count(&kit, "fencepost_lock_quorum_amnesia"), 1);
}

fn is_number(text: &str) -> bool {
    text.parse::<u8>().is_ok()
}

/// A node that was emptied, and so gets no message either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_node_that_is_full_is_counted_once() {
    let nodes = QuorumNodes::start(3).await;
    let (_store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    nodes.node(1).run::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    nodes.node(1).run::<()>(&["FLUSHALL"]).await;
    until_said(&kit, "has lost its memory: Redis answered OOM").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(count(&kit, "fencepost_lock_quorum_amnesia"), 0);
    nodes.node(1).run::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    until_true("a view bump", || async { count(&kit, "fencepost_lock_quorum_view_bumps") == 1 })
        .await;
    assert_eq!(count(&kit, "fencepost_lock_quorum_amnesia"), 1);
}

/// A node did not keep every vote, and that was put right with its restart. Of three servers one
/// that has just started takes it over; the others, who come later, know better, and only the first
/// of them has anything to do about it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_saw_a_node_keep_nothing_remembers_it() {
    let mut nodes = QuorumNodes::start(3).await;
    nodes.node_mut(2).set("appendfsync", "everysec").await;
    let mut knowing: Vec<(FaultProxy, Store, Kit)> = Vec::new();
    for _ in 0..2 {
        let proxy = FaultProxy::before(&nodes.node(2).address()).await;
        let url = nodes.url().replace(&nodes.node(2).address(), &proxy.address());
        let (store, kit) = store_at(&url).await.unwrap();
        until_said(&kit, "appendfsync is everysec").await;
        knowing.push((proxy, store, kit));
    }
    for (proxy, _, kit) in &knowing {
        proxy.set(Fault::Refuse);
        until_said(kit, "cannot be reached").await;
    }
    nodes.node_mut(2).set("appendfsync", "always").await;
    nodes.node_mut(2).start_again().await;
    let (_fresh, fresh_kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&fresh_kit).await;
    for (at, (proxy, _, kit)) in knowing.iter().enumerate() {
        proxy.heal();
        until_all_vote(kit).await;
        assert_eq!(count(kit, "fencepost_lock_quorum_amnesia"), u64::from(at == 0), "server {at}");
    }
    let view: String = nodes.node(0).run(&["HGET", META, "view"]).await;
    assert_eq!(view, "2");
}

/// The addresses of two nodes lead to each other's, and no process ends: both are found again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_may_change_places() {
    let nodes = QuorumNodes::start(3).await;
    let a = nodes.node(0).address();
    let b = nodes.node(1).address();
    let to_a = FaultProxy::before(&a).await;
    let to_b = FaultProxy::before(&b).await;
    let url = nodes.url().replace(&a, &to_a.address()).replace(&b, &to_b.address());
    let (store, kit) = store_at(&url).await.unwrap();
    until_all_vote(&kit).await;
    let before = token_of(&store, "a").await;
    to_b.set(Fault::Refuse);
    until_said(&kit, &format!("{} cannot be reached", to_b.address())).await;
    // The second one is gone for good as far as this server can see, and found behind the first.
    to_a.move_to(&b);
    until_true("the first address to lead to the second node", || async {
        // What is asked there now can only come through the first; a refused one asks nothing.
        let clients: String = nodes.node(1).run(&["CLIENT", "LIST", "TYPE", "normal"]).await;
        let report = kit.health.report(false).text();
        let is_well = format!("node 1 redis://{} ok", to_a.address());
        clients.contains("cmd=evalsha") && report.contains(&is_well)
    })
    .await;
    to_b.move_to(&a);
    to_b.heal();
    until_all_vote(&kit).await;
    assert!(token_of(&store, "a").await > before);
    assert_eq!(count(&kit, "fencepost_lock_quorum_amnesia"), 0);
}

/// Carries connections to a node. Those that exist can be made to carry nothing more and to stay
/// open, as where a middlebox has forgotten them.
struct Forgetful {
    address: String,
    forget: tokio::sync::watch::Sender<CancellationToken>,
    _carrying: AbortOnDropHandle<()>,
}

impl Forgetful {
    async fn before(upstream: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (forget, forgets) = tokio::sync::watch::channel(CancellationToken::new());
        let carrying = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let upstream = upstream.clone();
                let forgotten = forgets.borrow().clone();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(upstream).await else { return };
                    let carried = tokio::io::copy_bidirectional(&mut client, &mut server);
                    if forgotten.run_until_cancelled(carried).await.is_none() {
                        std::future::pending::<()>().await;
                    }
                    let _ = client.shutdown().await;
                });
            }
        });
        Self { address, forget, _carrying: AbortOnDropHandle::new(carrying) }
    }

    fn forget_all(&self) {
        self.forget.send_replace(CancellationToken::new()).cancel();
    }
}

/// A subscription that receives nothing any more is made anew, though its connection looks well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deaf_subscription_is_noticed() {
    let nodes = QuorumNodes::start(3).await;
    let path = Forgetful::before(nodes.node(0).address()).await;
    let url = nodes.url().replace(&nodes.node(0).address(), &path.address);
    let (store, kit) = store_at(&url).await.unwrap();
    until_all_vote(&kit).await;
    // It listens while a request waits.
    granted(&store, "a", LONG_MS).await;
    let waits = store.clone();
    let _waiting = AbortOnDropHandle::new(tokio::spawn(async move {
        waits.acquire(request("a", LONG_MS, LONG_MS)).await
    }));
    let subscribed = || async {
        let count: (String, usize) =
            nodes.node(0).run(&["PUBSUB", "NUMSUB", "{fence:default}:q:wake"]).await;
        count.1
    };
    until_true("a subscription", || async { subscribed().await == 1 }).await;
    path.forget_all();
    // The node still counts the subscription that no server reads.
    until_true("another subscription", || async { subscribed().await == 2 }).await;
}

/// If most records are of locks that are free, pages are short, and the last has the held one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_names_make_short_pages() {
    let nodes = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    let fill = "for at = 1, 2500 do \
                redis.call('SET', '{fence:default}:q:l:idle/' .. at, '\\n') end";
    for node in nodes.nodes() {
        node.run::<()>(&["EVAL", fill, "0"]).await;
    }
    for lock in ["held", "idle/1500", "zz"] {
        granted(&store, lock, LONG_MS).await;
    }
    let (pages, locks) = pages(&store, "").await;
    assert_eq!(locks, ["held", "idle/1500", "zz"]);
    assert!(pages > 2, "{pages} pages of 2503 names");
    let (_, locks) = self::pages(&store, "idle/").await;
    assert_eq!(locks, ["idle/1500"]);
    assert_eq!(self::pages(&store, "he").await, (1, vec!["held".to_owned()]));
}

async fn pages(store: &Store, prefix: &str) -> (usize, Vec<String>) {
    let mut pages = 0;
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let query =
            ListQuery { prefix: prefix.to_owned(), after: after.clone(), limit: 2, owner: None };
        let LockPage { locks, next_after } =
            until("a page", || async { unless_late(store.list(query.clone()).await) }).await;
        assert!(locks.len() <= 2, "{locks:?}");
        found.extend(locks.into_iter().map(|line| line.lock.to_string()));
        pages += 1;
        assert!(next_after.is_none() || next_after > after, "{next_after:?} after {after:?}");
        after = match next_after {
            Some(next) => Some(next),
            None => return (pages, found),
        };
    }
}
