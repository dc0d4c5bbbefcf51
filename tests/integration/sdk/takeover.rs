//! A process that starts again takes its lock from its own earlier life.

use std::time::Duration;

use fence_client::protocol::wire::lock::EndReason;
use fence_client::{Client, ErrorKind, LostReason, NoTakeover};
use fence_tests::wait::soon;
use tokio::sync::oneshot;

use super::Site;

/// It is renewed after a third, and outlives a stall of the machine for three seconds then.
const TTL: Duration = Duration::from_secs(8);
const SUPERSEDED: ErrorKind =
    ErrorKind::LeaseLost { reason: LostReason::Ended(EndReason::Superseded) };

/// One life of an owner.
fn life(site: &Site, owner: &str, incarnation: &str) -> Client {
    let builder = Client::builder().lock_server(&site.locks.base).owner(owner);
    let guard = format!("http://{}", site.proxy.address());
    builder.fenced_store(guard).incarnation(incarnation).build().unwrap()
}

/// The old life learns of it from its next renewal, and its work is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_superseded_holder_learns_it_and_stops() {
    struct Dropped(Option<oneshot::Sender<()>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.take().unwrap().send(());
        }
    }
    let site = Site::new().await;
    let old = life(&site, "billing", "boot-1");
    let new = life(&site, "billing", "boot-2");
    // What is taken over need not have asked for a takeover itself.
    let lease = old.lock("jobs/1").ttl(TTL).acquire().await.unwrap();
    let first_token = lease.token();
    let (dropped, is_dropped) = oneshot::channel();
    let work = tokio::spawn(lease.run(async move |_| {
        let _work = Dropped(Some(dropped));
        std::future::pending::<()>().await;
    }));
    let successor = new.lock("jobs/1").ttl(TTL).takeover().acquire().await.unwrap();
    assert!(successor.token() > first_token);
    soon("the work to be dropped", is_dropped).await.unwrap();
    assert_eq!(*work.await.unwrap().unwrap_err().kind(), SUPERSEDED);
    // It does not come back, whatever it tries.
    let refused = old.lock("jobs/1").takeover().acquire().await.unwrap_err();
    let ErrorKind::TakeoverRefused { why, holder } = refused.kind() else { panic!("{refused:?}") };
    assert_eq!(*why, Some(NoTakeover::WasTakenOver));
    assert_eq!(holder.as_ref().unwrap().token, successor.token());
    successor.check().unwrap();
    successor.release().await.unwrap();
}

/// The old life is refused at the data before it knows anything.
#[tokio::test]
async fn the_guard_refuses_the_superseded_at_once() {
    let site = Site::new().await;
    let old = life(&site, "billing", "boot-1");
    let new = life(&site, "billing", "boot-2");
    let lease = old.lock("doc").ttl(super::LONG).acquire().await.unwrap();
    let successor = new.lock("doc").takeover().acquire().await.unwrap();
    successor.objects().put(&successor, "doc", "new").await.unwrap();
    assert!(lease.is_live(), "its first renewal is far away");
    let late = lease.objects().put(&lease, "doc", "late").await.unwrap_err();
    assert!(matches!(late.kind(), ErrorKind::Stale { .. }), "{late}");
}

#[tokio::test]
async fn a_supervisor_names_the_lease_of_the_dead() {
    let site = Site::new().await;
    let worker = life(&site, "pool", "w");
    let supervisor = life(&site, "pool", "s");
    let other = life(&site, "other", "1");
    let dead = worker.lock("shard/1").ttl(super::LONG).acquire().await.unwrap();
    let refused = other.lock("shard/1").takeover_of(dead.lease_id()).acquire().await.unwrap_err();
    let ErrorKind::TakeoverRefused { why, .. } = refused.kind() else { panic!("{refused:?}") };
    assert_eq!(*why, Some(NoTakeover::OtherOwner));
    let next = supervisor.lock("shard/1").takeover_of(dead.lease_id()).acquire().await.unwrap();
    assert!(next.token() > dead.token());
    // The lease that was named is gone: from here on it is a request like any other.
    let again = worker.lock("shard/1").takeover_of(dead.lease_id()).acquire().await.unwrap_err();
    assert!(matches!(again.kind(), ErrorKind::Contended { .. }), "{again:?}");
}

/// Every process has an incarnation of its own, without any setting, and an owner that a restart
/// does not keep is no identity.
#[tokio::test]
async fn an_identity_has_to_be_one() {
    let site = Site::new().await;
    let unnamed = Client::builder().lock_server(&site.locks.base).build().unwrap();
    let refused = unnamed.lock("a").takeover().acquire().await.unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("owner"), "{refused}");
    let named = || Client::builder().lock_server(&site.locks.base).owner("svc");
    let one = named().build().unwrap();
    let two = named().build().unwrap();
    assert_eq!(one.incarnation(), two.incarnation(), "one process, one life");
    let held = one.lock("a").takeover().acquire().await.unwrap();
    let same = two.lock("a").takeover().acquire().await.unwrap_err();
    assert!(matches!(same.kind(), ErrorKind::Contended { .. }), "{same:?}");
    held.check().unwrap();
    let wrong = named().incarnation("a\nb").build().unwrap_err();
    assert!(wrong.to_string().contains("incarnation"), "{wrong}");
}
