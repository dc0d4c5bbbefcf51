//! An older holder's transaction across a hand-over.

use fence_tests::psql::DONE;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_transaction_is_refused() {
    let server = installed().await;
    let mut old = app(&server);
    let mut new = app(&server);
    assert_eq!(old.run(&format!("begin; {}", enter("docs/1", 33, OLD))).await, DONE);
    assert_eq!(old.run("update docs set v = 'old' where id = 1; commit;").await, DONE);
    assert_eq!(new.run(&format!("begin; {}", enter("docs/1", 34, NEW))).await, DONE);
    assert_eq!(new.run("update docs set v = 'new' where id = 1; commit;").await, DONE);
    assert_eq!(old.run(&format!("begin; {}", enter("docs/1", 33, OLD))).await, "FE412");
    assert_eq!(old.run("rollback;").await, DONE);
    assert_eq!(old.run(&format!("begin; {}", enter("docs/1", 34, OLD))).await, "FE409");
    assert_eq!(old.run("rollback; update docs set v = 'none' where id = 1;").await, "FE428");
    assert_eq!(document(&server).await, "new");
}

/// The client is stopped between two statements of its transaction, as in a pause of its process;
/// the next holder's seal ends the transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_client_cannot_commit_after_the_seal() {
    let server = installed().await;
    let mut old = app(&server);
    assert_eq!(old.run(&format!("begin; {}", enter("docs/1", 33, OLD))).await, DONE);
    assert_eq!(old.run("update docs set v = 'old' where id = 1;").await, DONE);
    old.process().pause();
    let mut new = app(&server);
    assert_eq!(new.run(&seal("docs/1", 34, NEW, 1)).await, DONE);
    assert_eq!(document(&server).await, "first");
    old.send("commit;");
    old.process().resume();
    assert_ne!(old.ended().await.code, 0);
    assert_eq!(new.run(&format!("begin; {}", enter("docs/1", 34, NEW))).await, DONE);
    assert_eq!(new.run("update docs set v = v || ' new' where id = 1; commit;").await, DONE);
    assert_eq!(document(&server).await, "first new");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raise_waits_for_the_older_transaction_and_its_limit() {
    let server = installed().await;
    let mut old = app(&server);
    let mut new = app(&server);
    assert_eq!(old.run(&format!("begin; {}", enter("docs/1", 33, OLD))).await, DONE);
    assert_eq!(new.run("set lock_timeout = '50ms';").await, DONE);
    // Unlike a seal, enter ends no transaction.
    assert_eq!(new.run(&enter("docs/1", 34, NEW)).await, "55P03");
    assert_eq!(new.run("set lock_timeout = 0;").await, DONE);
    let waits = new.send(&enter("docs/1", 34, NEW));
    assert_eq!(old.run("update docs set v = 'old' where id = 1; commit;").await, DONE);
    assert_eq!(new.result(waits).await, DONE);
    assert_eq!(document(&server).await, "old");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_of_one_token_work_at_once() {
    let server = installed().await;
    let mut one = app(&server);
    let mut other = app(&server);
    assert_eq!(
        one.run(&format!("begin; {} {}", enter("docs/1", 3, OLD), enter("docs/2", 4, OLD))).await,
        DONE
    );
    assert_eq!(one.run("commit; begin;").await, DONE);
    assert_eq!(one.run(&enter("docs/1", 3, OLD)).await, DONE);
    assert_eq!(other.run(&format!("begin; {}", enter("docs/1", 3, OLD))).await, DONE);
    assert_eq!(other.run("update docs set v = '1' where id = 1; commit;").await, DONE);
    assert_eq!(one.run("update docs set v = v || '2' where id = 1; commit;").await, DONE);
    assert_eq!(document(&server).await, "12");
}

/// A snapshot that is older than the seal reads what the predecessor has replaced since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_snapshots_are_refused() {
    let server = installed().await;
    for (level, lock) in [("repeatable read", "docs/1"), ("serializable", "docs/2")] {
        let mut old = app(&server);
        let mut new = app(&server);
        assert_eq!(old.run(&seal(lock, 33, OLD, 1)).await, DONE);
        // The mark is raised in no such transaction.
        assert_eq!(new.run(&format!("begin isolation level {level};")).await, DONE);
        assert_eq!(new.run(&enter(lock, 34, NEW)).await, "FE425");
        assert_eq!(new.run(&format!("rollback; {}", seal(lock, 34, NEW, 1))).await, DONE);
        assert_eq!(new.run(&format!("begin isolation level {level};")).await, DONE);
        assert_eq!(new.run(&enter(lock, 34, NEW)).await, DONE);
        assert_eq!(new.run("update docs set v = 'x' where id < 0; commit;").await, DONE);
        // The old one's snapshot shows its own mark still.
        assert_eq!(old.run(&format!("begin isolation level {level};")).await, DONE);
        assert_eq!(old.run("select count(*) from docs;").await, DONE);
        assert_eq!(new.run(&seal(lock, 35, NEW, 1)).await, DONE);
        assert_eq!(old.run(&enter(lock, 34, NEW)).await, "40001");
    }
}

/// Two holders enter two fences in opposite order: the server ends one transaction, and its marks
/// with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_ends_one_transaction_and_leaves_the_marks_sound() {
    let server = installed_with(&[("deadlock_timeout", "100ms")], &pack::sql()).await;
    for (lock, other) in [("docs/1", "docs/2"), ("docs/2", "docs/1")] {
        // Marks that are raised for the first time, then some that exist.
        let token: u64 = if lock == "docs/1" { 3 } else { 5 };
        let mut one = app(&server);
        let mut two = app(&server);
        assert_eq!(one.run(&format!("begin; {}", enter(lock, token, OLD))).await, DONE);
        assert_eq!(two.run(&format!("begin; {}", enter(other, token, NEW))).await, DONE);
        let of_one = one.send(&format!("{} commit;", enter(other, token + 1, OLD)));
        let of_two = two.send(&enter(lock, token + 1, NEW));
        let of_two = two.result(of_two).await;
        assert_eq!(two.run("commit;").await, DONE);
        assert_eq!(one.result(of_one).await, DONE);
        let marks = "select string_agg(lock || ' ' || token || ' ' || left(lease::text, 1), ','
                     order by lock) from fence.marks";
        let expected = match of_two.as_str() {
            "40P01" => [(lock, token, '1'), (other, token + 1, '1')],
            // The second one got both, and the first was rolled back.
            DONE => [(other, token, '2'), (lock, token + 1, '2')],
            code => panic!("{code}"),
        };
        let mut expected = expected.map(|(lock, token, lease)| format!("{lock} {token} {lease}"));
        expected.sort();
        assert_eq!(server.sql(marks).await, expected.join(","));
        assert_eq!(server.sql("select count(*) from fence.seals where sealing").await, "0");
    }
}
