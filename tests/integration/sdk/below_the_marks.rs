//! A live lease that the guard calls stale: who may take the lock again, and who may not.

use fence_client::protocol::wire::fence::WriteOutcome;
use fence_client::protocol::wire::lock::{EndReason, LockState};
use fence_client::{Error, ErrorKind, Lease, LostReason};
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::wait::soon;
use serde_json::json;
use std::time::Duration;

use super::{LONG, Site};
use crate::locks::guards::FAR;

async fn raise(site: &Site, lock: &str, mark: u64) {
    site.guard.guard().sealed(lock, &unsigned(mark, lock, lease_id())).await;
}

/// A write that the guard must refuse.
async fn refused(lease: &Lease, key: &str) -> Error {
    let error = lease.objects().put(lease, key, "refused").await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Stale { .. }), "{error:?}");
    assert_eq!(error.outcome(), Some(WriteOutcome::NotApplied));
    assert!(lease.is_live(), "this is about leases that believe in themselves");
    error
}

#[tokio::test]
async fn a_holder_below_the_marks_gets_above_them() {
    let site = Site::new().await;
    raise(&site, "a", 1000).await;
    let lease = site.lease("a").await;
    assert_eq!(lease.token().get(), 1);
    let refusal = refused(&lease, "a").await;
    assert_eq!(refusal.min_token().map(|token| token.get()), Some(1000));
    let lease = lease.reacquire_above(&refusal).await.unwrap();
    assert_eq!(lease.token().get(), 1001);
    lease.objects().put(&lease, "a", "done").await.unwrap();
    lease.release().await.unwrap();
    // The counter is above the mark for everybody now.
    assert!(site.lease("b").await.token().get() > 1001);
}

/// The token of this lease and the mark are the same number, and of two leases.
#[tokio::test]
async fn a_holder_at_the_mark_gets_above_it() {
    let site = Site::new().await;
    raise(&site, "a", 1).await;
    let lease = site.lease("a").await;
    let refusal = refused(&lease, "a").await;
    let lease = lease.reacquire_above(&refusal).await.unwrap();
    lease.objects().put(&lease, "a", "done").await.unwrap();
}

/// The lock has passed on, and this holder has not noticed: its own clock says that it is live. It
/// must neither get the lock nor disturb the one that has it.
#[tokio::test]
async fn a_holder_that_is_really_stale_gets_nothing() {
    let site = Site::new().await;
    let old = site.lease("a").await;
    site.locks.locks().revoke("a", "operator").await.expect(200);
    let new = site.lease("a").await;
    new.objects().put(&new, "a", "new").await.unwrap();
    let refusal = refused(&old, "a").await;
    let error = old.reacquire_above(&refusal).await.unwrap_err();
    let revoked = ErrorKind::LeaseLost { reason: LostReason::Ended(EndReason::Revoked) };
    assert_eq!(*error.kind(), revoked, "{error:?}");
    let shown = site.locks.locks().show("a").await;
    assert_eq!(shown.holder.unwrap().info.token, new.token());
    assert_eq!(shown.queue_length, 0);
    let found = new.objects().get(&new, "a").await.unwrap().unwrap();
    assert_eq!(found.body.as_ref(), b"new");
    // Not even a token was spent on it.
    assert_eq!(site.lease("b").await.token().get(), new.token().get() + 1);
}

/// The same where the new holder has come and gone: the lock is free, and the old one must not have
/// it without knowing that it was out.
#[tokio::test]
async fn a_stale_holder_of_a_free_lock_gets_nothing_either() {
    let site = Site::new().await;
    let old = site.lease("a").await;
    site.locks.locks().revoke("a", "operator").await.expect(200);
    let new = site.lease("a").await;
    new.objects().put(&new, "a", "new").await.unwrap();
    new.release().await.unwrap();
    let refusal = refused(&old, "a").await;
    let error = old.reacquire_above(&refusal).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::LeaseLost { .. }), "{error:?}");
    assert_eq!(site.locks.locks().show("a").await.state, LockState::Free);
}

#[tokio::test]
async fn a_lease_that_is_lost_here_asks_no_server() {
    let mut site = Site::new().await;
    raise(&site, "a", 1000).await;
    let ttl = Duration::from_secs(8);
    let lease = site.client().lock("a").ttl(ttl).acquire().await.unwrap();
    let refusal = refused(&lease, "a").await;
    site.locks.process.kill();
    soon("the lease to be lost", lease.lost()).await;
    let error = lease.reacquire_above(&refusal).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::LeaseLost { reason: LostReason::Deadline });
}

/// Only what a guard said about this very lease counts.
#[tokio::test]
async fn a_refusal_of_something_else_is_no_reason() {
    let site = Site::new().await;
    raise(&site, "a", 1000).await;
    let a = site.lease("a").await;
    let b = site.lease("b").await;
    let of_a = refused(&a, "a").await;
    let error = b.reacquire_above(&of_a).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Invalid, "{error:?}");
    let wrong_lock = a.objects().put(&a, "b", "x").await.unwrap_err();
    let error = a.reacquire_above(&wrong_lock).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Invalid, "{error:?}");
    // An earlier lease of the same lock is something else too.
    let again = site.client().lock("a").ttl(LONG).wait(LONG).acquire().await.unwrap();
    let error = again.reacquire_above(&of_a).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Invalid, "{error:?}");
}

/// Two lock servers for one guard would drive each other up for ever.
#[tokio::test]
async fn once_is_enough() {
    let site = Site::new().await;
    raise(&site, "a", 1000).await;
    let lease = site.lease("a").await;
    let refusal = refused(&lease, "a").await;
    let lease = lease.reacquire_above(&refusal).await.unwrap();
    raise(&site, "a", 2000).await;
    let refusal = refused(&lease, "a").await;
    let error = lease.reacquire_above(&refusal).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Stale { .. }), "{error:?}");
    assert!(error.to_string().contains("two lock servers"), "{error}");
}

/// Waiters are served first: nothing is kept warm for the one that comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_is_not_overtaken() {
    let site = Site::new().await;
    raise(&site, "a", 1000).await;
    let lease = site.lease("a").await;
    let locks = site.locks.locks();
    let own = locks.clone();
    let ask = json!({"ttl_ms": 60_000, "wait_ms": 60_000});
    let waiting = tokio::spawn(async move { own.acquire("a", ask).await });
    locks.queue_of("a", 1).await;
    let refusal = refused(&lease, "a").await;
    let error = lease.reacquire_above(&refusal).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Contended { .. }), "{error:?}");
    soon("the waiter", waiting).await.unwrap().lease();
}

/// A forged mark: the lock server does not use its tokens up for it, and says so.
#[tokio::test]
async fn a_mark_out_of_reach_is_refused_loudly() {
    let site = Site::new().await;
    raise(&site, "a", FAR).await;
    let lease = site.lease("a").await;
    let refusal = refused(&lease, "a").await;
    let error = lease.reacquire_above(&refusal).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Invalid, "{error:?}");
    assert!(error.to_string().contains("min_token"), "{error}");
    assert_eq!(site.locks.locks().show("a").await.state, LockState::Free);
}
