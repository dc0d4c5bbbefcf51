//! lock-server before a group of sentinels: it follows the master, and begins a new lineage at
//! each.

mod alone;
mod another;
mod apart;
mod chosen_again;
mod emptied;
mod later_master;

use fence_protocol::Code;
use fence_protocol::wire::lock::LeaseReply;
use fence_tests::api::{Locks, Reply};
use fence_tests::campaign::load::Clients;
use fence_tests::checks::{one_grant_an_id, tokens_rise};
use fence_tests::key_file::lease_id;
use fence_tests::redis_sentinel::SentinelGroup;
use fence_tests::seed::Seed;
use fence_tests::sentinel_group::WholeGroup;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until, until_true};
use serde_json::json;

async fn server(group: &WholeGroup, args: &[&str]) -> Server {
    Setup::lock_server(&group.url()).args(args).start().await
}

/// The lineage that a server has begun at this Redis, none of those `before`.
async fn lineage(group: &WholeGroup, at: usize, before: &[String]) -> String {
    until("a lineage", || async {
        let found = group.node(at).try_run::<String>(&["GET", "{fence:default}:lineage"]).await;
        found.ok().filter(|found| !before.contains(found))
    })
    .await
}

/// `true` if this Redis is a replica in step with its master.
async fn follows(group: &WholeGroup, at: usize) -> bool {
    let info = group.node(at).try_run::<String>(&["INFO", "replication"]).await;
    let info = info.unwrap_or_default();
    info.contains("role:slave") && info.contains("master_link_status:up")
}

/// Until the lease is renewed, where it may be, or known to be lost.
async fn renewed(locks: &Locks, lock: &str, lease: fence_protocol::LeaseId) -> u16 {
    until("an answer about the lease", || async {
        let reply = locks.renew(lock, lease).await;
        (!matches!(reply.status, 503 | 504)).then_some(reply.status)
    })
    .await
}

/// Releases a lease, by then or already.
async fn released(locks: &Locks, lock: &str, lease: fence_protocol::LeaseId) {
    until_true("a release", || async {
        let reply = locks.release(lock, lease).await;
        assert!(matches!(reply.status, 200 | 410 | 503 | 504), "{reply:?}");
        matches!(reply.status, 200 | 410)
    })
    .await;
}

/// The next grant of a lock, as soon as a server grants.
async fn granted(locks: &Locks, lock: &str) -> LeaseReply {
    let ask = json!({"ttl_ms": 60_000, "lease_id": lease_id()});
    until("a grant", || async {
        let reply = locks.acquire(lock, ask.clone()).await;
        (!matches!(reply.status, 503 | 504)).then(|| reply.lease())
    })
    .await
}

/// Waits until every Redis of the group has the lease.
async fn has_arrived(group: &WholeGroup, lock: &str) {
    let key = format!("{{fence:default}}:lock:{lock}");
    for at in 0..3 {
        until_true("the lease to arrive", || async {
            group.node(at).run::<u64>(&["EXISTS", &key]).await == 1
        })
        .await;
    }
}

/// A master that is replaced, and one that dies: tokens rise over the whole history, and waiters
/// continue to wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failovers_are_followed_under_load() {
    let mut group = WholeGroup::start().await;
    let servers = [server(&group, &[]).await, server(&group, &[]).await];
    let locks = [servers[0].locks(), servers[1].locks()];
    let mut seed = Seed::of_run("failovers_are_followed_under_load");
    let clients = Clients::start(&locks, 8, &mut seed);
    let held = locks[0].grant("held", 2_000).await;
    let own = locks[1].clone();
    let waiting = tokio::spawn(async move {
        // Short, because grants wait for it after a loss.
        own.acquire("held", json!({"ttl_ms": 6_000, "wait_ms": 60_000})).await
    });
    locks[1].queued("held", &waiting).await;
    clients.progress(40).await.unwrap();
    let first = group.one_master().await;
    let mut lineages = vec![lineage(&group, first, &[]).await];

    let second = group.fail_over().await;
    clients.progress(40).await.unwrap();
    let next = lineage(&group, second, &lineages).await;
    lineages.push(next);
    group.is_whole().await;

    group.node_mut(second).kill();
    let third = group.another_master(second).await;
    clients.progress(40).await.unwrap();
    let next = lineage(&group, third, &lineages).await;
    lineages.push(next);

    let next = soon("the grant", waiting).await.unwrap().lease();
    assert!(next.token > held.token);
    lineages.sort_unstable();
    lineages.dedup();
    assert_eq!(lineages.len(), 3, "{lineages:?}");
    let grants = clients.stop().await.history.grants();
    tokens_rise(&grants).unwrap();
    one_grant_an_id(&grants).unwrap();
}

