//! Two callers with one id at one server: the one that leaves withdraws nothing from the other.

use fence_tests::api::{Locks, Reply};
use fence_tests::etcd_server::Etcd;
use fence_tests::key_file::lease_id;
use fence_tests::wait::{soon, until_true};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{LONG_MS, lock_server, patient};

const ROUNDS: usize = 8;

fn asking(locks: &Locks, lock: &str, ask: &Value) -> JoinHandle<Reply> {
    let locks = locks.clone();
    let lock = lock.to_owned();
    let ask = ask.clone();
    tokio::spawn(async move { locks.acquire(&lock, ask).await })
}

fn own() -> Value {
    json!({"lease_id": lease_id(), "ttl_ms": LONG_MS, "owner": "me", "wait_ms": LONG_MS})
}

/// The moment at which one of the two leaves.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    Before,
    Amid,
    After,
}

async fn one_leaves(when: Leaves) {
    let etcd = Etcd::start().await;
    let server = patient(&etcd.url()).start().await;
    let other = lock_server(&etcd).await;
    let locks = server.locks();
    let other = other.locks();
    for round in 0..ROUNDS {
        let lock = format!("two/{round}");
        let ask = own();
        let held = other.grant(&lock, LONG_MS).await;
        let leaves = asking(&locks, &lock, &ask);
        let stays = asking(&locks, &lock, &ask);
        until_true("both to wait", || async { server.metric("fencepost_lock_waiters").await == 2 })
            .await;
        other.queue_of(&lock, 1).await;
        if matches!(when, Leaves::Before) {
            leaves.abort();
        }
        let releasing = other.release(&lock, held.lease_id);
        if matches!(when, Leaves::Amid) {
            let pause = std::time::Duration::from_millis(2 * round as u64);
            let (released, ()) = tokio::join!(releasing, async {
                tokio::time::sleep(pause).await;
                leaves.abort();
            });
            released.expect(200);
        } else {
            releasing.await.expect(200);
        }
        let lease = soon("the one that stays", stays).await.unwrap().lease();
        leaves.abort();
        // A withdrawal that is under way would have come before this.
        other.grant(&format!("after/{round}"), LONG_MS).await;
        let again = locks.acquire(&lock, ask.clone()).await.lease();
        assert_eq!((again.token, again.lease_id), (lease.token, lease.lease_id));
        assert_eq!(locks.renew(&lock, lease.lease_id).await.lease().token, lease.token);
        assert_eq!(other.show(&lock).await.queue_length, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_callers_leaves_before_the_grant() {
    one_leaves(Leaves::Before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_callers_leaves_with_the_grant() {
    one_leaves(Leaves::Amid).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_callers_leaves_after_the_grant() {
    one_leaves(Leaves::After).await;
}

/// A waiter leaves when its lock becomes free, and its client retries without waiting: the lease
/// reported to the retry is not withdrawn with the waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_that_does_not_wait_is_not_withdrawn_with_the_waiter() {
    let etcd = Etcd::start().await;
    let server = patient(&etcd.url()).start().await;
    let other = lock_server(&etcd).await;
    let locks = server.locks();
    let other = other.locks();
    let mut granted = 0;
    // How soon the repeat has to come depends on how busy the machine is.
    for round in 0..10 * ROUNDS {
        if round >= ROUNDS && granted > 0 {
            break;
        }
        let lock = format!("again/{round}");
        let ask = own();
        let held = other.grant(&lock, LONG_MS).await;
        let waiting = asking(&locks, &lock, &ask);
        other.queue_of(&lock, 1).await;
        let mut now = ask.clone();
        now["wait_ms"] = json!(0);
        let releasing = other.release(&lock, held.lease_id);
        let (released, reply) = tokio::join!(releasing, async {
            tokio::time::sleep(std::time::Duration::from_millis(round as u64 % 16)).await;
            waiting.abort();
            locks.acquire(&lock, now).await
        });
        released.expect(200);
        // It came too early, or too late: the withdrawal has ended the id.
        if reply.status != 200 {
            assert!(matches!(reply.status, 410 | 423 | 503), "{reply:?}");
            continue;
        }
        granted += 1;
        let lease = reply.lease();
        other.grant(&format!("after/{round}"), LONG_MS).await;
        assert_eq!(locks.renew(&lock, lease.lease_id).await.lease().token, lease.token);
        assert_eq!(other.show(&lock).await.holder.unwrap().lease_id, lease.lease_id);
    }
    assert!(granted > 0, "no retry was granted");
}
