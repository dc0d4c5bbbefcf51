//! Beginnings of a quorum, and lists of nodes that cannot be one.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, LockName, Namespace, Owner, Token, Ttl};
use fence_tests::conformance::lock_store::Store;
use fence_tests::key_file::lease_id;
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::redis_server::Redis;
use fence_tests::wait::{until, until_true};
use lock_server::engines::open;
use lock_server::engines::options::StoreOptions;
use lock_server::engines::quorum::{QuorumUrl, init_fresh};
use lock_server::engines::redis::key_prefix::KeyPrefix;
use lock_server::store::{Acquire, Grant, Limits, StoreError};
use service_kit::Kit;
use service_kit::process::StartError;

/// Time enough for every test, and the longest wait that a request may ask for.
pub(super) const LONG_MS: u64 = 300_000;
/// Wait of a node that forgot, if no lease is longer.
const BRIEF_MS: u64 = 800;

pub(super) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

pub(super) fn request(lock: &str, ttl_ms: u64, wait_ms: u64) -> Acquire {
    let owner = Owner::new("quorum").unwrap();
    let ttl = Ttl::from_ms(ttl_ms).unwrap();
    Acquire { wait_ms, ..Acquire::new(name(lock), lease_id(), owner, ttl) }
}

/// A store over these nodes, and its health; ended ids are soon forgotten, so that nodes that lost
/// their memory do not wait long.
pub(super) async fn store_at(url: &str) -> Result<(Store, Kit), StartError> {
    let limits = Limits { ended_retention_ms: 200, ..Limits::default() };
    let options = StoreOptions { limits, ..StoreOptions::default() };
    let kit = Kit::new("quorum");
    let store = open(&url.parse().unwrap(), &options, &kit).await?;
    Ok((store, kit))
}

