//! An older backup of etcd is put back. Its revisions are lower than those that tokens were made
//! of; the tokens go on above everything that was issued.

use std::path::PathBuf;

use fence_protocol::Code;
use fence_tests::api::Locks;
use fence_tests::etcd_server::{Etcd, EtcdCluster};
use fence_tests::history::History;
use fence_tests::key_file::lease_id;
use fence_tests::servers::Server;
use fence_tests::wait::until;
use serde_json::json;
use tempfile::TempDir;

use super::believers::{acquire_recorded, granted, the_guard_fences, two_believe};
use super::{LONG_MS, answered, lock_server, patient};

pub(super) struct Backup(TempDir);

impl Backup {
    pub(super) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(super) fn file(&self) -> PathBuf {
        self.0.path().join("backup")
    }
}

/// Issues so many tokens and gives the highest.
async fn issue(locks: &Locks, count: usize) -> u64 {
    let mut highest = 0;
    for _ in 0..count {
        let lease = locks.grant("busy", LONG_MS).await;
        assert!(lease.token.get() > highest, "{} after {highest}", lease.token);
        highest = lease.token.get();
        locks.let_go("busy", lease.lease_id).await;
    }
    highest
}

/// The first token that is granted again. A request of unknown outcome is retried.
pub(super) async fn next_token(locks: &Locks, lock: &str) -> u64 {
    let ask = json!({"ttl_ms": LONG_MS, "lease_id": lease_id()});
    until("a grant after the loss", || async {
        let reply = locks.try_acquire(lock, ask.clone()).await.ok()?;
        match reply.status {
            503 | 504 => None,
            _ => Some(reply.lease().token.get()),
        }
    })
    .await
}

