//! A transaction that waits for a replica in its COMMIT is committed, also if its session is ended.

use fence_tests::psql::DONE;
use fence_tests::wait::until_true;

use super::*;

/// The old holder's program learns it from a warning alone; its successor reads it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_ended_in_its_commit_has_committed() {
    for server in [Postgres::start().await, Postgres::newer("postgres-18", &[]).await] {
        install_on(&server).await;
        let mut old = app(&server);
        assert_eq!(old.run(&format!("begin; {}", enter("docs/1", 33, OLD))).await, DONE);
        assert_eq!(old.run("update docs set v = 'old' where id = 1;").await, DONE);
        let held = server.hold_commits().await;
        old.send("commit;");
        let waits = "select count(*) from pg_stat_activity where wait_event = 'SyncRep' \
                     and usename = 'app'";
        until_true("the commit to wait", || async { server.sql(waits).await == "1" }).await;
        assert_eq!(document(&server).await, "first");
        let mut new = app(&server);
        let sealing = new.send(&seal("docs/1", 34, NEW, 1));
        let ended = old.ended().await;
        assert!(ended.stderr.contains("has already committed locally"), "{}", ended.stderr);
        assert!(!ended.stderr.contains("FATAL"), "{}", ended.stderr);
        assert_eq!(document(&server).await, "old");
        // The seal's own commit waits as well.
        server.release_commits().await;
        assert_eq!(new.result(sealing).await, DONE);
        assert_eq!(new.run(&enter("docs/1", 33, OLD)).await, "FE412");
        drop(held);
    }
}
