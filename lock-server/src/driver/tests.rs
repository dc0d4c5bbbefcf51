//! Unit tests of the driver, alone and beside another one over the same records.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Ttl};
use lease::Machine;
use service_kit::Kit;
use service_kit::clock::{Clock, ManualClock};
use service_kit::tasks::Tasks;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Driver;
use super::background::LOOKS_MAX;
use crate::engines::contract::{
    Batch, Committed, Key, RecordStore, ServerId, Snapshot, WAKEUPS_MAX, Wakeup,
};
use crate::engines::memory::MemoryRecords;
use crate::store::session::SessionStore;
use crate::store::{Acquire, Limits, LockStore, Mode, NewSession, StoreError};

mod gated;
mod storm;
mod turn;
mod withdrawn;

const LIVENESS: Duration = Duration::from_secs(3);

/// Spawns a task.
fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    Tasks::new().spawn(work)
}

fn lock(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

fn request(name: &str, wait_ms: u64) -> Acquire {
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
    // Neither is taken for dead by the other, however slow the machine is.
    let liveness = 20 * LIVENESS;
    [1, 2].map(|n| Driver::shared(records.clone(), ServerId(n), liveness, Limits::default(), &kit))
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

/// A caller that leaves while it waits has left every queue; a grant that it cannot receive is
/// rolled back.
#[tokio::test]
async fn a_caller_that_leaves_holds_nothing() {
    for driver in two().into_iter().take(1).chain([in_memory()]) {
        let held = driver.acquire(request("a", 0)).await.unwrap();
        let parts = [request("b", 60_000), request("a", 60_000)];
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
        driver.acquire(request("b", 0)).await.unwrap();
    }
}

/// A lock passes from the waiter of one server to that of the other, in the order of arrival, and
/// tokens rise.
#[tokio::test]
async fn servers_share_one_queue() {
    let drivers = two();
    let mut last = drivers[0].acquire(request("a", 0)).await.unwrap();
    let mut waiting = Vec::new();
    for n in 0..6 {
        let driver = drivers[n % 2].clone();
        let request = request("a", 60_000);
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

/// A server whose counter is behind the other's: every reply names the issued token, not the
/// expected one.
#[tokio::test]
async fn every_reply_names_the_token_that_was_taken() {
    let [one, two] = two();
    one.acquire(request("first", 0)).await.unwrap();
    for name in ["a", "b", "c"] {
        two.acquire(request(name, 0)).await.unwrap();
    }
    let request = request("late", 0);
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

/// So does every refusal: several are decided in the batch of the grant that refuses them.
#[tokio::test]
async fn every_refusal_names_the_token_that_was_taken() {
    let [one, two] = two();
    one.acquire(request("first", 0)).await.unwrap();
    for name in ["a", "b", "c"] {
        two.acquire(request(name, 0)).await.unwrap();
    }
    let asked = (0..8).map(|_| one.acquire(request("late", 0)));
    let replies = futures_util::future::join_all(asked).await;
    let (granted, refused): (Vec<_>, Vec<_>) = replies.into_iter().partition(Result::is_ok);
    assert_eq!((granted.len(), refused.len()), (1, 7));
    let token = granted[0].as_ref().unwrap().token;
    for refusal in refused {
        let Err(StoreError::Held { holder, .. }) = refusal else { panic!("{refusal:?}") };
        assert_eq!(holder.token, token);
    }
}

/// Two servers over the same records and a manual clock.
fn two_at(clock: &Arc<ManualClock>) -> [Driver; 2] {
    let kit = Kit::new("lock-server").with_clock(clock.clone());
    let records = Arc::new(MemoryRecords::new(kit.clock.clone(), 0));
    [1, 2].map(|n| Driver::shared(records.clone(), ServerId(n), LIVENESS, Limits::default(), &kit))
}

/// A wait is over, and a retry is decided in the same batch: the refusal is no reply to the retry.
#[tokio::test]
async fn a_retry_is_not_refused_for_the_wait_before_it() {
    let clock = Arc::new(ManualClock::new(1_000, 0));
    let [driver, _] = two_at(&clock);
    let held = driver.acquire(request("a", 0)).await.unwrap();
    let asked = request("a", 5_000);
    let asking = || {
        let driver = driver.clone();
        let asked = asked.clone();
        spawn(async move { driver.acquire(asked).await })
    };
    let first = asking();
    until_queued(&driver, "a", 1).await;
    clock.advance(6_000);
    let retry = asking();
    while driver.show(&lock("a")).await.unwrap().queue[0].waiting_ms > 0 {
        tokio::task::yield_now().await;
    }
    driver.release(&lock("a"), held.lease_id).await.unwrap();
    let granted = retry.await.unwrap().unwrap();
    assert_eq!(granted.lease_id, asked.lease_id);
    assert_eq!(first.await.unwrap().unwrap().token, granted.token);
}

async fn session(driver: &Driver) -> SessionId {
    let session_id = service_kit::ids::session_id();
    let owner = Owner::new("me").unwrap();
    let ttl = Ttl::DEFAULT;
    let new = NewSession { session_id, owner, ttl, metadata: None, principal: None };
    driver.create_session(new).await.unwrap().session_id
}

/// A server that has not read a session does not treat it as ended.
#[tokio::test]
async fn a_lease_lives_as_its_session_which_another_server_began() {
    let [one, two] = two();
    let other = two.acquire(Acquire { mode: Mode::Shared, ..request("a", 0) }).await.unwrap();
    let session = Some(session(&one).await);
    let bound = Acquire { session, mode: Mode::Shared, ..request("a", 0) };
    let bound = one.acquire(bound).await.unwrap();
    // By its loaded record, and by the record that it reads then.
    two.release(&lock("a"), other.lease_id).await.unwrap();
    assert_eq!(holder(&two, "a").await, Some(bound.lease_id));
    let refused = two.acquire(request("a", 0)).await;
    assert!(matches!(refused, Err(StoreError::Held { .. })), "{refused:?}");
}

/// A session is renewed through one server, and the other one, which granted its lease, considers
/// it expired: the lease does not end without the session.
#[tokio::test]
async fn a_lease_does_not_end_before_its_session() {
    let clock = Arc::new(ManualClock::new(0, 0));
    let [one, two] = two_at(&clock);
    let id = session(&one).await;
    let bound = one.acquire(Acquire { session: Some(id), ..request("a", 0) }).await.unwrap();
    clock.advance(Ttl::DEFAULT.ms() - 1);
    two.heartbeat(id).await.unwrap();
    clock.advance(2);
    // Before any decision this server first ends what it considers expired.
    one.acquire(request("other", 0)).await.unwrap();
    assert_eq!(holder(&two, "a").await, Some(bound.lease_id));
    assert_eq!(one.renew(&lock("a"), bound.lease_id, None).await.unwrap().token, bound.token);
}

/// A group is granted its locks because a lease expired. A change by another server at one of them
/// refuses all of it, and it is decided again.
#[tokio::test]
async fn a_group_is_handed_all_of_its_locks_or_none() {
    let clock = Arc::new(ManualClock::new(0, 0));
    let [one, two] = two_at(&clock);
    one.acquire(request("a", 0)).await.unwrap();
    let first = request("a", 10 * Ttl::DEFAULT.ms());
    let second = Acquire { lock: lock("b"), ..first.clone() };
    let driver = one.clone();
    let lease_id = first.lease_id;
    let group = spawn(async move { driver.acquire_all(vec![first, second]).await });
    until_queued(&two, "b", 1).await;
    let driver = two.clone();
    let behind = spawn(async move { driver.acquire(request("b", 20 * Ttl::DEFAULT.ms())).await });
    until_queued(&two, "b", 2).await;
    clock.advance(Ttl::DEFAULT.ms() + 1);
    one.acquire(request("other", 0)).await.unwrap();
    let grants = tokio::time::timeout(Duration::from_secs(20), group).await.unwrap();
    assert_eq!(grants.unwrap().unwrap().len(), 2);
    for name in ["a", "b"] {
        assert_eq!(holder(&two, name).await, Some(lease_id), "{name}");
    }
    behind.abort();
}

/// Many callers of both servers: one holder at a time, every token above those before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_lock_has_one_holder() {
    let drivers = two();
    let held = Arc::new(AtomicBool::new(false));
    let callers = (0..16).map(|n| {
        let driver = drivers[n % 2].clone();
        let held = held.clone();
        spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..20 {
                let grant = driver.acquire(request("a", 60_000)).await.unwrap();
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
        Ok(Committed { base: batch.counter, now_ms: None, lineage: None, groups })
    }
}

/// L4: no reply before the commit is durable, and after a failed commit the driver stops.
#[tokio::test]
async fn a_commit_that_fails_grants_nothing_and_ends_the_service() {
    let clock = Arc::new(ManualClock::new(0, 0));
    let kit = Kit::new("lock-server").with_clock(clock.clone());
    let driver = alone(Arc::new(Disk { clock, is_full: true }), &kit);
    let outcome = driver.acquire(request("a", 0)).await;
    assert!(matches!(outcome, Err(StoreError::Unknown(_))), "{outcome:?}");
    let outcome = driver.acquire(request("a", 0)).await;
    assert!(matches!(outcome, Err(StoreError::Unavailable(_))), "{outcome:?}");
    assert!(!kit.health.is_ready());
    assert!(kit.health.report(false).text().contains("no space left on device"));
}

/// A decision that panics may have taken a record out and not put it back: the lock is not free.
#[tokio::test]
async fn after_a_panic_nothing_is_decided() {
    let kit = Kit::new("lock-server");
    let driver = alone(Arc::new(MemoryRecords::alone(kit.clock.clone())), &kit);
    driver.acquire(request("a", 0)).await.unwrap();
    let work = |_: &mut Machine, _| -> Result<(), StoreError> { panic!("on purpose") };
    let outcome = driver.call(Vec::new(), work).await;
    assert!(matches!(outcome, Err(StoreError::Unknown(_))), "{outcome:?}");
    let outcome = driver.acquire(request("a", 0)).await;
    assert!(matches!(outcome, Err(StoreError::Unavailable(_))), "{outcome:?}");
    assert!(!kit.health.is_ready());
}

/// After its journal failed the driver rests, whatever is due in memory.
#[tokio::test]
async fn a_driver_whose_journal_failed_rests() {
    let clock = Arc::new(ManualClock::new(0, 0));
    let kit = Kit::new("lock-server").with_clock(clock.clone());
    let driver = alone(Arc::new(Disk { clock: clock.clone(), is_full: true }), &kit);
    driver.acquire(request("a", 0)).await.unwrap_err();
    clock.advance(2 * Ttl::DEFAULT.ms());
    let rest = async {
        while kit.tasks.running() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), rest).await.expect("nothing looks any more");
}

/// Locks that one group waits for are read together, and so once.
#[tokio::test]
async fn a_group_that_waits_is_looked_at_once() {
    let kit = Kit::new("lock-server");
    let records = Arc::new(MemoryRecords::new(kit.clock.clone(), 0));
    let driver = Driver::shared(records, ServerId(1), LIVENESS, Limits::default(), &kit);
    let group = request("a", 60_000);
    let part = |name| Acquire { lock: lock(name), ..group.clone() };
    let parts: Vec<Acquire> = ["a", "b", "c"].map(part).into();
    for name in ["a", "b", "c", "d"] {
        driver.acquire(request(name, 0)).await.unwrap();
    }
    let waiting = driver.clone();
    let all = spawn(async move { waiting.acquire_all(parts).await });
    let waiting = driver.clone();
    let one = spawn(async move { waiting.acquire(request("d", 60_000)).await });
    until_queued(&driver, "c", 1).await;
    until_queued(&driver, "d", 1).await;
    assert_eq!(driver.inner.look_at_all().len(), 2);
    all.abort();
    one.abort();
}

/// The time to live in a reply is what remains after the commit.
#[tokio::test]
async fn the_time_of_a_commit_is_not_promised() {
    let clock = Arc::new(ManualClock::new(0, 0));
    let kit = Kit::new("lock-server").with_clock(clock.clone());
    let driver = alone(Arc::new(Disk { clock, is_full: false }), &kit);
    let request = request("a", 0);
    let most = Ttl::DEFAULT.ms() - 300;
    let granted = driver.acquire(request.clone()).await.unwrap();
    assert_eq!(granted.remaining_ms, most);
    let renewed = driver.renew(&request.lock, request.lease_id, None).await.unwrap();
    assert!(renewed.remaining_ms <= Ttl::DEFAULT.ms(), "{renewed:?}");
    let several = driver.acquire_all(vec![self::request("b", 0)]).await.unwrap();
    assert_eq!(several[0].remaining_ms, most);
}

/// Shared records with a receiver of messages that the test sends, and commits that wait for it.
#[derive(Debug)]
struct Flooded {
    records: MemoryRecords,
    commits: tokio::sync::Semaphore,
    wakeups: Mutex<Option<mpsc::Receiver<Wakeup>>>,
}

#[async_trait]
impl RecordStore for Flooded {
    fn name(&self) -> &'static str {
        "flooded"
    }

    fn is_alone(&self) -> bool {
        false
    }

    fn now_ms(&self) -> u64 {
        self.records.now_ms()
    }

    async fn commit(&self, batch: Batch) -> Result<Committed, StoreError> {
        self.commits.acquire().await.unwrap().forget();
        self.records.commit(batch).await
    }

    fn wakeups(&self, _: ServerId) -> mpsc::Receiver<Wakeup> {
        self.wakeups.lock().unwrap().take().unwrap()
    }
}

/// Messages, which any client can send, fill neither the memory nor the place of requests.
#[tokio::test]
async fn a_flood_of_messages_is_read_once() {
    let kit = Kit::new("lock-server");
    let records = MemoryRecords::new(kit.clock.clone(), 0);
    let (sender, receiver) = mpsc::channel(WAKEUPS_MAX);
    let commits = tokio::sync::Semaphore::new(1);
    let store = Arc::new(Flooded { records, commits, wakeups: Mutex::new(Some(receiver)) });
    let driver = Driver::shared(store.clone(), ServerId(1), LIVENESS, Limits::default(), &kit);
    let held = driver.acquire(request("a", 0)).await.unwrap();
    let mut dropped = 0;
    for _ in 0..4 * WAKEUPS_MAX {
        dropped += u32::from(sender.try_send(Wakeup::Record(Key::Lock(lock("a")))).is_err());
        tokio::task::yield_now().await;
        let core = &driver.inner.state().core;
        assert!(core.pending.len() + core.in_flight.held_back() <= LOOKS_MAX + 1);
    }
    assert!(dropped > 0);
    store.commits.add_permits(usize::MAX >> 4);
    let resumed = async {
        driver.release(&lock("a"), held.lease_id).await.unwrap();
        // Once there is room again.
        sender.send(Wakeup::All).await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(20), resumed).await.expect("a reply");
}
