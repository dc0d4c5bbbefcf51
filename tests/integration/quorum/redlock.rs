//! Objections to Redlock, done to real nodes: a vote that is forgotten, a clock that jumps, a
//! holder that stalls, replies that come late. Each run is recorded, and its history is checked.

use std::collections::BTreeMap;
use std::time::Duration;

use fence_protocol::LeaseId;
use fence_protocol::wire::lock::{EndReason, LeaseReply};
use fence_tests::checks;
use fence_tests::conformance::lock_store::Store;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::history::{Action, Granted, History, Operation, OperationResult};
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::redis_clock::SteppedRedis;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{DataDir, Setup};
use fence_tests::wait::{soon, until, until_true};
use lock_server::store::{Acquire, Grant, StoreError};
use serde_json::json;

use super::opening::{
    LONG_MS, name, released, renewed, request, store_at, token_of, unless_late, until_all_vote,
    until_held, until_said,
};

/// The record of a lock at a node, as any client of Redis sees it.
const RECORD: &str = "{fence:default}:q:l:";
const META: &str = "{fence:default}:q:meta";

/// A store whose grants are noted.
struct Noted<'a> {
    store: &'a Store,
    history: &'a History,
}

impl Noted<'_> {
    async fn acquire(&self, asked: Acquire) -> Result<Grant, StoreError> {
        let lock = asked.lock.to_string();
        let ttl_ms = asked.ttl.ms();
        let invoked_ns = self.history.now_ns();
        let grant = self.store.acquire(asked).await?;
        self.history.granted(Granted {
            lock,
            lease: grant.lease_id,
            token: grant.token.get(),
            ttl_ms,
            span: self.history.since(invoked_ns),
            released_ns: None,
            kept_ns: None,
        });
        Ok(grant)
    }

    /// Retries until there is a grant, with a new id for each request; while the lock is held,
    /// until it is free. A vote that could not be rolled back expires like a lease, and then its
    /// request is refused as held: the decision on the quorum lists this among its gaps.
    async fn acquire_in_the_end(&self, lock: &str, ttl_ms: u64) -> Grant {
        until("a grant", || async {
            match self.acquire(request(lock, ttl_ms, 2_000)).await {
                Ok(grant) => Some(grant),
                Err(
                    StoreError::Unavailable(_)
                    | StoreError::Unknown(_)
                    | StoreError::Held { .. }
                    | StoreError::Lost { reason: EndReason::Expired, .. },
                ) => None,
                Err(error) => panic!("{error:?}"),
            }
        })
        .await
    }
}

/// The lease is lost, as is known as soon as the nodes answer in time.
async fn is_lost(store: &Store, lock: &str, lease: LeaseId) {
    until("an answer about the lease", || async {
        match store.renew(&name(lock), lease, None).await {
            Err(StoreError::Lost { .. }) => Some(()),
            outcome => {
                let grant = unless_late(outcome)?;
                panic!("it lives: {grant:?}")
            }
        }
    })
    .await;
}

/// Checks of every run; lock by lock, for each counts with its bucket.
pub(super) fn judge(history: &History) {
    let mut by_lock: BTreeMap<String, Vec<Granted>> = BTreeMap::new();
    for grant in history.grants() {
        by_lock.entry(grant.lock.clone()).or_default().push(grant);
    }
    assert!(!by_lock.is_empty(), "nothing was granted: the run shows nothing");
    for grants in by_lock.values() {
        checks::tokens_rise(grants).unwrap();
        checks::one_grant_an_id(grants).unwrap();
        assert_eq!(checks::overlaps(grants), Vec::<String>::new());
    }
}

fn url_of<'a>(nodes: impl IntoIterator<Item = &'a String>) -> String {
    let nodes: Vec<&str> = nodes.into_iter().map(String::as_str).collect();
    format!("redis-quorum:{}", nodes.join(","))
}

async fn state(node: &Redis) -> Option<String> {
    node.run(&["HGET", META, "state"]).await
}

