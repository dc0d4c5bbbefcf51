//! Shared leases, permits, and groups of locks that are granted in one step.

use std::time::Duration;

use fence_client::protocol::wire::lock::{LeaseMode, LockReply, LockState};
use fence_client::protocol::{Code, LockName};
use fence_client::{Client, ErrorKind, LeaseSet, Session};
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::wait::{soon, until_true};

use super::{LONG, Site};

const WAIT: Duration = Duration::from_secs(60);

async fn show(client: &Client, lock: &str) -> LockReply {
    client.locks().show(&LockName::new(lock).unwrap()).await.unwrap()
}

async fn queue_of(client: &Client, lock: &str, length: usize) {
    until_true("the queue", || async { show(client, lock).await.queue_length == length }).await;
}

async fn long_session(client: &Client) -> Session {
    client.session().ttl(LONG).begin().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_share_and_a_writer_waits_for_them() {
    let site = Site::new().await;
    let client = site.client();
    let reader = || client.lock("doc").ttl(LONG).shared();
    let one = reader().acquire().await.unwrap();
    let two = reader().acquire().await.unwrap();
    assert!(one.token() < two.token());
    assert_eq!((one.grant().mode, two.grant().mode), (LeaseMode::Shared, LeaseMode::Shared));
    let refused = client.lock("doc").acquire().await.unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Contended { .. }), "{refused:?}");
    let writer = tokio::spawn(client.lock("doc").ttl(LONG).wait(WAIT).acquire());
    queue_of(&client, "doc", 1).await;
    // No reader overtakes the writer.
    let late = reader().acquire().await.unwrap_err();
    assert!(matches!(late.kind(), ErrorKind::Contended { .. }), "{late:?}");
    one.release().await.unwrap();
    assert!(!writer.is_finished());
    two.release().await.unwrap();
    let written = soon("the writer", writer).await.unwrap().unwrap();
    assert_eq!(written.grant().mode, LeaseMode::Exclusive);
}

#[tokio::test]
async fn permits_have_one_size() {
    let site = Site::new().await;
    let client = site.client();
    let permit = |size| client.lock("pool").ttl(LONG).permit(size).acquire();
    let _one = permit(2).await.unwrap();
    let two = permit(2).await.unwrap();
    let full = permit(2).await.unwrap_err();
    assert!(matches!(full.kind(), ErrorKind::Contended { .. }), "{full:?}");
    for other in [permit(3).await, client.lock("pool").wait(WAIT).shared().acquire().await] {
        let refused = other.unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::Invalid, "{refused:?}");
        assert_eq!(refused.problem().unwrap().code, Code::LockKindConflict);
        assert!(refused.to_string().contains("semaphore of size 2"), "{refused}");
    }
    for size in [0, 1025] {
        let refused = permit(size).await.unwrap_err();
        assert!(refused.to_string().contains("1 to 1024"), "{refused}");
    }
    let session = long_session(&client).await;
    let refused = session.group().exclusive("a").permit("b", 0).acquire_all().await.unwrap_err();
    assert!(refused.to_string().contains("1 to 1024"), "{refused}");
    let refused = session.group().exclusive("a").permit("pool", 5).acquire_all().await.unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::Invalid);
    assert_eq!(refused.lock().unwrap().as_str(), "pool");
    two.release().await.unwrap();
    assert!(permit(2).await.unwrap().is_live());
}

/// A shared lease that the guard calls stale has a fellow there, and no server lost its memory; and
/// no client takes over what is shared.
#[tokio::test]
async fn what_is_shared_is_neither_reacquired_nor_taken_over() {
    let site = Site::new().await;
    let client = site.client();
    let reader = || client.lock("doc").ttl(LONG).shared();
    let one = reader().acquire().await.unwrap();
    let two = reader().acquire().await.unwrap();
    client.objects().put(&two, "doc", "two").await.unwrap();
    let stale = client.objects().put(&one, "doc", "one").await.unwrap_err();
    assert!(matches!(stale.kind(), ErrorKind::Stale { .. }), "{stale:?}");
    let refused = one.reacquire_above(&stale).await.unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::Invalid, "{refused:?}");
    assert!(refused.to_string().contains("another holder"), "{refused}");
    let named = Client::builder().lock_server(&site.locks.base).owner("svc").build().unwrap();
    let refused = named.lock("doc").shared().takeover().acquire().await.unwrap_err();
    assert!(refused.to_string().contains("for exclusive leases"), "{refused}");
    let session = long_session(&named).await;
    let mixed = session.group().exclusive("a").shared("doc").takeover().acquire_all().await;
    let refused = mixed.unwrap_err();
    assert!(refused.to_string().contains("doc cannot be taken over"), "{refused}");
    assert_eq!(show(&client, "a").await.state, LockState::Free);
}

