//! lock-server as the user that docs/operating/quorum.md makes at every node, with everything else
//! refused.

use fence_protocol::Namespace;
use fence_tests::conformance::lock_store;
use fence_tests::history::History;
use fence_tests::key_file::lease_id;
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::redis_server::Redis;
use fence_tests::redis_users::User;
use fence_tests::servers::Setup;
use fence_tests::store_options;
use fence_tests::wait::{soon, until, until_true};
use lock_server::engines::options::StoreOptions;
use lock_server::store::{Limits, ListQuery};
use serde_json::json;
use service_kit::Kit;

use super::opening::{name, request};
use super::program::{Client, until_all_vote, until_line};
use super::redlock::judge;

const USER: User<'_> = User { name: "locks", password: "s3cret", prefix: "", namespace: "default" };

/// Commands, keys or channels that Redis has refused to a user, newest first.
async fn refused(redis: &Redis) -> Vec<String> {
    let log: Vec<Vec<redis::Value>> = redis.run(&["ACL", "LOG"]).await;
    let object = |entry: Vec<redis::Value>| {
        let at = entry.iter().position(|field| text(field).as_deref() == Some("object"))?;
        text(entry.get(at + 1)?)
    };
    log.into_iter().filter_map(object).collect()
}

fn text(value: &redis::Value) -> Option<String> {
    redis::from_redis_value(value.clone()).ok()
}

async fn nothing_refused(nodes: &QuorumNodes) {
    for node in nodes.nodes() {
        assert_eq!(refused(node).await, Vec::<String>::new());
    }
}

/// Runs each case in a namespace of its own, as a user of its own.
macro_rules! run_as_least {
    ($nodes:expr; $($case:ident)*) => {
        $({
            let name = stringify!($case);
            let user = User { name, namespace: name, ..USER };
            $nodes.make(&user).await;
            let namespace: Namespace = name.parse().unwrap();
            let options = StoreOptions { namespace, ..store_options::patient() };
            let url = $nodes.url_as(&user).parse().unwrap();
            let store = lock_server::engines::open(&url, &options, &Kit::new("acl")).await.unwrap();
            lock_store::$case(&store).await;
            nothing_refused(&$nodes).await;
        })*
    };
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_rights_are_enough() {
    let nodes = QuorumNodes::start(3).await;
    run_as_least!(nodes;
        what_is_shown_is_what_was_asked
        pages_are_complete_and_in_order
        an_expired_lease_is_gone_loudly
        a_renewal_replaces_the_time_and_keeps_the_token
        a_release_that_overtakes_its_acquire_wins
        waiters_are_served_in_order
        expiry_wakes_the_next_waiter
        an_undelivered_grant_is_rolled_back
        revoking_wakes_the_next_waiter
        a_guards_mark_is_exceeded
    );
}

/// Two programs that wake each other's waiters, a node that was emptied and rejoins, one that
/// restarts, and a majority that forgets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_and_nodes_work_as_the_least_user() {
    let mut nodes = QuorumNodes::start(3).await;
    nodes.make(&USER).await;
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    std::fs::write(&password, "s3cret\n").unwrap();
    let setup = Setup::lock_server(&nodes.url())
        .args(&["--ended-retention", "200ms", "--store-user", "locks", "--store-password-file"])
        .arg(password.to_str().unwrap());
    let one = setup.start().await;
    let two = setup.start().await;
    until_all_vote(&one).await;
    until_all_vote(&two).await;
    let history = History::new();
    let client = Client::new(&one, &history);
    let other = Client::new(&two, &history);
    let held = client.in_the_end("a", 4_000).await;
    let waits = other.locks.clone();
    let patient = json!({"lease_id": lease_id(), "ttl_ms": 4_000, "wait_ms": 60_000});
    let waiting = tokio::spawn(async move {
        until("a grant", || async {
            let reply = waits.acquire("a", patient.clone()).await;
            (!matches!(reply.status, 503 | 504)).then(|| reply.lease())
        })
        .await
    });
    other.locks.queued("a", &waiting).await;
    client.release("a", held.lease_id).await;
    let next = soon("the other server's waiter", waiting).await.unwrap();
    assert!(next.token > held.token);
    client.release("a", next.lease_id).await;
    for at in 1..=3 {
        // That the settings may be read: no warning that a restart would cost votes.
        until_line(&one, &format!("[+]redis-quorum node {at} "), "ok").await;
    }
    nodes.node(0).run::<()>(&["FLUSHALL"]).await;
    until_line(&one, "[!]redis-quorum node 1", "").await;
    until_all_vote(&one).await;
    nothing_refused(&nodes).await;
    // Users are in no file here, so they are gone with the process.
    nodes.node_mut(1).start_again().await;
    nodes.make_at(1, &USER).await;
    // It has refused the login meanwhile.
    nodes.node(1).run::<()>(&["ACL", "LOG", "RESET"]).await;
    until_all_vote(&one).await;
    for at in [0, 1] {
        nodes.node(at).run::<()>(&["FLUSHALL"]).await;
    }
    until_line(&one, "[!]redis-quorum node 1", "").await;
    until_all_vote(&one).await;
    client.in_passing("a").await;
    nothing_refused(&nodes).await;
    judge(&history);
}

/// A store at which everything is done once, and a node that rejoins; failures are not reported
/// here.
async fn do_everything(nodes: &QuorumNodes) {
    // Nothing is remembered, so that records are deleted.
    let limits = Limits { ended_retention_ms: 0, ..Limits::default() };
    let options = StoreOptions { limits, ..StoreOptions::default() };
    let url = nodes.url_as(&USER).parse().unwrap();
    let Ok(store) = lock_server::engines::open(&url, &options, &Kit::new("acl")).await else {
        return;
    };
    for _ in 0..5 {
        let asked = request("a", 500, 1_000);
        let lease = asked.lease_id;
        let _ = store.acquire(asked).await;
        // One that waits, so that the server listens for the end.
        let _ = store.acquire(request("a", 500, 100)).await;
        let _ = store
            .list(ListQuery { prefix: String::new(), after: None, limit: 10, owner: None })
            .await;
        let _ = store.release(&name("a"), lease).await;
        nodes.node(0).run::<()>(&["FLUSHALL"]).await;
    }
}

/// Each right of the page is one that is used: without it Redis refuses something.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_right_is_given_in_vain() {
    let nodes = QuorumNodes::start(3).await;
    nodes.make(&USER).await;
    for right in QuorumNodes::rights(&USER) {
        for node in nodes.nodes() {
            node.run::<()>(&["ACL", "LOG", "RESET"]).await;
            USER.change(node, &[&right.replacen('+', "-", 1)]).await;
        }
        let object = &right[1..];
        let what = format!("Redis to refuse {object}");
        let is_refused = until_true(&what, || async {
            let mut log = Vec::new();
            for node in nodes.nodes() {
                log.extend(refused(node).await);
            }
            log.iter().any(|refused| refused == object)
        });
        let works = async {
            loop {
                // Every time: the server of an earlier round may have begun a quorum of its own at
                // a node while the others were emptied, and such nodes never vote together.
                for node in nodes.nodes() {
                    node.run::<()>(&["FLUSHALL"]).await;
                }
                do_everything(&nodes).await;
            }
        };
        tokio::select! {
            () = is_refused => {}
            () = works => {}
        }
        for node in nodes.nodes() {
            USER.change(node, &[&right]).await;
        }
    }
}
