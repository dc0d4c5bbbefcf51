//! A network that is split between the master and the others.

use super::*;

/// Asks for a grant and a renewal.
async fn asked(locks: &Locks, held: &LeaseReply, lock: &str) -> [Reply; 2] {
    [locks.acquire(lock, json!({"ttl_ms": 60_000})).await, locks.renew("held", held.lease_id).await]
}

/// Neither a grant nor a renewal.
fn is_nothing(replies: &[Reply; 2]) -> bool {
    let refused = "Not enough good replicas";
    let is_refusal = |reply: &Reply| {
        reply.status == 503 && String::from_utf8_lossy(&reply.body).contains(refused)
    };
    replies.iter().all(is_refusal)
}

/// Asks until both are refused for that reason, and none is granted before.
async fn does_nothing(locks: &Locks, held: &LeaseReply, lock: &str) {
    until_true("the old master to say why", || async {
        let replies = asked(locks, held, lock).await;
        for reply in &replies {
            let is_refused = matches!(reply.status, 503 | 504);
            assert!(is_refused, "it continues beside a new master: {reply:?}");
        }
        is_nothing(&replies)
    })
    .await;
}

/// `min-replicas-to-write` of Redis itself: soon after its replicas have left it, an old master
/// neither grants nor renews, for as long as it stays in use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_master_that_wants_replicas_stops_by_itself() {
    let mut group = WholeGroup::start().await;
    for at in 0..3 {
        group.node_mut(at).set("min-replicas-to-write", "1").await;
        group.node_mut(at).set("min-replicas-max-lag", "2").await;
    }
    let start =
        async |url: String| Setup::lock_server(&url).args(&["--after-loss", "grant"]).start().await;
    let servers = [start(group.url_here()).await, start(group.url_there()).await];
    let [here, there] = [servers[0].locks(), servers[1].locks()];
    let held = granted(&here, "held").await;
    let old = group.one_master().await;
    group.split(old);
    let mut count = 0;
    until_true("the old master to stop", || {
        count += 1;
        let lock = format!("here/{count}");
        let here = &here;
        let held = &held;
        async move { is_nothing(&asked(here, held, &lock).await) }
    })
    .await;

    group.another_master(old).await;
    let mut last = granted(&there, "a").await;
    assert!(last.token > held.token);
    for number in 0..20 {
        does_nothing(&here, &held, &format!("idle/{number}")).await;
        let next = granted(&there, &format!("there/{number}")).await;
        assert!(next.token > last.token, "{next:?} after {last:?}");
        last = next;
    }
    let role: redis::Value = group.node(old).run(&["ROLE"]).await;
    assert!(format!("{role:?}").contains("master"), "it does not know: {role:?}");

    group.heal();
    group.is_whole().await;
    let next = granted(&here, "last").await;
    assert!(next.token > last.token, "{next:?} after {last:?}");
}
