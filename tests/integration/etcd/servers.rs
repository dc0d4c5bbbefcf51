//! Several lock servers on one etcd, and what becomes of the waiters and leases of one that dies.

use fence_protocol::wire::lock::LeaseReply;
use fence_tests::api::{Locks, Reply};
use fence_tests::etcd_server::Etcd;
use fence_tests::load::check;
use fence_tests::seed::{Seed, rounds};
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until_true};
use serde_json::json;
use tokio::task::JoinHandle;

use super::{LONG_MS, answered, load, patient, until_ready};

/// A server whose waiters are passed over soon after it died.
fn mortal(etcd: &Etcd) -> Setup {
    patient(&etcd.url()).args(&["--liveness", "3s"])
}

fn wait_for(locks: &Locks, lock: &str) -> JoinHandle<Reply> {
    let locks = locks.clone();
    let lock = lock.to_owned();
    let ask = json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS});
    // One that is killed answers nothing.
    tokio::spawn(async move { locks.try_acquire(&lock, ask).await.expect("an answer") })
}

async fn granted(waiting: JoinHandle<Reply>) -> LeaseReply {
    soon("the grant", waiting).await.expect("no panic").lease()
}

/// First come, first served, whichever server they came to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_served_in_order_over_all_servers() {
    let etcd = Etcd::start().await;
    let setup = patient(&etcd.url());
    let servers = [setup.start().await, setup.start().await, setup.start().await];
    let mut held = servers[2].locks().grant("fifo", LONG_MS).await;
    let mut waiting = Vec::new();
    for number in 0..9 {
        waiting.push(wait_for(&servers[number * 2 % 3].locks(), "fifo"));
        servers[number % 3].locks().queue_of("fifo", number + 1).await;
    }
    for (number, waiter) in waiting.into_iter().enumerate() {
        let locks = servers[(number + 1) % 3].locks();
        // No client overtakes the waiters.
        let refused = locks.acquire("fifo", json!({"ttl_ms": LONG_MS})).await;
        assert_eq!(refused.status, 423, "{refused:?}");
        locks.release("fifo", held.lease_id).await.expect(200);
        let next = granted(waiter).await;
        assert!(next.token > held.token);
        held = next;
    }
}

/// Servers die under load and come back; what they had granted lives on at the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_may_die_under_load() {
    let mut seed = Seed::of_run("etcd::servers::each_may_die_under_load");
    let etcd = Etcd::start().await;
    let mut setups = Vec::new();
    let mut servers = Vec::new();
    for _ in 0..3 {
        let setup = mortal(&etcd).listen(format!("127.0.0.1:{}", fence_tests::ports::unused()));
        servers.push(setup.start().await);
        setups.push(setup);
    }
    let bases: Vec<String> = servers.iter().map(|server| server.base.clone()).collect();
    let bases: Vec<&str> = bases.iter().map(String::as_str).collect();
    let locks = Locks::round_robin(&bases);
    let (load, _guard) = load(vec![locks.clone()], &mut seed).await;
    for round in 0..rounds(3, 60) {
        load.progress(4).await;
        tokio::time::sleep(seed.time_ms(0, 60)).await;
        servers[round % 3].process.kill();
        load.progress(4).await;
        servers[round % 3] = setups[round % 3].start().await;
    }
    load.progress(10).await;
    let (history, finally) = load.stop().await;
    check(&history, &finally);
    assert!(locks.0.answers().iter().all(|count| *count > 0), "a server took no part");
}

/// The first waiters' server dies. They are passed over, and the waiter behind them is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_waiters_of_a_dead_server_are_passed_over() {
    let etcd = Etcd::start().await;
    let mut dying = mortal(&etcd).start().await;
    let other = mortal(&etcd).start().await;
    let locks = other.locks();
    let held = locks.grant("passed", LONG_MS).await;
    let gone = [wait_for(&dying.locks(), "passed"), wait_for(&dying.locks(), "passed")];
    locks.queue_of("passed", 2).await;
    let behind = wait_for(&locks, "passed");
    locks.queue_of("passed", 3).await;
    dying.process.kill();
    locks.release("passed", held.lease_id).await.expect(200);
    assert!(granted(behind).await.token > held.token);
    for waiter in gone {
        assert!(soon("the end of the connection", waiter).await.is_err(), "a dead server answered");
    }
}

/// The server that granted a lease is gone; another one that saw it ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leases_of_a_dead_server_end_by_the_others_clocks() {
    let etcd = Etcd::start().await;
    let mut dying = mortal(&etcd).start().await;
    let other = mortal(&etcd).start().await;
    let short = dying.locks().grant("short", 4_000).await;
    let long = dying.locks().grant("long", LONG_MS).await;
    let waiting = wait_for(&other.locks(), "short");
    other.locks().queued("short", &waiting).await;
    dying.process.kill();
    assert!(granted(waiting).await.token > short.token);
    let late = other.locks().renew("short", short.lease_id).await;
    assert_eq!(late.status, 410, "{late:?}");
    assert_eq!(late.json()["reason"], "expired");
    // A lease with time left is kept, and any server renews it.
    let renewed = other.locks().renew("long", long.lease_id).await.lease();
    assert_eq!(renewed.token, long.token);
}

/// Waits until one of two servers does not count as alive any more, and the other one knows.
async fn until_alone(etcd: &Etcd) {
    until_true("a server to count as dead", || async {
        etcd.range("fencepost/default/v/").await.len() == 1
    })
    .await;
    tokio::time::sleep(std::time::Duration::from_millis(3_100)).await;
}

