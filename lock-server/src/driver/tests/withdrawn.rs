//! Requests whose outcome is unknown, and what is withdrawn of them.

use tokio::sync::Semaphore;

use super::super::op::Asking;
use super::super::waiting::Waiting;
use super::gated::Gated;
use super::*;

/// A request with an unknown outcome may have left a queue entry. Once a retry was granted the
/// lock, that entry is not withdrawn.
#[tokio::test]
async fn a_grant_to_a_retry_is_not_withdrawn() {
    let kit = Kit::new("lock-server");
    let flaky = Arc::new(Gated::new(&kit, Semaphore::MAX_PERMITS));
    let driver = Driver::shared(flaky.clone(), ServerId(1), LIVENESS, Limits::default(), &kit);
    let first = driver.acquire(request("a", 0)).await.unwrap();
    let request = request("a", 60_000);
    flaky.is_cut.store(true, Ordering::SeqCst);
    let unknown = driver.acquire(request.clone()).await;
    assert!(matches!(unknown, Err(StoreError::Unknown(_))), "{unknown:?}");
    let retrying = driver.clone();
    let retry = request.clone();
    let retry = spawn(async move { retrying.acquire(retry).await });
    until_queued(&driver, "a", 1).await;
    driver.release(&lock("a"), first.lease_id).await.unwrap();
    retry.await.unwrap().unwrap();
    driver.inner.withdraw_abandoned();
    assert_eq!(holder(&driver, "a").await, Some(request.lease_id));
}

/// A lease was granted from the queue, and its caller has it. A retry that gets no reply does not
/// withdraw it.
#[tokio::test]
async fn a_lease_is_not_withdrawn_with_a_retry_of_unknown_outcome() {
    let kit = Kit::new("lock-server");
    let flaky = Arc::new(Gated::new(&kit, Semaphore::MAX_PERMITS));
    let driver = Driver::shared(flaky.clone(), ServerId(1), LIVENESS, Limits::default(), &kit);
    let first = driver.acquire(request("a", 0)).await.unwrap();
    let request = request("a", 60_000);
    let waiting = driver.clone();
    let waits = request.clone();
    let waiting = spawn(async move { waiting.acquire(waits).await });
    until_queued(&driver, "a", 1).await;
    driver.release(&lock("a"), first.lease_id).await.unwrap();
    let grant = waiting.await.unwrap().unwrap();
    flaky.is_cut.store(true, Ordering::SeqCst);
    let unknown = driver.acquire(request).await;
    assert!(matches!(unknown, Err(StoreError::Unknown(_))), "{unknown:?}");
    driver.inner.withdraw_abandoned();
    // Decided behind a withdrawal, if there is one.
    driver.renew(&lock("a"), grant.lease_id, None).await.unwrap();
    assert_eq!(holder(&driver, "a").await, Some(grant.lease_id));
}

/// A caller leaves while the batch is under way in which the lock passes to its request, and a
/// repeat of it, decided in the same batch, gets the grant: it keeps it.
#[tokio::test]
async fn a_grant_to_a_repeat_is_not_withdrawn_with_the_first_caller() {
    let kit = Kit::new("lock-server");
    let gated = Arc::new(Gated::new(&kit, 2));
    let driver = Driver::shared(gated.clone(), ServerId(1), LIVENESS, Limits::default(), &kit);
    let held = driver.acquire(request("a", 0)).await.unwrap();
    let waits = request("a", 60_000);
    let acquire = || {
        let driver = driver.clone();
        let waits = waits.clone();
        spawn(async move { driver.acquire(waits).await })
    };
    let first = acquire();
    until_queued(&driver, "a", 1).await;
    // A request that keeps the record under way, behind which the others meet.
    let renewing = driver.clone();
    let renewal = spawn(async move { renewing.renew(&lock("a"), held.lease_id, None).await });
    let under_way = async |requests: usize, waiting: usize| {
        let wait = async {
            let is_so = || {
                let core = &driver.inner.state().core;
                core.in_flight.requests() == requests && core.pending.len() == waiting
            };
            while !is_so() {
                tokio::task::yield_now().await;
            }
        };
        let limit = Duration::from_secs(20);
        tokio::time::timeout(limit, wait).await.expect("the requests under way");
    };
    under_way(1, 0).await;
    let repeat = acquire();
    under_way(1, 1).await;
    let releasing = driver.clone();
    let release = spawn(async move { releasing.release(&lock("a"), held.lease_id).await });
    under_way(1, 2).await;
    gated.gate.add_permits(1);
    renewal.await.unwrap().unwrap();
    under_way(2, 0).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    under_way(2, 1).await;
    gated.gate.add_permits(1_000);
    release.await.unwrap().unwrap();
    let grant = repeat.await.unwrap().unwrap();
    assert_eq!(grant.lease_id, waits.lease_id);
    // Decided behind a withdrawal, if there is one.
    driver.renew(&lock("a"), grant.lease_id, None).await.unwrap();
    assert_eq!(holder(&driver, "a").await, Some(waits.lease_id));
}

/// An id that another owner asks for is no retry: what is to be withdrawn stays so.
#[tokio::test]
async fn a_request_of_another_keeps_no_entry() {
    let kit = Kit::new("lock-server");
    let records = Arc::new(MemoryRecords::new(kit.clock.clone(), 0));
    let driver = Driver::shared(records, ServerId(1), LIVENESS, Limits::default(), &kit);
    let held = request("a", 0);
    driver.acquire(held.clone()).await.unwrap();
    let waits = request("a", 60_000);
    let waiting = driver.clone();
    let asked = waits.clone();
    let waiting = spawn(async move { waiting.acquire(asked).await });
    until_queued(&driver, "a", 1).await;
    for request in [held, waits] {
        let another = Acquire { owner: "another".parse().unwrap(), ..request.clone() };
        for (request, is_retry) in [(request, true), (another, false)] {
            let op = Asking::boxed(Waiting::new(vec![request], false, 0).0);
            assert_eq!(driver.inner.state().core.retry(&*op).is_some(), is_retry);
        }
    }
    waiting.abort();
}
