//! The driver step by step, alone and beside another one over the same records.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use fence_protocol::{LeaseId, LockName, Owner, Ttl};
use lease::Machine;
use service_kit::Kit;
use service_kit::clock::{Clock, ManualClock};
use service_kit::tasks::Tasks;
use tokio::task::JoinHandle;

use super::Driver;
use crate::store::records::{Batch, Committed, MemoryRecords, RecordStore, ServerId};
use crate::store::{Acquire, Limits, LockStore, StoreError};

/// A task of its own.
fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    Tasks::new().spawn(work)
}

fn lock(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

fn ask(name: &str, wait_ms: u64) -> Acquire {
    let owner = Owner::new("me").unwrap();
    Acquire {
        wait_ms,
        ..Acquire::new(lock(name), service_kit::ids::lease_id(), owner, Ttl::DEFAULT)
    }
}

fn alone(store: Arc<dyn RecordStore>, kit: &Kit) -> Driver {
    let limits = Limits::default();
    Driver::alone(store, Machine::new(0, limits), limits, kit)
}

fn in_memory() -> Driver {
    let kit = Kit::new("lock-server");
    alone(Arc::new(MemoryRecords::alone(kit.clock.clone())), &kit)
}

/// Two servers over the same records.
fn two() -> [Driver; 2] {
    let kit = Kit::new("lock-server");
    let records = Arc::new(MemoryRecords::new(kit.clock.clone(), 0));
    [1, 2].map(|n| Driver::shared(records.clone(), ServerId(n), Limits::default(), &kit))
}

async fn until_queued(driver: &Driver, name: &str, length: usize) {
    let wait = async {
        while driver.show(&lock(name)).await.unwrap().queue_length != length {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("the queue");
}

async fn holder(driver: &Driver, name: &str) -> Option<LeaseId> {
    driver.show(&lock(name)).await.unwrap().holder.map(|holder| holder.lease_id)
}

/// A caller that leaves while it waits has left every queue; a grant that it does not receive any
/// more is rolled back.
#[tokio::test]
async fn a_caller_that_leaves_holds_nothing() {
    for driver in two().into_iter().take(1).chain([in_memory()]) {
        let held = driver.acquire(ask("a", 0)).await.unwrap();
        let parts = [ask("b", 60_000), ask("a", 60_000)];
        let second = Acquire { lease_id: parts[0].lease_id, ..parts[1].clone() };
        let waiter = driver.clone();
        let waiting =
            spawn(async move { waiter.acquire_all(vec![parts[0].clone(), second]).await });
        until_queued(&driver, "b", 1).await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        until_queued(&driver, "b", 0).await;
        until_queued(&driver, "a", 0).await;
        assert_eq!(holder(&driver, "a").await, Some(held.lease_id));
        driver.release(&lock("a"), held.lease_id).await.unwrap();
        driver.acquire(ask("b", 0)).await.unwrap();
    }
}

/// A lock passes from the waiter of one server to that of the other, in the order of arrival, and
/// tokens rise.
#[tokio::test]
async fn servers_share_one_queue() {
    let drivers = two();
    let mut last = drivers[0].acquire(ask("a", 0)).await.unwrap();
    let mut waiting = Vec::new();
    for n in 0..6 {
        let (driver, request) = (drivers[n % 2].clone(), ask("a", 60_000));
        let id = request.lease_id;
        waiting.push((id, spawn(async move { driver.acquire(request).await })));
        until_queued(&drivers[(n + 1) % 2], "a", n + 1).await;
    }
    for (n, (id, task)) in waiting.into_iter().enumerate() {
        // Through the server that did not grant it.
        drivers[n % 2].release(&lock("a"), last.lease_id).await.unwrap();
        let next = tokio::time::timeout(Duration::from_secs(20), task).await.unwrap();
        let next = next.unwrap().unwrap();
        assert_eq!(next.lease_id, id, "the order of arrival");
        assert!(next.token > last.token);
        last = next;
    }
}

/// A server that does not know how far the other one has counted: every reply names the token that was
/// taken, and not the one that was expected.
#[tokio::test]
async fn every_reply_names_the_token_that_was_taken() {
    let [one, two] = two();
    one.acquire(ask("first", 0)).await.unwrap();
    for name in ["a", "b", "c"] {
        two.acquire(ask(name, 0)).await.unwrap();
    }
    let request = ask("late", 0);
    let granted = one.acquire(request.clone()).await.unwrap();
    assert_eq!(granted.token.get(), 5);
    for driver in [&one, &two] {
        assert_eq!(driver.acquire(request.clone()).await.unwrap().token, granted.token);
        let renewed = driver.renew(&request.lock, request.lease_id, None).await.unwrap();
        assert_eq!(renewed.token, granted.token);
    }
    let ended = one.release(&request.lock, request.lease_id).await.unwrap();
    assert_eq!(ended.token, granted.token);
}

/// Many callers of both servers: one holder at a time, every token above those before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_lock_has_one_holder() {
    let drivers = two();
    let held = Arc::new(AtomicBool::new(false));
    let callers = (0..16).map(|n| {
        let (driver, held) = (drivers[n % 2].clone(), held.clone());
        spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..20 {
                let grant = driver.acquire(ask("a", 60_000)).await.unwrap();
                assert!(!held.swap(true, Ordering::SeqCst), "two holders");
                tokens.push(grant.token.get());
                tokio::task::yield_now().await;
                held.store(false, Ordering::SeqCst);
                driver.release(&lock("a"), grant.lease_id).await.unwrap();
            }
            assert!(tokens.is_sorted());
            tokens
        })
    });
    let mut all = Vec::new();
    for caller in callers.collect::<Vec<_>>() {
        all.extend(caller.await.unwrap());
    }
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!((count, all.len()), (320, 320), "unique");
}

