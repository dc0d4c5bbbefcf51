//! Requests of tests to lock-server as a program, with the grants recorded as its callers see them.

use std::collections::BTreeMap;

use fence_protocol::LeaseId;
use fence_protocol::wire::lock::LeaseReply;
use fence_tests::api::{Locks, Reply};
use fence_tests::checks;
use fence_tests::history::{Granted, History};
use fence_tests::redis_clock::SteppedRedis;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{until, until_true};
use serde_json::json;

/// Time to live for leases whose length does not matter: a server lets nodes that have forgotten
/// wait for as long as was ever asked for there.
pub(super) const BRIEF_MS: u64 = 300;

/// A server on these nodes; ended ids are soon forgotten, so that nodes that lost their memory do
/// not wait long.
pub(super) async fn server_at(url: &str) -> Server {
    Setup::lock_server(url).args(&["--ended-retention", "200ms"]).start().await
}

async fn readiness(server: &Server) -> String {
    let reply = server.locks().0.get("/readyz?verbose").await;
    String::from_utf8(reply.body.to_vec()).unwrap()
}

/// Waits until the page has one line that begins like this and contains that.
pub(super) async fn until_line(server: &Server, begins: &str, contains: &str) {
    until_true(&format!("a line {begins} … {contains}"), || async {
        let text = readiness(server).await;
        text.lines().any(|line| line.starts_with(begins) && line.contains(contains))
    })
    .await;
}

/// Waits until every node votes, whatever is said of its settings.
pub(super) async fn until_all_vote(server: &Server) {
    until_true("all nodes to vote", || async {
        let text = readiness(server).await;
        let silent = ["not answered", "begun", "is new", "verified", "connected", "rejoined"];
        text.contains("[+]redis-quorum ok") && !silent.iter().any(|why| text.contains(why))
    })
    .await;
}

/// Value of a counter of the server.
pub(super) async fn count(server: &Server, counter: &str) -> u64 {
    let metrics = server.locks().0.get("/metrics").await;
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{counter}_total ")));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// A client of one server.
pub(super) struct Client<'a> {
    pub(super) locks: Locks,
    history: &'a History,
}

impl<'a> Client<'a> {
    pub(super) fn new(server: &Server, history: &'a History) -> Self {
        Self { locks: server.locks(), history }
    }

    /// Asks once, without waiting.
    pub(super) async fn acquire_once(&self, lock: &str, ttl_ms: u64) -> Result<LeaseReply, Reply> {
        let invoked_ns = self.history.now_ns();
        let reply = self.locks.acquire(lock, json!({"ttl_ms": ttl_ms, "wait_ms": 0})).await;
        if reply.status != 200 {
            // 410: the lease has ended before a majority had voted, as it does by a fast clock.
            assert!(matches!(reply.status, 410 | 423 | 503 | 504), "{reply:?}");
            return Err(reply);
        }
        let lease = reply.lease();
        self.history.granted(Granted {
            lock: lock.to_owned(),
            lease: lease.lease_id,
            token: lease.token.get(),
            ttl_ms,
            span: self.history.since(invoked_ns),
            released_ns: None,
            kept_ns: None,
        });
        Ok(lease)
    }

    /// Asks until it is granted, with a new id each time.
    pub(super) async fn in_the_end(&self, lock: &str, ttl_ms: u64) -> LeaseReply {
        until("a grant", || async { self.acquire_once(lock, ttl_ms).await.ok() }).await
    }

    /// Grants it and lets it go, and returns its token.
    pub(super) async fn in_passing(&self, lock: &str) -> u64 {
        let lease = self.in_the_end(lock, BRIEF_MS).await;
        self.release(lock, lease.lease_id).await;
        lease.token.get()
    }

    /// Lets it go, as soon as that can be done.
    pub(super) async fn release(&self, lock: &str, lease: LeaseId) {
        self.history.releasing(lease);
        let reply = until("the lease to be released", || async {
            let reply = self.locks.release(lock, lease).await;
            (!matches!(reply.status, 503 | 504)).then_some(reply)
        })
        .await;
        assert!(matches!(reply.status, 200 | 410), "{reply:?}");
    }

    /// It is not granted to this client, however often it asks.
    pub(super) async fn refused(&self, lock: &str, times: usize) {
        for _ in 0..times {
            let taken = self.acquire_once(lock, BRIEF_MS).await;
            assert!(taken.is_err(), "granted: {taken:?}");
        }
    }

    /// Renews it, so that nodes that missed it are notified, until each of these knows of it.
    pub(super) async fn until_known<N: Node>(&self, nodes: &[&N], lock: &str, lease: LeaseId) {
        for node in nodes {
            until_true("a node to know of the lease", || async {
                let invoked_ns = self.history.now_ns();
                let renewed = self.locks.renew(lock, lease).await;
                if matches!(renewed.status, 503 | 504) {
                    return false;
                }
                self.history.kept(lease, invoked_ns, renewed.lease().ttl_ms);
                let key = format!("{{fence:default}}:q:l:{lock}");
                let record: Option<String> = node.read(&["GET", &key]).await;
                record.is_some_and(|record| record.contains(&lease.to_string()))
            })
            .await;
        }
    }
}

/// A node, whatever its clock.
pub(super) trait Node {
    /// Runs one command that answers with a text or nothing.
    async fn read(&self, words: &[&str]) -> Option<String>;
}

impl Node for Redis {
    async fn read(&self, words: &[&str]) -> Option<String> {
        self.run(words).await
    }
}

impl Node for SteppedRedis {
    async fn read(&self, words: &[&str]) -> Option<String> {
        self.run(words).await
    }
}

/// `redis-quorum:URL,URL,URL`.
pub(super) fn url_of(nodes: [String; 3]) -> String {
    format!("redis-quorum:{}", nodes.join(","))
}

fn by_lock(history: &History) -> BTreeMap<String, Vec<Granted>> {
    let mut by_lock: BTreeMap<String, Vec<Granted>> = BTreeMap::new();
    for grant in history.grants() {
        by_lock.entry(grant.lock.clone()).or_default().push(grant);
    }
    by_lock
}

/// Checks that two clients held this lock at once, as both saw it, with tokens that rose all the
/// same: a hole that docs/reference/guarantees.md names.
pub(super) fn two_held(history: &History, lock: &str) {
    let grants = &by_lock(history)[lock];
    let overlaps = checks::overlaps(grants);
    assert_eq!(overlaps.len(), 1, "the hole is not as the docs say: {grants:?}, {overlaps:?}");
    checks::tokens_rise(grants).unwrap();
    checks::one_grant_an_id(grants).unwrap();
}

/// That the lock was granted twice with one token, to holders at the same time: the worst there is.
pub(super) fn one_token_twice(history: &History, lock: &str) {
    let grants = &by_lock(history)[lock];
    assert_eq!(checks::overlaps(grants).len(), 1, "{grants:?}");
    let broken = checks::tokens_rise(grants).unwrap_err();
    assert!(broken.contains("one token, two leases"), "{broken}");
}
