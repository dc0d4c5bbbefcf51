//! Takeovers whose replies are lost, and supervisors that ask different servers at the same time.

use fence_protocol::Code;
use fence_protocol::wire::lock::{EndReason, LeaseReply};
use fence_tests::api::{Locks, Reply};
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::lease_id;
use fence_tests::redis_server::Redis;
use fence_tests::seed::{Seed, rounds};
use fence_tests::servers::Setup;
use fence_tests::wait::{soon, until};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::TTL_MS;

const SUPERVISORS: usize = 6;

/// A server that waits for a Redis that is slow.
fn patient(redis: &Redis) -> Setup {
    Setup::lock_server(&redis.url()).args(&["--store-timeout", "30s"])
}

fn life(incarnation: &str) -> Value {
    json!({"owner": "billing", "incarnation": incarnation, "ttl_ms": TTL_MS,
           "lease_id": lease_id()})
}

/// The old lease ended once, as superseded, and nothing else ended.
async fn superseded_once(locks: &Locks, old: &LeaseReply) {
    let shown = locks.show(old.lock.as_str()).await;
    let ends: Vec<_> = shown.history.iter().map(|ended| (ended.lease_id, ended.reason)).collect();
    assert_eq!(ends, [(old.lease_id, EndReason::Superseded)], "{}", old.lock);
}

/// Asks until it is known what became of it.
async fn repeated(locks: &Locks, lock: &str, ask: &Value) -> LeaseReply {
    until("the repeat to be answered", async || {
        let reply = locks.try_acquire(lock, ask.clone()).await.ok()?;
        (!matches!(reply.status, 503 | 504)).then(|| reply.lease())
    })
    .await
}

/// The takeover was carried out and its reply was lost. The repeats, wherever they go, get that
/// grant, and no client takes over from the one that took over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_whose_reply_is_lost_is_one_grant() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let store = format!("redis://{}", proxy.address());
    let hurt = Setup::lock_server(&store).args(&["--store-timeout", "8s"]).start().await;
    let other = patient(&redis).start().await;
    let locks = other.locks();
    for (lock, by_name) in [("lost/life", false), ("lost/named", true)] {
        let old = locks.acquire(lock, life("boot 1")).await.lease();
        let mut ask = life("boot 2");
        match by_name {
            true => ask["takeover_of"] = json!(old.lease_id),
            false => ask["takeover"] = json!(true),
        }
        proxy.set(Fault::DropReplies);
        let unheard = soon("an answer", hurt.locks().acquire(lock, ask.clone())).await;
        unheard.problem(Code::OutcomeUnknown);
        proxy.set(Fault::None);
        proxy.cut();
        let new = locks.acquire(lock, ask.clone()).await.lease();
        assert!(new.token > old.token, "{lock}: {new:?}");
        for at in [&hurt.locks(), &locks] {
            assert_eq!(repeated(at, lock, &ask).await.token, new.token, "{lock}");
        }
        superseded_once(&locks, &old).await;
        let late = locks.renew(lock, old.lease_id).await.problem(Code::LeaseLost);
        assert_eq!(late.extension::<String>("reason").as_deref(), Some("superseded"));
    }
}

/// Checks that one supervisor has the lock, and that the others learnt which. A busy store may have
/// replied to some that it is unavailable, or too late to say what became of the request.
async fn one_took_over(locks: &Locks, old: &LeaseReply, answers: &[Reply]) {
    let lock = old.lock.as_str();
    let won: Vec<LeaseReply> =
        answers.iter().filter(|reply| reply.status == 200).map(Reply::read).collect();
    let holder = locks.show(lock).await.holder.expect("one took over").info.token;
    assert!(holder > old.token, "{lock}: {holder} after {}", old.token);
    let tokens: Vec<_> = won.iter().map(|lease| lease.token).collect();
    let is_unknown = answers.iter().any(|reply| reply.status == 504);
    assert!(tokens == [holder] || (tokens.is_empty() && is_unknown), "{lock}: {won:?}");
    for reply in answers.iter().filter(|reply| !matches!(reply.status, 200 | 503 | 504)) {
        let named: Value = reply.problem(Code::LockHeld).extension("holder").unwrap();
        assert_eq!(named["token"], json!(holder.get()), "{lock}");
    }
}

/// Each supervisor asks another server. One of them gets the lock, the others learn who has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn supervisors_at_different_servers_agree() {
    let redis = Redis::start().await;
    let setup = patient(&redis);
    let servers = [setup.start().await, setup.start().await, setup.start().await];
    let bases: Vec<&str> = servers.iter().map(|server| server.base.as_str()).collect();
    let locks = Locks::round_robin(&bases);
    for round in 0..rounds(20, 500) {
        let lock = format!("agree/{round}");
        let old = locks.acquire(&lock, life("boot 1")).await.lease();
        let mut asked = JoinSet::new();
        for number in 0..SUPERVISORS {
            let locks = locks.clone();
            let lock = lock.clone();
            let mut ask = life(&format!("by supervisor {number}"));
            ask["takeover_of"] = json!(old.lease_id);
            asked.spawn(async move { locks.acquire(&lock, ask).await });
        }
        let answers = soon("every supervisor", asked.join_all()).await;
        one_took_over(&locks, &old, &answers).await;
        superseded_once(&locks, &old).await;
    }
}

/// The server that is asked dies at any moment of a takeover. The repeat at another one gets the
/// same grant, or the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_outlives_the_server_that_was_asked() {
    let mut seed = Seed::of_run("session_faults::takeover");
    let redis = Redis::start().await;
    let setup = patient(&redis);
    let other = setup.start().await;
    let locks = other.locks();
    for round in 0..rounds(4, 100) {
        let mut dying = setup.start().await;
        let lock = format!("dies/{round}");
        let old = locks.acquire(&lock, life("boot 1")).await.lease();
        let mut ask = life("boot 2");
        ask["takeover"] = json!(true);
        let at = dying.locks();
        let name = lock.clone();
        let asked = ask.clone();
        let first = tokio::spawn(async move { at.try_acquire(&name, asked).await });
        tokio::time::sleep(seed.time_ms(0, 6)).await;
        dying.process.kill();
        let reply = soon("an answer, or none", first).await.unwrap();
        let new = repeated(&locks, &lock, &ask).await;
        assert!(new.token > old.token);
        if let Ok(reply) = reply {
            assert_eq!(reply.lease().token, new.token, "{lock}: an answered grant is another");
        }
        superseded_once(&locks, &old).await;
    }
}
