//! Several locks at once, under one session.

use std::time::Duration;

use fence_client::protocol::LockName;
use fence_client::protocol::wire::lock::{EndReason, LockState};
use fence_client::{Client, ErrorKind, LostReason, Session};
use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until_true};

use super::Site;

/// It is renewed after a third, and outlives a stall of the machine for three seconds then.
const TTL: Duration = Duration::from_secs(8);
const WAIT: Duration = Duration::from_secs(60);

fn lost(reason: EndReason) -> ErrorKind {
    ErrorKind::LeaseLost { reason: LostReason::Ended(reason) }
}

async fn is_free(client: &Client, lock: &str) -> bool {
    let lock = LockName::new(lock).unwrap();
    client.locks().show(&lock).await.unwrap().state == LockState::Free
}

/// The leases come in the order that was asked for, each with a token that the guard takes for its
/// own lock, and one end frees all of them.
#[tokio::test]
async fn all_are_held_and_freed_together() {
    let site = Site::new().await;
    let client = site.client();
    let session = Session::begin(&client, TTL).await.unwrap();
    let held = session.locks(["z", "a", "m"]).acquire_all().await.unwrap();
    let names: Vec<&str> = held.iter().map(|lease| lease.lock().as_str()).collect();
    assert_eq!(names, ["z", "a", "m"]);
    for lease in held.iter() {
        client.objects().put(lease, lease.lock().as_str(), "1").await.unwrap();
    }
    let credential = held.fencing_credential();
    let tokens = fence_client::protocol::credential::parse(&credential).unwrap();
    assert_eq!(tokens.len(), 3);
    assert_eq!(tokens[1].token, held.lease_on("a").unwrap().token());
    assert_eq!(session.end().await.unwrap(), 3);
    assert!(held.check().is_err(), "trusted after the end");
    for name in names {
        assert!(is_free(&client, name).await, "{name}");
    }
}

/// A release whose future is dropped continues, and what a lost one leaves is given back: the
/// session lives, and no handle to it is left.
#[tokio::test]
async fn nothing_is_held_without_a_handle() {
    let site = Site::new().await;
    let client = site.client();
    let session = client.session().ttl(Duration::from_secs(600)).begin().await.unwrap();
    let held = session.locks(["a", "z"]).acquire_all().await.unwrap();
    tokio::select! {
        biased;
        released = held.release() => released.unwrap(),
        () = std::future::ready(()) => {}
    }
    for lock in ["a", "z"] {
        until_true("the release to go on", || is_free(&client, lock)).await;
    }
    let short = client.session().ttl(TTL).begin().await.unwrap();
    let held = short.locks(["a", "z"]).acquire_all().await.unwrap();
    let lock = LockName::new("a").unwrap();
    client.locks().revoke(&lock, "by the test").await.unwrap();
    let ended = soon("the loss", held.run(async |_| std::future::pending::<()>().await)).await;
    assert_eq!(*ended.unwrap_err().kind(), lost(EndReason::Revoked));
    until_true("the other to be given back", || is_free(&client, "z")).await;
    short.check().unwrap();
}

/// One of them is held by another: none is kept, and the session continues without.
#[tokio::test]
async fn all_or_nothing() {
    let site = Site::new().await;
    let client = site.client();
    let other = site.client();
    let theirs = other.lock("m").acquire().await.unwrap();
    let session = Session::begin(&client, TTL).await.unwrap();
    let refused = session.locks(["a", "m", "z"]).acquire_all().await.unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Contended { .. }), "{refused:?}");
    assert!(refused.to_string().contains("acquire m"), "{refused}");
    assert_eq!(refused.lock().unwrap().as_str(), "m");
    assert!(is_free(&client, "a").await);
    assert!(is_free(&client, "z").await);
    theirs.release().await.unwrap();
    session.locks(["a", "m", "z"]).wait(WAIT).acquire_all().await.unwrap();
    session.check().unwrap();
}

#[tokio::test]
async fn too_many_or_one_twice_is_refused_before_anything_is_sent() {
    let site = Site::new().await;
    let client = site.client();
    let session = Session::begin(&client, TTL).await.unwrap();
    let many: Vec<String> = (0..65).map(|n| format!("n/{n}")).collect();
    for (names, shown) in [
        (many, "1 to 64"),
        (vec![], "1 to 64"),
        (vec!["a".to_owned(), "b".to_owned(), "a".to_owned()], "\"a\" is there twice"),
        (vec!["a".to_owned(), "b//".to_owned()], "b//"),
    ] {
        let refused = session.locks(names).acquire_all().await.unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::Invalid);
        assert!(refused.to_string().contains(shown), "{refused}");
    }
    assert!(is_free(&client, "a").await);
    let all: Vec<String> = (0..64).map(|n| format!("n/{n}")).collect();
    assert_eq!(session.locks(all).acquire_all().await.unwrap().len(), 64);
}

/// Two that want the same locks in opposite orders, again and again: none waits for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opposite_orders_never_deadlock() {
    let site = Site::new().await;
    let turns = |names: [&'static str; 3]| {
        let client = site.client();
        async move {
            let session = Session::begin(&client, Duration::from_secs(30)).await.unwrap();
            for _ in 0..20 {
                let held = session.locks(names).wait(WAIT).acquire_all().await.unwrap();
                held.release().await.unwrap();
            }
        }
    };
    let both = async { tokio::join!(turns(["a", "b", "c"]), turns(["c", "b", "a"])) };
    soon("both to have had their turns", both).await;
}

