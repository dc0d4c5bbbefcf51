//! An older backup is put back, and revisions are given a second time: what a server remembers of
//! the life before is about other leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fence_protocol::Code;
use fence_protocol::wire::lock::LeaseReply;
use fence_tests::api::Locks;
use fence_tests::etcd_server::Etcd;
use fence_tests::key_file::lease_id;
use fence_tests::servers::Server;
use fence_tests::wait::{soon, until, until_true};
use serde_json::{Value, json};

use super::bad_input::make_room;
use super::restore::{Backup, next_token};
use super::{LONG_MS, lock_server, until_ready};

/// Others write, until the revision is this at least.
async fn burn(etcd: &Etcd, revision: u64) {
    while etcd.revision().await < revision {
        etcd.put("others/key", "value").await;
    }
}

/// A grant at about this revision.
async fn granted_at(
    etcd: &Etcd,
    server: &Server,
    revision: u64,
    lock: &str,
    ask: Value,
) -> LeaseReply {
    burn(etcd, revision - 1).await;
    server.locks().acquire(lock, ask).await.lease()
}

/// Two leases that two servers granted by one revision, in two lives of one etcd, of which the
/// first server noticed nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revision_that_is_given_twice_is_not_the_same_lease() {
    let mut etcd = Etcd::start().await;
    let backup = Backup::new();
    let old = lock_server(&etcd).await;
    let new = lock_server(&etcd).await;
    let ask = json!({"ttl_ms": LONG_MS});
    // Both have looked at etcd, and write nothing by themselves from here on.
    next_token(&old.locks(), "warm").await;
    next_token(&new.locks(), "warm/too").await;
    etcd.save(&backup.file()).await;
    let first = etcd.revision().await + 40;
    let renewed = granted_at(&etcd, &old, first, "renewed", ask.clone()).await;
    let released = granted_at(&etcd, &old, first + 10, "released", ask.clone()).await;
    let seen = etcd.log_length().await;
    old.process.pause();
    etcd.restore(&backup.file()).await;
    etcd.start_again().await;
    next_token(&new.locks(), "again").await;
    until_ready(&new).await;
    let mine = granted_at(&etcd, &new, first, "renewed", ask.clone()).await;
    let other = granted_at(&etcd, &new, first + 10, "released", ask).await;
    etcd.grow_beyond(seen + 10).await;
    old.process.resume();
    let locks = old.locks();
    let well = new.locks();
    let late = until("an answer", || async {
        let reply = locks.renew("renewed", renewed.lease_id).await;
        (!matches!(reply.status, 503 | 504)).then_some(reply)
    });
    late.await.problem(Code::LeaseLost);
    locks.release("released", released.lease_id).await.problem(Code::LeaseLost);
    for (lock, lease) in [("renewed", mine), ("released", other)] {
        assert_eq!(well.renew(lock, lease.lease_id).await.lease().token, lease.token);
    }
}

/// Keys left from the life before do not keep a lock from being granted now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_granted_anew_is_kept_anew() {
    let mut etcd = Etcd::start().await;
    let backup = Backup::new();
    let server = lock_server(&etcd).await;
    let locks = server.locks();
    locks.grant("warm", LONG_MS).await;
    etcd.save(&backup.file()).await;
    burn(&etcd, etcd.revision().await + 40).await;
    let old = locks.grant("kept", LONG_MS).await;
    etcd.restore(&backup.file()).await;
    etcd.start_again().await;
    next_token(&locks, "next").await;
    let new = locks.grant("kept", LONG_MS).await;
    assert!(new.token > old.token);
    // To the millisecond where it is kept; etcd's whole seconds would still be all of it.
    let holder = locks.show("kept").await.holder.expect("a holder");
    assert!(holder.info.expires_in_ms < LONG_MS, "{holder:?}");
}