/// A lease lives at two of three nodes. One of the two restarts without its vote, and the third
/// never had one: the two that know nothing must not grant the lock again.
async fn a_vote_is_forgotten(forgets_all: bool) {
    let mut nodes =
        [Redis::start().await, Redis::with(&[("appendonly", "no")]).await, Redis::start().await];
    let urls: Vec<String> = nodes.iter().map(Redis::url).collect();
    let history = History::new();
    let (store, _kit) = store_at(&url_of(&urls)).await.unwrap();
    token_of(&store, "x").await;
    until_true("every node to vote", || async {
        let mut ready = true;
        for node in &nodes {
            ready &= state(node).await.as_deref() == Some("ready");
        }
        ready
    })
    .await;
    if !forgets_all {
        // What it has after the restart is what it was before the lease.
        nodes[1].run::<()>(&["SAVE"]).await;
    }
    nodes[2].kill();
    let first = Noted { store: &store, history: &history };
    let held = first.acquire_in_the_end("x", 8_000).await;
    nodes[1].kill();
    nodes[1].start_again().await;
    nodes[2].start_again().await;
    // Neither the server that granted it nor one that knows nothing yet.
    let (fresh, kit) = store_at(&url_of(&urls)).await.unwrap();
    let second = Noted { store: &fresh, history: &history };
    let in_turn = async |asker: &Noted<'_>| {
        let grant = asker.acquire_in_the_end("x", 2_000).await;
        history.releasing(grant.lease_id);
        let _ = asker.store.release(&name("x"), grant.lease_id).await;
        grant
    };
    let next = tokio::join!(in_turn(&first), in_turn(&second));
    for next in [next.0, next.1] {
        assert!(next.token > held.token && next.lease_id != held.lease_id);
    }
    judge(&history);
    until_true("the node to vote again", || async {
        state(&nodes[1]).await.as_deref() == Some("ready")
    })
    .await;
    let view: u64 = nodes[1].run(&["HGET", META, "view"]).await;
    assert!(view > 1, "it votes again in the view in which it forgot");
    drop(kit);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_restarts_without_anything() {
    a_vote_is_forgotten(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_restarts_as_it_was_before_it_voted() {
    a_vote_is_forgotten(false).await;
}

/// The clock of one node jumps by ten minutes, so that the lease is over there: it alone gives
/// nothing away, also where it is one of the two that are left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_of_a_node_jumps() {
    let jumps = SteppedRedis::start().await;
    let mut others = QuorumNodes::start(2).await;
    let urls = [others.node(0).url(), jumps.url(), others.node(1).url()];
    let history = History::new();
    let (store, _kit) = store_at(&url_of(&urls)).await.unwrap();
    let (fresh, _fresh_kit) = store_at(&url_of(&urls)).await.unwrap();
    let (first, second) =
        (Noted { store: &store, history: &history }, Noted { store: &fresh, history: &history });
    until("the quorum to begin", || async { store.mint(&name("x")).await.ok() }).await;
    let held = first.acquire_in_the_end("x", LONG_MS).await;
    let record = format!("{RECORD}x");
    until_true("the node that jumps to know of the lease", || async {
        // A renewal tops up who missed the grant.
        renewed(&store, "x", &held).await;
        let record: Option<String> = jumps.run(&["GET", &record]).await;
        record.is_some_and(|record| record.contains(&held.lease_id.to_string()))
    })
    .await;
    jumps.step(600);
    for _ in 0..20 {
        until_held(&fresh, "x", LONG_MS).await;
    }
    renewed(&store, "x", &held).await;
    // The node with the wrong clock is needed for every majority from now on.
    others.node_mut(1).kill();
    jumps.step(1_200);
    for _ in 0..10 {
        let refused = second.acquire(request("x", LONG_MS, 100)).await.unwrap_err();
        let nothing = matches!(
            refused,
            StoreError::Held { .. } | StoreError::Unavailable(_) | StoreError::Unknown(_)
        );
        assert!(nothing, "{refused:?}");
    }
    others.node_mut(1).start_again().await;
    renewed(&store, "x", &held).await;
    history.releasing(held.lease_id);
    released(&store, "x", &held).await;
    assert!(second.acquire_in_the_end("x", LONG_MS).await.token > held.token);
    judge(&history);
}

/// The holder stalls beyond its lease and continues as if nothing had been: the guard refuses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_stalls() {
    let nodes = QuorumNodes::start(3).await;
    let server = Setup::lock_server(&nodes.url()).start().await;
    let locks = server.locks();
    let folder = DataDir::new();
    for (lock, store) in [("memory", "memory:".to_owned()), ("embedded", folder.store())] {
        let guard = Setup::fenced_store(&store).start().await;
        let history = History::new();
        let fenced = guard.guard();
        let write = async |lease: &LeaseReply, value: &str| {
            let invoked_ns = history.now_ns();
            let header = lease.fencing_token.as_str();
            let reply = fenced.put(lock, header, value.to_owned()).await;
            let span = history.since(invoked_ns);
            let outcome = if reply.status < 300 {
                OperationResult::Applied
            } else {
                OperationResult::Refused
            };
            let action = Action::Write { key: lock.to_owned(), value: value.to_owned() };
            let token = lease.token.get();
            let lock = lock.to_owned();
            history.operation(Operation { lock, token, action, outcome, span });
            reply.status
        };
        let ask = json!({"ttl_ms": 3_000, "wait_ms": LONG_MS});
        let granted = async || {
            until("a grant", || async {
                let reply = soon("an answer", locks.acquire(lock, ask.clone())).await;
                if reply.status == 410 {
                    // Its time had passed before the server could reply.
                    assert_eq!(reply.json()["reason"], "expired", "{reply:?}");
                    return None;
                }
                (!matches!(reply.status, 503 | 504)).then(|| reply.lease())
            })
            .await
        };
        let stalls = granted().await;
        let written = write(&stalls, "before").await;
        assert!((200..300).contains(&written), "{written}");
        // It is paused; no client renews for it.
        let next = granted().await;
        assert!(next.token > stalls.token);
        let written = write(&next, "of the next holder").await;
        assert!((200..300).contains(&written), "{written}");
        assert_eq!(write(&stalls, "after").await, 412);
        let found = fenced.fenced_get(lock, &next.fencing_token).await.expect(200);
        let found = String::from_utf8(found.body.to_vec()).unwrap();
        let finally = BTreeMap::from([(lock.to_owned(), Some(found))]);
        checks::nothing_stale(&history.operations()).unwrap();
        checks::nothing_lost(&history.operations(), &finally).unwrap();
    }
}

