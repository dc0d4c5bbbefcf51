//! The wall clock of a lock server is set, forward and back, while it runs and between two starts.
//! etcd has no part in it: Go does not read the time through the C library, so its clock cannot be
//! set.

use fence_protocol::Code;
use fence_tests::checks::{overlaps, tokens_rise};
use fence_tests::etcd_server::Etcd;
use fence_tests::history::History;
use fence_tests::redis_clock::OwnClock;
use fence_tests::servers::Server;
use fence_tests::wait::{soon, until, until_true};
use serde_json::json;

use super::believers::{acquire_recorded, granted, waiting};
use super::restore::Backup;
use super::{LONG_MS, lock_server, patient};

const HOUR: i64 = 3_600;

/// A server whose wall clock is this one.
async fn server_with(etcd: &Etcd, clock: &OwnClock) -> Server {
    let setup = patient(&etcd.url());
    let environment = clock.environment();
    let setup = environment.iter().fold(setup, |setup, (name, value)| setup.env(name, value));
    let server = setup.start().await;
    let log = server.process.stderr() + &server.process.stdout();
    assert!(!log.contains("cannot be preloaded"), "{log}");
    server
}

/// A lease ends when its TTL has passed, not when a wall clock says so: neither earlier after a
/// step forward, nor hours later after a step back; and no token is unverified.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_a_servers_wall_clock_end_no_lease_and_lower_no_token() {
    let etcd = Etcd::start().await;
    let history = History::new();
    let clock = OwnClock::at(0);
    let stepped = server_with(&etcd, &clock).await;
    let right = lock_server(&etcd).await;
    let locks = stepped.locks();
    let other = right.locks();
    let kept = granted(&locks, &history, "kept").await;
    for (round, step) in [HOUR, -24 * HOUR, 24 * HOUR, 0].into_iter().enumerate() {
        let lock = format!("short/{round}");
        // A grant whose reply was late for so short a time may have been rolled back.
        let short = until("a short lease", || async {
            let ask = json!({"ttl_ms": 1_200});
            let reply = acquire_recorded(&locks, &history, &lock, ask).await;
            (reply.status == 200).then(|| reply.lease())
        })
        .await;
        clock.step(step);
        other.acquire("kept", json!({})).await.problem(Code::LockHeld);
        assert_eq!(locks.renew("kept", kept.lease_id).await.lease().token, kept.token);
        let wait = json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS});
        let asked = acquire_recorded(&other, &history, &lock, wait);
        let next = soon("the end of a short lease", asked).await.lease();
        assert!(next.token > short.token);
        locks.renew(&lock, short.lease_id).await.problem(Code::LeaseLost);
    }
    tokens_rise(&history.grants()).unwrap();
    assert_eq!(overlaps(&history.grants()), Vec::<String>::new());
    for server in [&stepped, &right] {
        let api = server.locks().0;
        until_true("etcd to be well", || async {
            let ready = api.get("/readyz?verbose").await;
            let text = String::from_utf8_lossy(&ready.body);
            ready.status == 200 && text.contains("[+]etcd ok")
        })
        .await;
    }
}

/// Waiters are served by a server whose clock was set back, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_served_whatever_the_wall_clock_says() {
    let etcd = Etcd::start().await;
    let clock = OwnClock::at(0);
    let server = server_with(&etcd, &clock).await;
    let locks = server.locks();
    for step in [-HOUR, HOUR] {
        let held = locks.grant("turn", LONG_MS).await;
        let waiter = waiting(&locks, "turn");
        locks.queue_of("turn", 1).await;
        clock.step(step);
        locks.release("turn", held.lease_id).await.expect(200);
        let next = soon("the waiter", waiter).await.unwrap().lease();
        assert!(next.token > held.token);
        locks.release("turn", next.lease_id).await.expect(200);
    }
}

/// Servers start with clocks that are behind that of the first one: the offset never falls, so
/// tokens rise as long as etcd is what it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_with_clocks_set_back_lower_no_token() {
    let etcd = Etcd::start().await;
    let mut highest = 0;
    for behind in [0, -HOUR, -24 * HOUR, -HOUR] {
        let server = server_with(&etcd, &OwnClock::at(behind)).await;
        let token = server.locks().grant(&format!("back/{highest}"), LONG_MS).await.token.get();
        assert!(token > highest, "{token} after {highest}");
        highest = token;
    }
}

/// The hole, as documented: a backup is put back, and the clock of the server that starts then is
/// set back beyond that of the last one. The next one with the right time mends it, and so does a
/// guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_backup_and_a_clock_set_back_lower_the_tokens() {
    let mut etcd = Etcd::start().await;
    let backup = Backup::new();
    let mut early = server_with(&etcd, &OwnClock::at(-2 * HOUR)).await;
    early.locks().grant("early", LONG_MS).await;
    etcd.save(&backup.file()).await;
    early.process.kill();
    let mut right = lock_server(&etcd).await;
    let issued = right.locks().grant("right", LONG_MS).await;
    right.process.kill();
    etcd.restore(&backup.file()).await;
    etcd.start_again().await;
    let behind = OwnClock::at(-HOUR);
    let mut late = server_with(&etcd, &behind).await;
    let lower = late.locks().grant("late", LONG_MS).await;
    assert!(lower.token < issued.token, "{} is not below {}", lower.token, issued.token);
    late.process.kill();
    let again = lock_server(&etcd).await;
    let next = again.locks().grant("again", LONG_MS).await;
    assert!(next.token > issued.token, "{} after {}", next.token, issued.token);
}
