//! The pack installed over an earlier one, while clients use it.

use fence_tests::psql::DONE;

use super::*;

/// Version 1 as it was.
const FIRST: [&str; 7] = [
    include_str!("version-1/1-schema.sql"),
    include_str!("version-1/2-fence.sql"),
    include_str!("version-1/3-sessions.sql"),
    include_str!("version-1/4-enter.sql"),
    include_str!("version-1/5-triggers.sql"),
    include_str!("version-1/6-status.sql"),
    include_str!("version-1/9-rights.sql"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_keeps_marks_and_open_transactions() {
    let server = installed_as(&format!("begin; {} commit;", FIRST.concat())).await;
    assert_eq!(server.sql("select version from fence.meta").await, "1");
    let mut old = app(&server);
    let mut other = app(&server);
    assert_eq!(old.run(&seal("docs/1", 33, OLD, 1)).await, DONE);
    assert_eq!(other.run(&seal("docs/2", 7, OLD, 1)).await, DONE);
    assert_eq!(old.run(&format!("begin; {}", enter("docs/1", 33, OLD))).await, DONE);
    assert_eq!(other.run(&format!("begin; {}", enter("docs/2", 7, OLD))).await, DONE);
    let newest = pack::sql();
    // Several at once, and again.
    for _ in 0..2 {
        let (one, two, three) =
            tokio::join!(server.try_sql(&newest), server.try_sql(&newest), server.try_sql(&newest));
        for ended in [one, two, three] {
            assert_eq!(ended.code, 0, "{}", ended.stderr);
        }
    }
    assert_eq!(server.sql("select version from fence.meta").await, pack::VERSION.to_string());
    // What had entered is still in the fence: it may write, and is found by a seal.
    assert_eq!(other.run("update docs set v = 'two' where id = 2; commit;").await, DONE);
    assert_eq!(old.run("update docs set v = 'old' where id = 1;").await, DONE);
    let mut new = app(&server);
    assert_eq!(new.run(&seal("docs/1", 34, NEW, 1)).await, DONE);
    old.send("commit;");
    assert_ne!(old.ended().await.code, 0);
    assert_eq!(new.run(&enter("docs/1", 33, OLD)).await, "FE412");
    assert_eq!(new.run(&enter("docs/2", 6, OLD)).await, "FE412");
    assert_eq!(document(&server).await, "first");
    assert_eq!(server.sql("select v from docs where id = 2").await, "two");
    // Nothing is left that this version does not install.
    let fresh = installed().await;
    let functions = "select string_agg(f, ' ' order by f) from (select oid::regprocedure::text f \
                     from pg_proc where pronamespace = 'fence'::regnamespace) fence";
    assert_eq!(server.sql(functions).await, fresh.sql(functions).await);
}

/// An open transaction that raised a mark holds no installation up, unless the version changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_installation_does_not_wait_for_a_stalled_client() {
    let server = installed().await;
    let mut old = app(&server);
    assert_eq!(old.run(&format!("begin; {}", enter("docs/1", 33, OLD))).await, DONE);
    old.process().pause();
    server.sql(&format!("set lock_timeout = '1s'; {}", pack::sql())).await;
    old.process().resume();
    assert_eq!(old.run("update docs set v = 'x' where id = 1; commit;").await, DONE);
}

/// A mark below a floor may have a lease: of version 2, of a dump, by replication.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_keeps_what_a_floor_ended() {
    let server = installed().await;
    assert_eq!(app(&server).run(&enter("docs/1", 33, OLD)).await, DONE);
    assert_eq!(app(&server).run(&enter("docs/2", 200, OLD)).await, DONE);
    assert_eq!(server.sql("select fence.set_floor(100)").await, "100");
    let back = format!("update fence.meta set version = 2; update fence.marks set lease = '{OLD}'");
    server.sql(&back).await;
    server.sql(&pack::sql()).await;
    assert_eq!(app(&server).run(&enter("docs/1", 33, OLD)).await, "FE412");
    assert_eq!(app(&server).run(&enter("docs/2", 200, OLD)).await, DONE);
}