/// Three nodes, two of them behind proxies; a store through the proxies, and one beside them.
struct Late {
    nodes: QuorumNodes,
    proxies: [FaultProxy; 2],
    history: History,
}

impl Late {
    async fn new() -> Self {
        let nodes = QuorumNodes::start(3).await;
        let one = FaultProxy::before(&nodes.node(1).address()).await;
        let two = FaultProxy::before(&nodes.node(2).address()).await;
        Self { nodes, proxies: [one, two], history: History::new() }
    }

    fn url(&self) -> String {
        let proxy = |at: usize| format!("redis://{}", self.proxies[at].address());
        url_of([&self.nodes.node(0).url(), &proxy(0), &proxy(1)])
    }

    fn set(&self, fault: Fault) {
        for proxy in &self.proxies {
            proxy.set(fault);
        }
    }
}

/// A majority needs a node whose replies are late: that time is not the holder's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_votes_took_is_gone_from_the_lease() {
    const EACH_WAY_MS: u64 = 150;
    let late = Late::new().await;
    let (store, kit) = store_at(&late.url()).await.unwrap();
    until_all_vote(&kit).await;
    late.set(Fault::Delay(Duration::from_millis(EACH_WAY_MS)));
    let noted = Noted { store: &store, history: &late.history };
    for round in 0..3 {
        let lock = format!("late/{round}");
        let grant = noted.acquire_in_the_end(&lock, LONG_MS).await;
        let most = LONG_MS - 2 * EACH_WAY_MS;
        assert!(grant.remaining_ms <= most, "{} ms remain", grant.remaining_ms);
        late.history.releasing(grant.lease_id);
        let _ = store.release(&name(&lock), grant.lease_id).await;
    }
    judge(&late.history);
}