/// The value, or `None` where the nodes took too long: the request is to be repeated.
pub(super) fn unless_late<T>(outcome: Result<T, StoreError>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// A lease of a lock that no other client holds, as soon as the nodes answer in time, with a new id
/// each time. A vote of a request before that could not be rolled back yet may stand in the way.
pub(super) async fn granted(store: &Store, lock: &str, ttl_ms: u64) -> Grant {
    let mut asked = 0;
    until("a grant", || {
        asked += 1;
        let is_repeat = asked > 1;
        async move {
            match store.acquire(request(lock, ttl_ms, 1_000)).await {
                Err(
                    StoreError::Held { .. } | StoreError::Lost { reason: EndReason::Expired, .. },
                ) if is_repeat => None,
                outcome => unless_late(outcome),
            }
        }
    })
    .await
}

/// Waits until a request is refused because another client holds the lock.
pub(super) async fn until_held(store: &Store, lock: &str, ttl_ms: u64) {
    until("a refusal", || async {
        match store.acquire(request(lock, ttl_ms, 0)).await {
            Err(StoreError::Held { .. }) => Some(()),
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => None,
            other => panic!("{other:?}"),
        }
    })
    .await;
}

/// Renews a lease that lives, as soon as the nodes answer in time.
pub(super) async fn renewed(store: &Store, lock: &str, grant: &Grant) {
    let renewed = until("a renewal", || async {
        unless_late(store.renew(&name(lock), grant.lease_id, None).await)
    })
    .await;
    assert_eq!(renewed.token, grant.token);
}

/// Releases a lease that lives, as soon as the nodes answer in time.
pub(super) async fn released(store: &Store, lock: &str, grant: &Grant) {
    let mut asked = 0;
    until("a release", || {
        asked += 1;
        let is_repeat = asked > 1;
        async move {
            match store.release(&name(lock), grant.lease_id).await {
                // The request before it was carried out, and its reply came too late.
                Err(StoreError::Lost { .. }) if is_repeat => Some(()),
                outcome => {
                    let ended = unless_late(outcome)?;
                    assert_eq!((ended.token, ended.reason), (grant.token, EndReason::Released));
                    Some(())
                }
            }
        }
    })
    .await;
}

/// Grants and releases a lock; the token. Tries again while nothing was granted: the lease of a
/// request of unknown outcome may live until it ends by its time.
pub(super) async fn token_of(store: &Store, lock: &str) -> Token {
    until("a grant", || async {
        match store.acquire(request(lock, BRIEF_MS, 1_000)).await {
            Ok(grant) => {
                release(store, lock, grant.lease_id).await;
                Some(grant.token)
            }
            Err(StoreError::Held { .. } | StoreError::Lost { reason: EndReason::Expired, .. }) => {
                None
            }
            outcome => unless_late(outcome).map(|grant| grant.token),
        }
    })
    .await
}

async fn release(store: &Store, lock: &str, lease: LeaseId) {
    match store.release(&name(lock), lease).await {
        Ok(ended) => assert_eq!(ended.reason, EndReason::Released),
        // A busy machine may take longer for this than the lease lives.
        Err(
            StoreError::Unknown(_)
            | StoreError::Unavailable(_)
            | StoreError::Lost { reason: EndReason::Expired, .. },
        ) => {}
        Err(error) => panic!("{error:?}"),
    }
}

/// Waits until a line of `/readyz?verbose` says this.
pub(super) async fn until_said(kit: &Kit, text: &str) {
    until_true(&format!("/readyz to say {text:?}"), || async {
        kit.health.report(false).text().contains(text)
    })
    .await;
}

/// Waits until every node votes.
pub(super) async fn until_all_vote(kit: &Kit) {
    until("every node to vote", || async {
        let report = kit.health.report(false);
        let all = report.checks.iter().filter(|(name, _)| name.starts_with("redis-quorum"));
        all.clone().count().gt(&3).then_some(())?;
        all.map(|(_, status)| status)
            .all(|status| *status == service_kit::health::Status::Ok)
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_quorum_begins_when_all_its_nodes_answer() {
    let mut nodes = QuorumNodes::start(3).await;
    nodes.node_mut(1).kill();
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_true("the refusal that says why", || async {
        match store.acquire(request("a", LONG_MS, 0)).await {
            Err(StoreError::Unavailable(why)) => why.contains("2 of 3 nodes answer"),
            other => panic!("{other:?}"),
        }
    })
    .await;
    assert!(!kit.health.is_ready());
    until_said(&kit, "a new quorum begins when all").await;
    nodes.node_mut(1).start_again().await;
    // New nodes cannot be distinguished from emptied ones: tokens begin above the clock floor.
    let floor = lease::tokens::EPOCH_2025_MS;
    assert!(token_of(&store, "a").await.get() > floor);
    until_all_vote(&kit).await;
    // From now on a majority is enough, also for a server that starts.
    nodes.node_mut(0).kill();
    let (late, kit) = store_at(&nodes.url()).await.unwrap();
    let before = token_of(&store, "a").await;
    assert!(token_of(&late, "a").await > before);
    assert!(kit.health.is_ready());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_that_is_vouched_for_begins_at_one() {
    let nodes = QuorumNodes::start(3).await;
    let url: QuorumUrl = nodes.url().parse().unwrap();
    let namespace = Namespace::default();
    let kit = Kit::new("guards");
    let guards =
        lock_server::guards::Guards::new(&Default::default(), &namespace, &kit.health).unwrap();
    init_fresh(&url, &KeyPrefix::default(), &namespace, &guards).await.unwrap();
    let again = init_fresh(&url, &KeyPrefix::default(), &namespace, &guards).await.unwrap_err();
    assert!(again.contains("in use"), "{again}");
    let (store, _kit) = store_at(&nodes.url()).await.unwrap();
    assert_eq!(token_of(&store, "first").await.get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_names_of_one_node_are_refused() {
    let nodes = QuorumNodes::start(2).await;
    let other_name = nodes.node(0).url().replace("127.0.0.1", "localhost");
    let url = format!("redis-quorum:{},{},{other_name}", nodes.node(0).url(), nodes.node(1).url());
    let error = store_at(&url).await.unwrap_err().to_string();
    assert!(error.contains("are the same Redis"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fewer_than_a_majority_is_no_start() {
    let mut nodes = QuorumNodes::start(3).await;
    nodes.node_mut(0).kill();
    nodes.node_mut(2).kill();
    let error = store_at(&nodes.url()).await.unwrap_err().to_string();
    assert!(error.contains("1 of the quorum's 3 nodes can be used"), "{error}");
    for at in [0, 2] {
        assert!(error.contains(&nodes.node(at).url()), "{error}");
    }
}

/// A replica and a node of a cluster have no vote: the others go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_redis_of_its_own_has_no_vote() {
    let nodes = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    let port = nodes.node(0).address().rsplit_once(':').unwrap().1.to_owned();
    nodes.node(2).run::<()>(&["REPLICAOF", "127.0.0.1", &port]).await;
    nodes.node(2).run::<()>(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    until_said(&kit, "this Redis is a replica").await;
    token_of(&store, "a").await;
    assert!(kit.health.is_ready());

    let bus = fence_tests::ports::unused().to_string();
    let options = [("cluster-enabled", "yes"), ("cluster-port", bus.as_str())];
    let cluster = Redis::with(&options).await;
    let plain = QuorumNodes::start(2).await;
    let one = plain.node(0).url();
    let two = plain.node(1).url();
    let (_store, kit) =
        store_at(&format!("redis-quorum:{},{one},{two}", cluster.url())).await.unwrap();
    until_said(&kit, "this Redis is a node of a cluster").await;
    assert!(!kit.health.is_ready());
}

/// A node of another quorum keeps to its own, also where most of those beside it are new.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_quorum_is_left_to_it() {
    let ours = QuorumNodes::start(3).await;
    let theirs = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&ours.url()).await.unwrap();
    let (other, other_kit) = store_at(&theirs.url()).await.unwrap();
    until_all_vote(&kit).await;
    until_all_vote(&other_kit).await;
    let a = ours.node(0).url();
    let b = ours.node(1).url();
    let c = theirs.node(0).url();
    let (mixed, mixed_kit) = store_at(&format!("redis-quorum:{a},{b},{c}")).await.unwrap();
    until_said(&mixed_kit, "it belongs to another quorum").await;
    let before = token_of(&mixed, "x").await;
    assert!(token_of(&store, "x").await > before);

    let new = QuorumNodes::start(2).await;
    let d = new.node(0).url();
    let e = new.node(1).url();
    let (lost, lost_kit) = store_at(&format!("redis-quorum:{c},{d},{e}")).await.unwrap();
    until_said(&lost_kit, "1 of 3 nodes belong to the quorum").await;
    assert!(matches!(
        lost.acquire(request("x", LONG_MS, 0)).await,
        Err(StoreError::Unavailable(_))
    ));
    until_all_vote(&other_kit).await;
    token_of(&other, "x").await;
}