/// Each lock in its own mode, in the order that was asked for.
#[tokio::test]
async fn a_group_has_locks_of_every_kind() {
    let site = Site::new().await;
    let client = site.client();
    let _reader = client.lock("config").ttl(LONG).shared().acquire().await.unwrap();
    let session = long_session(&client).await;
    let print = session.locks(["printers/3"]).shared("config").permit("printers", 2);
    let held = print.clone().acquire_all().await.unwrap();
    let modes: Vec<_> = held.iter().map(|lease| lease.grant().mode).collect();
    assert_eq!(modes, [LeaseMode::Exclusive, LeaseMode::Shared, LeaseMode::Permit]);
    assert!(held.windows(2).all(|pair| pair[0].token() < pair[1].token()));
    let second = session.group().permit("printers", 2).shared("config").exclusive("printers/4");
    second.acquire_all().await.unwrap();
    let other = long_session(&client).await;
    let full = other.group().exclusive("printers/5").permit("printers", 2).acquire_all().await;
    let refused = full.unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Contended { .. }), "{refused:?}");
    assert!(refused.to_string().contains("acquire printers (one of"), "{refused}");
    assert_eq!(show(&client, "printers/5").await.state, LockState::Free);
}

/// A group that waits holds nothing, has its place at every lock, and leaves all of them when it is
/// dropped.
#[tokio::test]
async fn a_group_holds_nothing_while_it_waits() {
    let site = Site::new().await;
    let client = site.client();
    let other = site.client();
    let theirs = other.lock("b").ttl(LONG).acquire().await.unwrap();
    let session = long_session(&client).await;
    let mut waiting = Box::pin(session.locks(["a", "b", "c"]).wait(WAIT).acquire_all());
    tokio::select! {
        got = &mut waiting => panic!("{got:?}"),
        () = queue_of(&other, "b", 1) => {}
    }
    for lock in ["a", "c"] {
        let shown = show(&other, lock).await;
        assert_eq!((shown.state, shown.queue_length), (LockState::Free, 1), "{lock}");
    }
    drop(waiting);
    for lock in ["a", "b", "c"] {
        queue_of(&other, lock, 0).await;
    }
    let all = session.locks(["c", "b", "a"]).wait(WAIT).acquire_all();
    let (held, released) = tokio::join!(all, theirs.release());
    released.unwrap();
    assert_eq!(held.unwrap().len(), 3);
}

const ALL: [&str; 3] = ["a", "b", "c"];

/// A session behind a proxy, and a client that sees what the server has.
struct Lossy {
    proxy: FaultProxy,
    session: Session,
    seen: Client,
    site: Site,
}

impl Lossy {
    async fn new() -> Self {
        let site = Site::new().await;
        let proxy = FaultProxy::before(&site.locks.address()).await;
        let url = format!("http://{}", proxy.address());
        let client = Client::builder().lock_server(url).build().unwrap();
        let session = long_session(&client).await;
        Self { proxy, session, seen: site.client(), site }
    }

    /// Begins to acquire; the server has granted all of them, and the reply is gone.
    async fn begin(&self) -> impl Future<Output = Result<LeaseSet, fence_client::Error>> {
        self.proxy.set(Fault::DropReplies);
        let all = self.session.locks(ALL).wait(WAIT).patience(WAIT).acquire_all();
        let mut all = Box::pin(all);
        tokio::select! {
            got = &mut all => panic!("{got:?}"),
            () = until_true("a swallowed reply", || async { self.proxy.dropped() > 0 }) => {}
        }
        all
    }

    fn heal(&self) {
        self.proxy.set(Fault::None);
        self.proxy.cut();
    }

    async fn lease_count(&self) -> usize {
        self.seen.sessions().show(self.session.id()).await.unwrap().lease_count
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_whose_reply_is_lost_is_granted_once() {
    let lossy = Lossy::new().await;
    let begun = lossy.begin().await;
    let mut granted = Vec::new();
    for lock in ALL {
        granted.push(show(&lossy.seen, lock).await.holder.unwrap().info.token);
    }
    lossy.heal();
    let held = soon("the group", begun).await.unwrap();
    let tokens: Vec<_> = held.iter().map(|lease| lease.token()).collect();
    assert_eq!(tokens, granted);
    for lock in ALL {
        assert!(show(&lossy.seen, lock).await.history.is_empty(), "{lock} was granted twice");
    }
    assert_eq!(lossy.lease_count().await, 3);
}

/// One lease of the group whose reply was lost was revoked: its fellows do not stand in the way of
/// the next try, and do not stay behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_lost_one_unheard_begins_anew() {
    let lossy = Lossy::new().await;
    let begun = lossy.begin().await;
    let b = LockName::new("b").unwrap();
    lossy.seen.locks().revoke(&b, "by the test").await.unwrap();
    let old = show(&lossy.seen, "a").await.holder.unwrap();
    lossy.heal();
    let held = soon("the group", begun).await.unwrap();
    assert!(held[0].lease_id() != old.lease_id && held[0].token() > old.info.token);
    held.check().unwrap();
    assert_eq!(lossy.lease_count().await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_group_whose_reply_is_lost_frees_every_lock() {
    let lossy = Lossy::new().await;
    let begun = lossy.begin().await;
    for lock in ALL {
        assert_eq!(show(&lossy.site.client(), lock).await.state, LockState::Held);
    }
    drop(begun);
    lossy.heal();
    for lock in ALL {
        until_true("a free lock", || async {
            show(&lossy.seen, lock).await.state == LockState::Free
        })
        .await;
    }
    assert_eq!(lossy.lease_count().await, 0);
    lossy.session.check().unwrap();
}