/// A server is paused for longer than it counts as alive, and its waiter is passed over. When it
/// resumes, it does not grant from what it had read: the lock is another's by now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_waiter_of_a_paused_server_is_passed_over() {
    let etcd = Etcd::start().await;
    let still = mortal(&etcd).start().await;
    let other = mortal(&etcd).start().await;
    let locks = other.locks();
    let held = locks.grant("turn", LONG_MS).await;
    let first = wait_for(&still.locks(), "turn");
    locks.queue_of("turn", 1).await;
    still.process.pause();
    let second = wait_for(&locks, "turn");
    locks.queue_of("turn", 2).await;
    until_alone(&etcd).await;
    locks.release("turn", held.lease_id).await.expect(200);
    let now = granted(second).await;
    still.process.resume();
    until_ready(&still).await;
    // Its position is back in the queue, or its client has been refused.
    until_true("the first waiter to be settled", || async {
        first.is_finished() || locks.show("turn").await.queue_length == 1
    })
    .await;
    let holder = locks.show("turn").await.holder.expect("an acknowledged lease was taken away");
    assert_eq!(holder.lease_id, now.lease_id);
    assert_eq!(locks.renew("turn", now.lease_id).await.lease().token, now.token);
    locks.release("turn", now.lease_id).await.expect(200);
    let late = soon("the first waiter's answer", first).await.unwrap();
    if late.status == 200 {
        assert!(late.lease().token > now.token, "it was granted by what it knew");
    } else {
        assert!(matches!(late.status, 503 | 504), "{late:?}");
    }
}

/// The server is paused as above, but the lock became free meanwhile: no waiter waits for a free
/// lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_server_serves_its_waiters_when_it_resumes() {
    let etcd = Etcd::start().await;
    let still = mortal(&etcd).start().await;
    let other = mortal(&etcd).start().await;
    let locks = other.locks();
    let held = locks.grant("free", LONG_MS).await;
    let waiting = wait_for(&still.locks(), "free");
    locks.queue_of("free", 1).await;
    still.process.pause();
    until_alone(&etcd).await;
    locks.release("free", held.lease_id).await.expect(200);
    still.process.resume();
    let late = soon("the waiter's answer", waiting).await.unwrap();
    if late.status == 200 {
        assert!(late.lease().token > held.token);
    } else {
        assert!(matches!(late.status, 503 | 504), "{late:?}");
    }
}

/// A server that shuts down removes its waiters, and they hold no other waiter up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_in_good_order_leaves_no_waiter() {
    let etcd = Etcd::start().await;
    let (mut ending, other): (Server, Server) =
        (patient(&etcd.url()).start().await, patient(&etcd.url()).start().await);
    let locks = other.locks();
    let held = locks.grant("ends", LONG_MS).await;
    let first = wait_for(&ending.locks(), "ends");
    locks.queue_of("ends", 1).await;
    let second = wait_for(&locks, "ends");
    locks.queue_of("ends", 2).await;
    ending.process.terminate();
    ending.process.ended().await;
    let refused = soon("the first waiter's answer", first).await;
    assert!(refused.is_err() || matches!(refused.unwrap().status, 503 | 504));
    locks.release("ends", held.lease_id).await.expect(200);
    assert!(granted(second).await.token > held.token);
}

/// An acquire and a release of a lock that no other client wants are an entry of etcd's log each,
/// and nothing is left of a lock that was idle for long enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pair_is_two_entries_of_the_log_and_leaves_nothing() {
    const PAIRS: u64 = 100;
    let etcd = Etcd::with(&["--unsafe-no-fsync"]).await;
    let server = patient(&etcd.url()).args(&["--ended-retention", "1s"]).start().await;
    let locks = server.locks();
    locks.grant("warm", 1_000).await;
    let before = etcd.log_length().await;
    for number in 0..PAIRS {
        let lock = format!("pair/{number}");
        let lease = locks.grant(&lock, LONG_MS).await;
        locks.release(&lock, lease.lease_id).await.expect(200);
    }
    let grown = etcd.log_length().await - before;
    // The server also says that it lives, and removes what is over.
    assert!((2 * PAIRS..2 * PAIRS + 60).contains(&grown), "{grown} entries for {PAIRS} pairs");
    until_true("nothing to be left", async || etcd.range("fencepost/default/l/").await.is_empty())
        .await;
}

/// While a server looks at etcd, others of its requests go on and see later revisions. That is no
/// older etcd: the offset of the tokens is lifted at the start, and never again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_has_no_doubts_of_its_etcd() {
    let etcd = Etcd::with(&["--unsafe-no-fsync"]).await;
    let server = patient(&etcd.url()).start().await;
    let busy = (0..8).map(|number| {
        let locks = server.locks();
        tokio::spawn(async move {
            let lock = format!("busy/{number}");
            let lease = locks.grant(&lock, LONG_MS).await;
            for _ in 0..rounds(300, 10_000) {
                answered(|| locks.renew(&lock, lease.lease_id)).await.expect(200);
            }
        })
    });
    for worker in busy.collect::<Vec<_>>() {
        worker.await.expect("no panic");
    }
    let metrics = server.locks().0.get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let lifts = metrics.lines().find(|line| line.starts_with("fencepost_lock_etcd_lifts_total"));
    assert_eq!(lifts, Some("fencepost_lock_etcd_lifts_total 1"), "{metrics}");
}

/// A server that does not know yet that another one is gone still sends it messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_to_a_server_that_is_gone_do_not_stay() {
    let etcd = Etcd::start().await;
    let server = patient(&etcd.url()).start().await;
    server.locks().grant("warm", LONG_MS).await;
    for number in 0..600 {
        etcd.put(&format!("fencepost/default/n/00000007/l/{number}"), "").await;
    }
    until_true("nothing to be left", async || etcd.range("fencepost/default/n/").await.is_empty())
        .await;
}