/// A node with a backup that knows nothing of the tokens up to the one that is given.
async fn outdated(etcd: &Etcd, server: &Server, backup: &Backup) -> u64 {
    issue(&server.locks(), 3).await;
    etcd.save(&backup.file()).await;
    issue(&server.locks(), 20).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_server_continues_above_the_tokens_it_issued() {
    let mut etcd = Etcd::start().await;
    let backup = Backup::new();
    let server = lock_server(&etcd).await;
    let highest = outdated(&etcd, &server, &backup).await;
    let kept = server.locks().grant("kept", LONG_MS).await;
    etcd.restore(&backup.file()).await;
    etcd.start_again().await;
    let next = next_token(&server.locks(), "next").await;
    assert!(next > highest.max(kept.token.get()), "{next} after {highest} and {}", kept.token);
    assert!(issue(&server.locks(), 3).await > next);
    // Its lease is gone, and no reply says that it lives.
    let locks = server.locks();
    let lost = answered(|| locks.renew("kept", kept.lease_id)).await;
    assert_eq!(lost.status, 410, "{lost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_down_continues_above_the_issued_tokens() {
    let mut etcd = Etcd::start().await;
    let backup = Backup::new();
    let mut server = lock_server(&etcd).await;
    let highest = outdated(&etcd, &server, &backup).await;
    server.process.kill();
    etcd.restore(&backup.file()).await;
    etcd.start_again().await;
    let server = lock_server(&etcd).await;
    let next = next_token(&server.locks(), "next").await;
    assert!(next > highest, "{next} after {highest}");
    assert!(issue(&server.locks(), 3).await > next);
}

/// The server that issued the tokens is gone; the one that is left only watched. What it can know
/// of the others' tokens depends on whether anything was released, so both are tried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_only_watched_continues_above_the_others_tokens() {
    for releases in [true, false] {
        let mut etcd = Etcd::start().await;
        let backup = Backup::new();
        let mut busy = lock_server(&etcd).await;
        let idle = lock_server(&etcd).await;
        next_token(&idle.locks(), "idle").await;
        etcd.save(&backup.file()).await;
        let locks = busy.locks();
        let mut highest = 0;
        for number in 0..20 {
            let lock = format!("busy/{number}");
            let lease = locks.grant(&lock, LONG_MS).await;
            highest = lease.token.get();
            if releases {
                locks.release(&lock, lease.lease_id).await.expect(200);
            }
        }
        busy.process.kill();
        etcd.restore(&backup.file()).await;
        etcd.start_again().await;
        let next = next_token(&idle.locks(), "next").await;
        assert!(next > highest, "{next} after {highest}");
    }
}

/// The data folder of a paused node is as old as a backup, and more easily at hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_twice_the_tokens_still_rise() {
    let mut etcd = Etcd::start().await;
    let backup = Backup::new();
    let server = lock_server(&etcd).await;
    let mut highest = outdated(&etcd, &server, &backup).await;
    for round in 0..2 {
        etcd.restore(&backup.file()).await;
        etcd.start_again().await;
        let next = next_token(&server.locks(), &format!("round/{round}")).await;
        assert!(next > highest, "{next} after {highest}");
        highest = issue(&server.locks(), 5).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_three_is_restored_under_two_servers() {
    let mut cluster = EtcdCluster::start(3).await;
    let backup = Backup::new();
    let setup = patient(&cluster.url());
    let servers = [setup.start().await, setup.start().await];
    let mut highest = outdated(cluster.node(0), &servers[0], &backup).await;
    highest = highest.max(issue(&servers[1].locks(), 5).await);
    cluster.restore(&backup.file()).await;
    for (server, lock) in servers.iter().zip(["one", "two"]) {
        let next = next_token(&server.locks(), lock).await;
        assert!(next > highest, "{next} after {highest}");
        highest = next;
    }
}

/// A lease that the backup lacks is not waited for: its holder and the next one believe at once,
/// and the next one has the higher token. A server that ran meanwhile or one that starts, it is the
/// same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_the_backup_lacks_is_granted_to_another_with_a_higher_token() {
    let mut etcd = Etcd::start().await;
    let backup = Backup::new();
    let history = History::new();
    let running = lock_server(&etcd).await;
    let mut dying = lock_server(&etcd).await;
    etcd.save(&backup.file()).await;
    let old = granted(&dying.locks(), &history, "held").await;
    dying.process.kill();
    etcd.restore(&backup.file()).await;
    etcd.start_again().await;
    let new = granted(&running.locks(), &history, "held").await;
    two_believe(&history);
    the_guard_fences(&old, &new).await;
    let started = lock_server(&etcd).await;
    for server in [&running, &started] {
        server.locks().renew("held", old.lease_id).await.problem(Code::LeaseLost);
        assert_eq!(server.locks().renew("held", new.lease_id).await.lease().token, new.token);
    }
}

/// A lease that has ended since is back with the backup, and a later one is forgotten: the lock is
/// the former holder's again, with the token that it had, while the later holder believes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_the_backup_brings_back_has_its_old_token() {
    let mut etcd = Etcd::start().await;
    let backup = Backup::new();
    let history = History::new();
    let server = lock_server(&etcd).await;
    let locks = server.locks();
    let first = granted(&locks, &history, "held").await;
    etcd.save(&backup.file()).await;
    history.releasing(first.lease_id);
    locks.release("held", first.lease_id).await.expect(200);
    let second = granted(&locks, &history, "held").await;
    etcd.restore(&backup.file()).await;
    etcd.start_again().await;
    until("the lock to be the first one's", || async {
        let renewed = locks.renew("held", first.lease_id).await;
        (!matches!(renewed.status, 503 | 504)).then(|| {
            assert_eq!(renewed.lease().token, first.token);
        })
    })
    .await;
    locks.renew("held", second.lease_id).await.problem(Code::LeaseLost);
    acquire_recorded(&locks, &history, "held", json!({})).await.problem(Code::LockHeld);
    locks.release("held", first.lease_id).await.expect(200);
    let third = granted(&locks, &history, "held").await;
    two_believe(&history);
    the_guard_fences(&first, &second).await;
    the_guard_fences(&second, &third).await;
}
