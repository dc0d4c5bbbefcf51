//! Batches that the requests of one turn make.

use std::collections::BTreeSet;

use tokio::sync::Semaphore;

use super::gated::Gated;
use super::*;
use crate::store::Grant;

/// Returns the number of batches that are under way, and of their requests.
fn under_way(driver: &Driver) -> (usize, usize) {
    let in_flight = &driver.inner.state().core.in_flight;
    (in_flight.count(), in_flight.requests())
}

async fn until_under_way(driver: &Driver, wanted: (usize, usize)) {
    until("the batches", || under_way(driver) == wanted).await;
}

pub(super) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect(what);
}

fn acquire_all(driver: &Driver, count: usize) -> Vec<JoinHandle<Result<Grant, StoreError>>> {
    let acquire = |at: usize| {
        let driver = driver.clone();
        spawn(async move { driver.acquire(request(&format!("l{at}"), 0)).await })
    };
    (0..count).map(acquire).collect()
}

/// Few requests are one batch, and many are two, one beside the other.
#[tokio::test]
async fn a_turn_is_decided_as_one_batch_or_two_halves() {
    for (count, batches) in [(1, 1), (7, 1), (8, 2), (11, 2)] {
        let kit = Kit::new("lock-server");
        let gated = Arc::new(Gated { overlaps: true, ..Gated::new(&kit, 0) });
        let driver = Driver::shared(gated.clone(), ServerId(1), LIVENESS, Limits::default(), &kit);
        let grants = acquire_all(&driver, count);
        until_under_way(&driver, (batches, count)).await;
        gated.gate.add_permits(Semaphore::MAX_PERMITS);
        for grant in grants {
            grant.await.unwrap().unwrap();
        }
    }
}

/// Requests for one lock cannot be under way beside each other: after the first such half they are
/// committed together.
#[tokio::test]
async fn halves_that_wait_for_each_other_are_one_batch() {
    let kit = Kit::new("lock-server");
    let gated = Arc::new(Gated { overlaps: true, ..Gated::new(&kit, 0) });
    let driver = Driver::shared(gated.clone(), ServerId(1), LIVENESS, Limits::default(), &kit);
    let acquire = || {
        let driver = driver.clone();
        spawn(async move { driver.acquire(request("a", 0)).await })
    };
    let first: Vec<_> = (0..12).map(|_| acquire()).collect();
    until_under_way(&driver, (1, 6)).await;
    assert_eq!(driver.inner.state().core.in_flight.held_back(), 6);
    let second: Vec<_> = (0..12).map(|_| acquire()).collect();
    tokio::task::yield_now().await;
    gated.gate.add_permits(1);
    until_under_way(&driver, (1, 18)).await;
    gated.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    let mut granted = 0;
    for outcome in first.into_iter().chain(second) {
        granted += usize::from(outcome.await.unwrap().is_ok());
    }
    assert_eq!(granted, 1);
}

/// The half whose commit has no reply takes nothing from the other, and their tokens differ.
#[tokio::test]
async fn a_half_that_fails_leaves_the_other() {
    let kit = Kit::new("lock-server");
    let gated = Arc::new(Gated { overlaps: true, ..Gated::new(&kit, 0) });
    let driver = Driver::shared(gated.clone(), ServerId(1), LIVENESS, Limits::default(), &kit);
    let grants = acquire_all(&driver, 8);
    until_under_way(&driver, (2, 8)).await;
    gated.is_cut.store(true, Ordering::SeqCst);
    gated.gate.add_permits(Semaphore::MAX_PERMITS);
    let mut tokens = BTreeSet::new();
    let mut unknown = 0;
    for grant in grants {
        match grant.await.unwrap() {
            Ok(grant) => assert!(tokens.insert(grant.token)),
            Err(StoreError::Unknown(_)) => unknown += 1,
            Err(error) => panic!("{error:?}"),
        }
    }
    assert_eq!((tokens.len(), unknown), (4, 4));
    let next = driver.acquire(request("next", 0)).await.unwrap();
    assert!(tokens.last().is_some_and(|last| next.token > *last), "{next:?} after {tokens:?}");
}

/// A request whose wait is over when its batch is decided is refused; the others of the batch are
/// not.
#[tokio::test]
async fn a_request_whose_wait_is_over_is_refused_alone() {
    let clock = Arc::new(ManualClock::new(1_000, 0));
    let kit = Kit::new("lock-server").with_clock(clock.clone());
    let gated = Arc::new(Gated::new(&kit, 1));
    let driver = Driver::shared(gated.clone(), ServerId(1), LIVENESS, Limits::default(), &kit);
    driver.acquire(request("a", 0)).await.unwrap();
    let before = acquire_all(&driver, 1);
    until_under_way(&driver, (1, 1)).await;
    let acquire = |asked: Acquire| {
        let driver = driver.clone();
        spawn(async move { driver.acquire(asked).await })
    };
    let late = acquire(request("a", 500));
    let other = acquire(request("b", 0));
    until("two requests", || driver.inner.state().core.pending.len() == 2).await;
    clock.advance(1_000);
    gated.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    for granted in before.into_iter().chain([other]) {
        granted.await.unwrap().unwrap();
    }
    let refused = late.await.unwrap();
    assert!(matches!(refused, Err(StoreError::Held { .. })), "{refused:?}");
    assert!(driver.show(&lock("a")).await.unwrap().queue.is_empty());
}

/// A thread of HTTP that ends before its turn leaves no request of another thread behind.
#[test]
fn a_turn_whose_thread_ends_is_decided_elsewhere() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let other = runtime();
    let ending = runtime();
    let driver = other.block_on(async {
        let kit = Kit::new("lock-server");
        let gated = Arc::new(Gated::new(&kit, Semaphore::MAX_PERMITS));
        let driver = Driver::shared(gated, ServerId(1), LIVENESS, Limits::default(), &kit);
        driver.acquire(request("first", 0)).await.unwrap();
        driver
    });
    let mut left = Box::pin(driver.acquire(request("left", 0)));
    ending.block_on(async {
        assert!(futures_util::FutureExt::now_or_never(left.as_mut()).is_none());
    });
    assert_eq!(driver.inner.state().turns.len(), 1);
    drop(ending);
    let replies = async {
        left.await.unwrap();
        driver.acquire(request("next", 0)).await.unwrap();
    };
    other.block_on(async {
        tokio::time::timeout(Duration::from_secs(20), replies).await.expect("the replies");
    });
}

/// Requests that were put off come first in the next batch, in their order.
#[tokio::test]
async fn a_store_that_commits_one_of_many_serves_all_in_order() {
    let kit = Kit::new("lock-server");
    let gated = Gated { commits_one: true, ..Gated::new(&kit, 1_000) };
    let driver = Driver::shared(Arc::new(gated), ServerId(1), LIVENESS, Limits::default(), &kit);
    let names = (0..12).map(|at| format!("l{at:02}"));
    let asking = names.map(|name| {
        let driver = driver.clone();
        async move { driver.acquire(request(&name, 0)).await.unwrap().token }
    });
    let tokens = futures_util::future::join_all(asking).await;
    assert!(tokens.is_sorted(), "{tokens:?}");
}