/// A master that was paused while another took its place still takes itself for one when it
/// resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_master_that_comes_back_is_not_used() {
    let group = WholeGroup::start().await;
    let server = server(&group, &["--store-timeout", "3s"]).await;
    let locks = server.locks();
    let before = locks.grant("a", 3_000).await;
    let old = group.one_master().await;
    group.node(old).process().pause();
    let new = group.another_master(old).await;
    let lease = lease_id();
    let granted = until("a grant of the new master", || async {
        let ask = json!({"lease_id": lease, "ttl_ms": 60_000, "wait_ms": 5_000});
        let reply = locks.acquire("b", ask).await;
        (reply.status == 200).then(|| reply.lease())
    })
    .await;
    assert!(granted.token > before.token);
    group.node(old).process().resume();
    // Each is asked for after the reply to the one before.
    let mut tokens = vec![granted.token];
    soon("the old master to follow", async {
        while !follows(&group, old).await {
            let reply = locks.acquire("c", json!({"ttl_ms": 60_000})).await;
            if reply.status == 200 {
                let lease = reply.lease();
                tokens.push(lease.token);
                locks.release("c", lease.lease_id).await;
            }
        }
    })
    .await;
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    let last = tokens[tokens.len() - 1];
    let counter: u64 = group.node(new).run(&["GET", "{fence:default}:token"]).await;
    assert!(counter >= last.get(), "{counter}, and {last} was issued");
    assert_eq!(renewed(&locks, "b", lease).await, 200);
}

/// WAIT is for this: an acknowledged lease is there after the master died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_the_replicas_have_survives_the_master() {
    let mut group = WholeGroup::start().await;
    let args = ["--wait-replicas", "2", "--wait-timeout", "2s", "--after-loss", "grant"];
    let server = server(&group, &args).await;
    let locks = server.locks();
    for round in 0..2 {
        let lock = format!("a/{round}");
        let lease = lease_id();
        let ask = json!({"lease_id": lease, "ttl_ms": 60_000, "wait_ms": 20_000});
        let old = until("a grant that both replicas have", || async {
            let reply = locks.acquire(&lock, ask.clone()).await;
            if reply.status != 200 {
                return None;
            }
            group.master().await
        })
        .await;
        group.node_mut(old).kill();
        group.another_master(old).await;
        assert_eq!(renewed(&locks, &lock, lease).await, 200, "the lease was lost");
        released(&locks, &lock, lease).await;
        group.node_mut(old).start_again().await;
        group.is_whole().await;
    }
}

/// Sentinels that do not know, do not agree, or are too few: one sentence each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_sentinels_do_not_know_is_said() {
    let one = SentinelGroup::start().await;
    let other = SentinelGroup::start().await;
    let here = one.address();
    let there = other.address();
    let master = fence_tests::redis_sentinel::MASTER;
    for (url, reasons) in [
        (format!("{here}/unknown"), ["no sentinel says where the master", "knows no such master"]),
        (format!("{here},{there}/{master}"), ["do not agree", &here]),
        (
            format!("{here},127.0.0.1:1,127.0.0.1:2/{master}"),
            ["only 1 of 3 sentinels", "at least 2"],
        ),
        (format!("127.0.0.1:1/{master}"), ["no sentinel says where the master", "127.0.0.1:1"]),
    ] {
        let said = Setup::lock_server(&format!("redis-sentinel://{url}")).refused().await;
        for reason in reasons {
            assert!(said.stderr.contains(reason), "{reason}: {}", said.stderr);
        }
    }
    // Two of three are enough.
    let url = format!("redis-sentinel://{here},127.0.0.1:1/{master}");
    let server = Setup::lock_server(&url).start().await;
    server.locks().grant("a", 60_000).await;
}

/// The master is gone and no other takes its place: 503, and the lease is there when it comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_master_nothing_is_granted() {
    let mut group = SentinelGroup::start().await;
    let server = Setup::lock_server(&group.url()).args(&["--after-loss", "grant"]).start().await;
    let locks = server.locks();
    let lease = lease_id();
    let ask = json!({"lease_id": lease, "ttl_ms": 60_000});
    let token = locks.acquire("a", ask.clone()).await.lease().token;
    // The replica is gone first, so that none can be chosen.
    group.redis_mut(1).kill();
    group.redis_mut(0).kill();
    until_true("503", || async {
        let reply = locks.acquire("b", json!({"ttl_ms": 60_000})).await;
        if reply.status == 503 {
            reply.problem(Code::StoreUnavailable);
        }
        reply.status == 503
    })
    .await;
    group.redis_mut(0).start_again().await;
    until_true("the same lease", || async {
        let reply = locks.acquire("a", ask.clone()).await;
        reply.status == 200 && reply.lease().token == token
    })
    .await;
}