/// A log on a disk that is full, or slow.
#[derive(Debug)]
struct Disk {
    clock: Arc<ManualClock>,
    is_full: bool,
}

#[async_trait]
impl RecordStore for Disk {
    fn name(&self) -> &'static str {
        "disk"
    }

    fn is_alone(&self) -> bool {
        true
    }

    fn now_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    async fn commit(&self, batch: Batch) -> Result<Committed, StoreError> {
        if self.is_full {
            return Err(StoreError::Unknown("no space left on device".to_owned()));
        }
        self.clock.advance(300);
        let groups = batch.groups.iter().map(|_| Ok(())).collect();
        Ok(Committed { base: batch.counter, now_ms: None, groups })
    }
}

/// L4: nothing is answered before it is durable, and after a failed commit nothing is served.
#[tokio::test]
async fn a_commit_that_fails_answers_nobody_and_ends_the_service() {
    let clock = Arc::new(ManualClock::new(0, 0));
    let kit = Kit::new("lock-server").with_clock(clock.clone());
    let driver = alone(Arc::new(Disk { clock, is_full: true }), &kit);
    let outcome = driver.acquire(ask("a", 0)).await;
    assert!(matches!(outcome, Err(StoreError::Unknown(_))), "{outcome:?}");
    let outcome = driver.acquire(ask("a", 0)).await;
    assert!(matches!(outcome, Err(StoreError::Unavailable(_))), "{outcome:?}");
    assert!(!kit.health.is_ready());
    assert!(kit.health.report(false).text().contains("no space left on device"));
}

/// A decision that panics may have taken a record out and not put it back: the lock is not free.
#[tokio::test]
async fn after_a_panic_nothing_is_decided() {
    let kit = Kit::new("lock-server");
    let driver = alone(Arc::new(MemoryRecords::alone(kit.clock.clone())), &kit);
    driver.acquire(ask("a", 0)).await.unwrap();
    let broken = driver.clone();
    let panicking = spawn(async move {
        let work = |_: &mut Machine, _| -> Result<(), StoreError> { panic!("on purpose") };
        broken.call(Vec::new(), work).await
    });
    assert!(panicking.await.unwrap_err().is_panic());
    let outcome = driver.acquire(ask("a", 0)).await;
    assert!(matches!(outcome, Err(StoreError::Unavailable(_))), "{outcome:?}");
    assert!(!kit.health.is_ready());
}

/// After its journal failed the driver rests, whatever is due in memory.
#[tokio::test]
async fn a_driver_whose_journal_failed_rests() {
    let clock = Arc::new(ManualClock::new(0, 0));
    let kit = Kit::new("lock-server").with_clock(clock.clone());
    let driver = alone(Arc::new(Disk { clock: clock.clone(), is_full: true }), &kit);
    driver.acquire(ask("a", 0)).await.unwrap_err();
    clock.advance(2 * Ttl::DEFAULT.ms());
    let rest = async {
        while kit.tasks.running() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), rest).await.expect("nothing looks any more");
}

/// What is promised of a lease's time is what remains after the commit.
#[tokio::test]
async fn the_time_of_a_commit_is_not_promised() {
    let clock = Arc::new(ManualClock::new(0, 0));
    let kit = Kit::new("lock-server").with_clock(clock.clone());
    let driver = alone(Arc::new(Disk { clock, is_full: false }), &kit);
    let (request, most) = (ask("a", 0), Ttl::DEFAULT.ms() - 300);
    let granted = driver.acquire(request.clone()).await.unwrap();
    assert_eq!(granted.remaining_ms, most);
    let renewed = driver.renew(&request.lock, request.lease_id, None).await.unwrap();
    assert!(renewed.remaining_ms <= Ttl::DEFAULT.ms(), "{renewed:?}");
    let several = driver.acquire_all(vec![ask("b", 0)]).await.unwrap();
    assert_eq!(several[0].remaining_ms, most);
}