/// Acquires one token after another, each for a lock of its own, until `stop` is set. A request of
/// unknown outcome is retried.
async fn try_on(locks: Locks, name: String, seen: Arc<SeenTokens>) {
    for number in 0.. {
        if seen.stop.load(Ordering::SeqCst) {
            return;
        }
        let ask = json!({"lease_id": lease_id(), "ttl_ms": LONG_MS, "owner": "me"});
        let lock = format!("{name}/{number}");
        let token = until("a token", || async {
            let reply = locks.acquire(&lock, ask.clone()).await;
            (!matches!(reply.status, 503 | 504)).then(|| reply.lease().token.get())
        })
        .await;
        if seen.is_later.load(Ordering::SeqCst) {
            seen.lowest_later.fetch_min(token, Ordering::SeqCst);
            seen.later.fetch_add(1, Ordering::SeqCst);
        } else {
            seen.highest.fetch_max(token, Ordering::SeqCst);
        }
    }
}

/// Tokens that clients received before and after an older backup was put back.
#[derive(Debug)]
struct SeenTokens {
    highest: AtomicU64,
    lowest_later: AtomicU64,
    later: AtomicU64,
    is_later: AtomicBool,
    stop: AtomicBool,
}

const CLIENTS: u64 = 8;
/// Far more revisions than all clients together use at one moment.
const FAR: u64 = 200;

/// The server is paused while the backup is put back, so that the grants that it was about to send
/// reach the older state. Their tokens are too low, so neither the first reply nor a retry reports
/// them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_possibly_granted_lease_is_reported_to_no_client() {
    let mut etcd = Etcd::start().await;
    let backup = Backup::new();
    let server = lock_server(&etcd).await;
    for round in 0..2 {
        next_token(&server.locks(), &format!("warm/{round}")).await;
        etcd.save(&backup.file()).await;
        let begin = etcd.revision().await;
        let seen = Arc::new(SeenTokens {
            highest: AtomicU64::new(0),
            lowest_later: AtomicU64::new(u64::MAX),
            later: AtomicU64::new(0),
            is_later: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        burn(&etcd, begin + FAR).await;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let name = format!("{round}/{client}");
                tokio::spawn(try_on(server.locks(), name, seen.clone()))
            })
            .collect();
        until_true("tokens", || async { etcd.revision().await > begin + FAR + 40 }).await;
        server.process.pause();
        seen.is_later.store(true, Ordering::SeqCst);
        etcd.restore(&backup.file()).await;
        etcd.start_again().await;
        server.process.resume();
        let enough = CLIENTS * 5;
        until_true("tokens again", || async { seen.later.load(Ordering::SeqCst) > enough }).await;
        seen.stop.store(true, Ordering::SeqCst);
        for client in clients {
            soon("a client", client).await.unwrap();
        }
        let highest = seen.highest.load(Ordering::SeqCst);
        let lowest = seen.lowest_later.load(Ordering::SeqCst);
        // A token granted before and reported after may be a few below.
        assert!(lowest + FAR / 2 > highest, "{lowest} was reported after {highest}");
    }
}

/// A lift that etcd does not take answers no doubt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doubt_stays_until_the_lift_is_written() {
    let mut etcd = Etcd::with(&["--quota-backend-bytes=1048576"]).await;
    let backup = Backup::new();
    let server = lock_server(&etcd).await;
    let locks = server.locks();
    locks.grant("warm", LONG_MS).await;
    etcd.save(&backup.file()).await;
    burn(&etcd, etcd.revision().await + FAR).await;
    let highest = locks.grant("highest", LONG_MS).await.token.get();
    server.process.pause();
    etcd.restore(&backup.file()).await;
    etcd.start_again().await;
    etcd.fill().await;
    server.process.resume();
    until_true("readyz to say why", || async {
        let ready = locks.0.get("/readyz?verbose").await;
        ready.status == 503 && String::from_utf8_lossy(&ready.body).contains("NOSPACE")
    })
    .await;
    let refused = locks.acquire("refused", json!({"ttl_ms": LONG_MS})).await;
    assert!(matches!(refused.status, 503 | 504), "{refused:?}");
    make_room(&etcd).await;
    let next = next_token(&locks, "next").await;
    assert!(next > highest, "{next} after {highest}");
}