/// A lease of a session is revoked, or taken over by a later incarnation: its holder learns it from
/// the heartbeat, its work is dropped, and the other leases live on.
async fn one_lease_alone_is_lost(server: &Server) {
    let life = |incarnation: &str| {
        let builder = Client::builder().lock_server(&server.base).owner("svc");
        builder.incarnation(incarnation).build().unwrap()
    };
    let old = life("1");
    let new = life("2");
    let session = Session::begin(&old, TTL).await.unwrap();
    let held = session.locks(["a", "b", "c"]).acquire_all().await.unwrap();
    let kept = held.lease_on("c").unwrap().clone();
    let pair = session.locks(["d", "e"]).acquire_all().await.unwrap();
    server.locks().revoke("a", "by the test").await.expect(200);
    let error = soon("the revoked lease to be noticed", held.lost()).await;
    assert_eq!(*error.kind(), lost(EndReason::Revoked));
    let working = pair.run(async |_| std::future::pending::<()>().await);
    let taking = async { new.lock("e").takeover().acquire().await.unwrap() };
    let (ended, taken) = tokio::join!(soon("the work to be dropped", working), taking);
    assert_eq!(*ended.unwrap_err().kind(), lost(EndReason::Superseded));
    assert!(taken.is_live());
    kept.check().unwrap();
    session.check().unwrap();
    // One that is gone is not looked for again, and a new loss is noticed all the same.
    server.locks().revoke("c", "by the test").await.expect(200);
    assert_eq!(*soon("the next one", kept.lost()).await.kind(), lost(EndReason::Revoked));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_lease_alone_is_lost_in_memory() {
    one_lease_alone_is_lost(&Setup::lock_server("memory:").start().await).await;
}

/// There the leases are counted by other means.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_lease_alone_is_lost_on_redis() {
    let redis = Redis::start().await;
    one_lease_alone_is_lost(&Setup::lock_server(&redis.url()).start().await).await;
}

/// The whole session is taken away: the work is dropped, and so is what one lease of it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_work_ends_with_the_session() {
    let site = Site::new().await;
    let client = site.client();
    let session = Session::begin(&client, TTL).await.unwrap();
    let id = session.id();
    let held = session.locks(["a", "b"]).acquire_all().await.unwrap();
    let one = held.lease_on("b").unwrap().clone();
    let under_one = tokio::spawn(one.run(async |_| std::future::pending::<()>().await));
    let under_all = tokio::spawn(session.run(async |_| std::future::pending::<()>().await));
    assert_eq!(client.sessions().end(id).await.unwrap().unwrap().lease_count, 2);
    for work in [under_one, under_all] {
        let error = soon("the work to be dropped", work).await.unwrap().unwrap_err();
        assert_eq!(*error.kind(), lost(EndReason::SessionEnded));
    }
    let again = client.sessions().heartbeat(id).await.unwrap_err();
    assert_eq!(*again.kind(), lost(EndReason::SessionEnded));
}

/// A session that is dropped frees its locks at once, and so does an acquire that is dropped while
/// it waits for the last of them.
#[tokio::test]
async fn what_is_dropped_is_given_back() {
    let site = Site::new().await;
    let client = site.client();
    let other = site.client();
    let theirs = other.lock("b").ttl(super::LONG).acquire().await.unwrap();
    let session = client.session().ttl(super::LONG).begin().await.unwrap();
    let mut waiting = Box::pin(session.locks(["a", "b"]).wait(WAIT).acquire_all());
    let b = LockName::new("b").unwrap();
    let in_line = until_true("the request to wait", || async {
        client.locks().show(&b).await.unwrap().queue_length == 1
    });
    tokio::select! {
        got = &mut waiting => panic!("{got:?}"),
        () = in_line => {}
    }
    drop(waiting);
    until_true("the request to leave", || async {
        client.locks().show(&b).await.unwrap().queue_length == 0
    })
    .await;
    assert!(is_free(&client, "a").await);
    let held = session.locks(["c"]).acquire_all().await.unwrap();
    drop(session);
    assert!(held.check().is_err(), "trusted without a heartbeat");
    until_true("the end of the session", || is_free(&client, "c")).await;
    theirs.release().await.unwrap();
    until_true("no waiter to be left", || is_free(&other, "b")).await;
}

/// The limits of a session are those of a lease.
#[tokio::test]
async fn a_session_that_reports_nothing_is_lost() {
    let site = Site::new().await;
    let client = site.client();
    let within = Duration::from_secs(6);
    let session = client.session().progress_within(within).begin().await.unwrap();
    let held = session.locks(["a"]).acquire_all().await.unwrap();
    session.report_progress().unwrap();
    let reason = LostReason::NoProgress { within };
    let error = soon("the loss", held.lost()).await;
    assert_eq!(*error.kind(), ErrorKind::LeaseLost { reason });
    assert!(session.report_progress().is_err(), "a late report brought it back");
}
