//! The holes of docs/decisions/0051-records-in-etcd.md, shown: an older etcd that
//! looks like the newest, so that no running server doubts it. Tokens fall then, as documented,
//! until a lock server is started or a guard is asked. If one of these tests fails because they
//! rise, the documents are to be corrected.

use fence_tests::api::Locks;
use fence_tests::etcd_server::Etcd;
use fence_tests::key_file::unsigned;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::until_true;

use super::restore::{Backup, next_token};
use super::{lock_server, patient, until_ready};

/// Writes by others to the same etcd between the backup and the end.
const OTHERS_WRITES: usize = 200;

/// A server that runs and has seen nothing of what came after a backup, and the highest token that
/// another one issued after it. The backup is back, and looks like what the server has seen last.
struct Outwitted {
    etcd: Etcd,
    watched: Server,
    highest: u64,
}

impl Outwitted {
    /// `restore` puts the backup back.
    async fn new(restore: impl AsyncFnOnce(&mut Etcd, &Backup)) -> Self {
        let mut etcd = Etcd::start().await;
        let backup = Backup::new();
        let watched = lock_server(&etcd).await;
        let mut busy = lock_server(&etcd).await;
        next_token(&watched.locks(), "watched").await;
        // It stands in for one that looks a second too late.
        watched.process.pause();
        etcd.save(&backup.file()).await;
        let seen = etcd.log_length().await;
        for _ in 0..OTHERS_WRITES {
            etcd.put("others/key", "value").await;
        }
        let highest = next_token(&busy.locks(), "busy").await;
        busy.process.kill();
        restore(&mut etcd, &backup).await;
        etcd.start_again().await;
        etcd.grow_beyond(seen).await;
        let gone = etcd.range("fencepost/default/l/busy").await;
        assert!(gone.is_empty(), "the backup is from before the grant: {gone:?}");
        watched.process.resume();
        until_ready(&watched).await;
        Self { etcd, watched, highest }
    }

    fn locks(&self) -> Locks {
        self.watched.locks()
    }
}

/// The hole, after a token was issued below the highest one.
///
/// Etcd may still reply to a request that the server sent before it was stopped: the server then
/// knows a later revision than the backup has, and notices. So it is tried a few times.
async fn lowered() -> Outwitted {
    for _ in 0..5 {
        let site = Outwitted::new(async |etcd, backup| etcd.restore(&backup.file()).await).await;
        let token = next_token(&site.locks(), "lower").await;
        if token < site.highest {
            return site;
        }
    }
    panic!("the hole did not show in 5 attempts");
}

/// Cluster id, revision and log are not below what the server has seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_backup_that_looks_the_same_lowers_tokens_until_a_server_starts() {
    let site = lowered().await;
    let started = lock_server(&site.etcd).await;
    let next = next_token(&started.locks(), "started").await;
    assert!(next > site.highest, "{next} after {}", site.highest);
    let after = next_token(&site.locks(), "watched/again").await;
    assert!(after > next, "{after} after {next}");
}

/// An old backup as above, but with another cluster id, which is the only difference to see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_backup_in_another_cluster_lowers_no_token() {
    let site = Outwitted::new(async |etcd, backup| {
        etcd.restore_as("another", &backup.file()).await;
    })
    .await;
    let next = next_token(&site.locks(), "next").await;
    assert!(next > site.highest, "{next} after {}", site.highest);
    until_true("the line that says why", || async {
        let ready = site.locks().0.get("/readyz?verbose").await;
        let says_why = String::from_utf8_lossy(&ready.body).contains("the cluster id is ");
        ready.status == 200 && says_why
    })
    .await;
}

/// A backup from between `init --fresh` and the first grant says that nothing was issued yet.
struct Fresh {
    etcd: Etcd,
    highest: u64,
}

impl Fresh {
    async fn new() -> Self {
        let mut etcd = Etcd::start().await;
        let backup = Backup::new();
        let init = ["init", "--fresh", "--store", &etcd.url()];
        let output = fence_tests::process::run("lock-server", &init).await;
        assert_eq!(output.code, 0, "{output:?}");
        etcd.save(&backup.file()).await;
        let vouched_at = etcd.log_length().await;
        for _ in 0..OTHERS_WRITES {
            etcd.put("others/key", "value").await;
        }
        let mut server = lock_server(&etcd).await;
        let highest = next_token(&server.locks(), "issued").await;
        server.process.kill();
        etcd.restore(&backup.file()).await;
        etcd.start_again().await;
        etcd.grow_beyond(vouched_at).await;
        Self { etcd, highest }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_backup_is_believed_at_a_start() {
    let fresh = Fresh::new().await;
    let server = lock_server(&fresh.etcd).await;
    let lower = next_token(&server.locks(), "lower").await;
    assert!(lower < fresh.highest, "{lower} is not below {}", fresh.highest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_backup_is_not_believed_where_a_guard_has_seen_a_token() {
    let fresh = Fresh::new().await;
    let guard = Setup::fenced_store("memory:").start().await;
    let seen = unsigned(fresh.highest, "issued", fence_tests::key_file::lease_id());
    guard.guard().sealed("issued", &seen).await;
    let server = patient(&fresh.etcd.url()).args(&["--guard", &guard.base]).start().await;
    let next = next_token(&server.locks(), "next").await;
    assert!(next > fresh.highest, "{next} after {}", fresh.highest);
}
