//! Writes whose replies are lost: repeated under one name, done once, and never called undone.

use fence_client::protocol::wire::fence::WriteOutcome;
use fence_client::{Applied, Error, ErrorKind, Lease};
use fence_tests::fault_proxy::Fault;
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::wait::{soon, until_true};
use std::time::Duration;
use tokio::task::JoinHandle;

use super::Site;

type Outcomes = JoinHandle<(Lease, Result<Applied, Error>)>;

/// Change to the object `doc` under the lease.
#[derive(Clone, Copy)]
enum Change {
    Put,
    PutIfAbsent,
    Delete,
}

/// Begins it in a task of its own.
fn begin(lease: Lease, change: Change) -> Outcomes {
    tokio::spawn(async move {
        let objects = lease.objects().clone();
        let result = match change {
            Change::Put => objects.put(&lease, "doc", "mine").await,
            Change::PutIfAbsent => objects.put(&lease, "doc", "mine").if_absent().await,
            Change::Delete => objects.delete(&lease, "doc").await,
        };
        (lease, result)
    })
}

impl Site {
    /// The guard has done it, and the reply is gone; the connection stays.
    async fn lose_the_reply(&self, change: Change) -> Outcomes {
        let lease = self.lease("doc").await;
        self.proxy.set(Fault::DropReplies);
        let begun = begin(lease, change);
        until_true("a swallowed reply", || async { self.proxy.dropped() > 0 }).await;
        begun
    }

    /// The connection breaks; new ones are well.
    fn heal(&self) {
        self.proxy.set(Fault::None);
        self.proxy.cut();
    }

    /// The object's entity tag, which is unique to a write.
    async fn tag(&self) -> String {
        let header = unsigned(900, "doc", lease_id());
        self.guard.guard().fenced_get("doc", &header).await.header("etag").to_owned()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_reply_is_lost_is_done_once() {
    for change in [Change::Put, Change::PutIfAbsent] {
        let site = Site::new().await;
        let begun = site.lose_the_reply(change).await;
        site.heal();
        let (_lease, result) = soon("the write", begun).await.unwrap();
        let applied = result.unwrap();
        assert!(applied.replayed, "the guard knew it: {applied:?}");
        // A second write of the same bytes would have another tag.
        assert_eq!(applied.etag, Some(site.tag().await));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_whose_reply_is_lost_is_done_once() {
    let site = Site::new().await;
    let earlier = site.lease("doc").await;
    earlier.objects().put(&earlier, "doc", "there").await.unwrap();
    earlier.release().await.unwrap();
    let begun = site.lose_the_reply(Change::Delete).await;
    site.heal();
    let (_lease, result) = soon("the delete", begun).await.unwrap();
    assert!(result.unwrap().replayed);
    let header = unsigned(900, "doc", lease_id());
    site.guard.guard().fenced_get("doc", &header).await.expect(404);
}

/// The request never arrived: the repeat is the first that reaches the guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_never_arrived_is_done_by_its_repeat() {
    let site = Site::new().await;
    let lease = site.lease("doc").await;
    site.proxy.set(Fault::Blackhole);
    let begun = begin(lease, Change::Put);
    until_true("the write to be under way", || async { site.proxy.held() > 0 }).await;
    site.proxy.cut();
    site.proxy.set(Fault::None);
    let (_lease, result) = soon("the write", begun).await.unwrap();
    result.unwrap();
    let header = unsigned(900, "doc", lease_id());
    let found = site.guard.guard().fenced_get("doc", &header).await.expect(200);
    assert_eq!(found.body.as_ref(), b"mine");
}

/// It was applied, then the lock passed on, then it is repeated: the holder learns that it is out,
/// and that its write was in. What the new holder wrote stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_after_the_lock_passed_on_learns_both() {
    let site = Site::new().await;
    let begun = site.lose_the_reply(Change::Put).await;
    let newer = unsigned(800, "doc", lease_id());
    site.guard.guard().put("doc", &newer, "newer").await.expect(204);
    site.heal();
    let (_lease, result) = soon("the write", begun).await.unwrap();
    let error = result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Stale { .. }), "{error:?}");
    assert_eq!(error.outcome(), Some(WriteOutcome::Applied), "{error:?}");
    let found = site.guard.guard().fenced_get("doc", &newer).await.expect(200);
    assert_eq!(found.body.as_ref(), b"newer");
}

/// Nothing that comes after a lost reply makes the write undone: a guard that cannot be reached any
/// more knows nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_goes_away_leaves_the_outcome_open() {
    let site = Site::new().await;
    let begun = site.lose_the_reply(Change::Put).await;
    site.proxy.set(Fault::Refuse);
    let (_lease, result) = soon("the write", begun).await.unwrap();
    let error = result.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::OutcomeUnknown, "{error:?}");
    assert_eq!(error.outcome(), Some(WriteOutcome::Unknown));
}

/// The same if no server listens any more: that repeats cannot be sent is certain, and says nothing
/// about the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_port_leaves_the_outcome_open() {
    let site = Site::new().await;
    let begun = site.lose_the_reply(Change::Put).await;
    drop(site.proxy);
    let (_lease, result) = soon("the write", begun).await.unwrap();
    let error = result.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::OutcomeUnknown, "{error:?}");
    assert_eq!(error.outcome(), Some(WriteOutcome::Unknown));
}

/// A lease that is lost in between sends nothing more, not even a repeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lease_repeats_nothing() {
    let mut site = Site::new().await;
    let ttl = Duration::from_secs(4);
    let lease = site.client().lock("doc").ttl(ttl).acquire().await.unwrap();
    let lost = lease.lost();
    site.proxy.set(Fault::Blackhole);
    let begun = begin(lease, Change::Put);
    site.locks.process.kill();
    soon("the lease to be lost", lost).await;
    // What the proxy holds is dropped with the connection. A repeat would be held, and not come
    // back.
    site.proxy.cut();
    let (_lease, result) = soon("the write", begun).await.unwrap();
    site.proxy.set(Fault::None);
    let error = result.unwrap_err();
    let is_reported =
        matches!(error.kind(), ErrorKind::OutcomeUnknown | ErrorKind::LeaseLost { .. });
    assert!(is_reported, "{error:?}");
    let header = unsigned(900, "doc", lease_id());
    let seen = site.guard.guard().fenced_get("doc", &header).await;
    assert_eq!(seen.status, 404, "it was sent all the same");
}

/// A name of the caller's own: again later, by another process, and not for something else.
#[tokio::test]
async fn a_name_stands_for_one_write() {
    let site = Site::new().await;
    let lease = site.lease("doc").await;
    let objects = lease.objects();
    let first = objects.put(&lease, "doc", "mine").op_id("order-42.paid").await.unwrap();
    let again = site.client();
    let second = again.objects().put(&lease, "doc", "mine").op_id("order-42.paid").await.unwrap();
    assert_eq!((first.replayed, second.replayed), (false, true));
    assert_eq!(first.etag, second.etag);
    let other = objects.put(&lease, "doc", "other").op_id("order-42.paid").await.unwrap_err();
    assert_eq!(*other.kind(), ErrorKind::Invalid, "{other:?}");
    let bad = objects.put(&lease, "doc", "mine").op_id("a b").await.unwrap_err();
    assert_eq!(*bad.kind(), ErrorKind::Invalid, "{bad:?}");
    let unnamed = objects.put(&lease, "doc", "mine").await.unwrap();
    assert!(!unnamed.replayed && unnamed.etag != first.etag, "every put has a name of its own");
}