/// All votes arrive, and too late for the lease: no grant is acknowledged. When the replies are
/// quick again the lock is free, and nothing lives of what was abandoned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn votes_beyond_the_lease_are_no_grant() {
    let late = Late::new().await;
    let (store, kit) = store_at(&late.url()).await.unwrap();
    until_all_vote(&kit).await;
    // 200 ms each way, and a lease of 150 ms.
    late.set(Fault::Delay(Duration::from_millis(200)));
    let noted = Noted { store: &store, history: &late.history };
    let mut given_up = Vec::new();
    for _ in 0..4 {
        let asked = request("x", 150, 0);
        given_up.push(asked.lease_id);
        match noted.acquire(asked).await {
            Err(
                StoreError::Unavailable(_)
                | StoreError::Unknown(_)
                | StoreError::Held { .. }
                | StoreError::Lost { .. },
            ) => {}
            other => panic!("{other:?}"),
        }
    }
    late.set(Fault::None);
    let next = noted.acquire_in_the_end("x", LONG_MS).await;
    for id in given_up {
        is_lost(&store, "x", id).await;
    }
    renewed(&store, "x", &next).await;
    judge(&late.history);
}

/// Votes are on their way while their proposer stops, and another server grants the lock. When they
/// arrive at last they neither bring the first lease to life nor harm the second, and so do the
/// calls that roll them back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn votes_that_arrive_after_they_were_given_up() {
    let late = Late::new().await;
    let (slow, slow_kit) = store_at(&late.url()).await.unwrap();
    let (quick, kit) = store_at(&late.nodes.url()).await.unwrap();
    until_all_vote(&slow_kit).await;
    until_all_vote(&kit).await;
    let (slow, quick) = (
        Noted { store: &slow, history: &late.history },
        Noted { store: &quick, history: &late.history },
    );
    for round in 0..3 {
        let lock = format!("given-up/{round}");
        late.set(Fault::Blackhole);
        let asked = request(&lock, 600, 0);
        let id = asked.lease_id;
        match slow.acquire(asked).await {
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => {}
            other => panic!("{other:?}"),
        }
        let held = quick.acquire_in_the_end(&lock, LONG_MS).await;
        late.set(Fault::None);
        until_said(&slow_kit, "[+]redis-quorum ok").await;
        // Everything that was on its way has arrived when the nodes answer this on the same ways.
        until_all_vote(&slow_kit).await;
        is_lost(slow.store, &lock, id).await;
        until_held(slow.store, &lock, LONG_MS).await;
        renewed(quick.store, &lock, &held).await;
        late.history.releasing(held.lease_id);
        released(quick.store, &lock, &held).await;
        slow.acquire_in_the_end(&lock, LONG_MS).await;
    }
    judge(&late.history);
}

/// The votes of a majority were accepted and the replies lost: the caller gets an unknown outcome,
/// a repeat gets that very lease or none, and the lock comes free in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_never_come() {
    let late = Late::new().await;
    let (store, kit) = store_at(&late.url()).await.unwrap();
    let noted = Noted { store: &store, history: &late.history };
    for round in 0..3 {
        until_all_vote(&kit).await;
        let lock = format!("unheard/{round}");
        late.set(Fault::DropReplies);
        let asked = request(&lock, 1_000, 0);
        let first = noted.acquire(asked.clone()).await;
        // A ping whose answer was swallowed may have taken a link down before anything was sent.
        let open = matches!(first, Err(StoreError::Unknown(_) | StoreError::Unavailable(_)));
        assert!(open, "{first:?}");
        late.set(Fault::None);
        for proxy in &late.proxies {
            // A reply that was swallowed leaves its connection out of step.
            proxy.cut();
        }
        match noted.acquire(asked).await {
            Ok(_)
            | Err(
                StoreError::Unavailable(_)
                | StoreError::Unknown(_)
                | StoreError::Lost { .. }
                | StoreError::Held { .. },
            ) => {}
            other => panic!("{other:?}"),
        }
        noted.acquire_in_the_end(&lock, 1_000).await;
    }
    judge(&late.history);
}
