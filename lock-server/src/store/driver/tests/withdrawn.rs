//! Requests whose outcome is unknown, and what is withdrawn of them.

use super::super::op::Asking;
use super::super::waiters::Waiting;
use super::*;

/// Shared records, of which one commit ends without a reply.
#[derive(Debug)]
struct Flaky {
    records: MemoryRecords,
    is_cut: AtomicBool,
}

#[async_trait]
impl RecordStore for Flaky {
    fn name(&self) -> &'static str {
        "flaky"
    }

    fn is_alone(&self) -> bool {
        false
    }

    fn now_ms(&self) -> u64 {
        self.records.now_ms()
    }

    async fn read(&self, keys: &[Key]) -> Result<(Vec<Snapshot>, u64), StoreError> {
        self.records.read(keys).await
    }

    async fn commit(&self, batch: Batch) -> Result<Committed, StoreError> {
        if self.is_cut.swap(false, Ordering::SeqCst) {
            return Err(StoreError::Unknown("the connection broke".to_owned()));
        }
        self.records.commit(batch).await
    }
}

/// A request with an unknown outcome may have left a queue entry. Once a retry was granted the
/// lock, that entry is not withdrawn.
#[tokio::test]
async fn a_grant_to_a_retry_is_not_withdrawn() {
    let kit = Kit::new("lock-server");
    let records = MemoryRecords::new(kit.clock.clone(), 0);
    let flaky = Arc::new(Flaky { records, is_cut: AtomicBool::new(false) });
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
